//! Untrusted bytes: runs the targets of `fuzz/` over their corpus, and over inputs that are changed at random.
//!
//! On stable Rust and without looking at coverage, a bounded number of inputs in every run of the tests. With
//! PROBE_FUZZ_SECONDS each target runs for that time, from another seed each time (`make fuzz`).

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../../fuzz/targets/mod.rs"]
#[allow(unreachable_pub)]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::{events, steps};
use probe_proto::v1::{AgentFrame, Strings, agent_frame::Frame};
use proptest::prelude::*;
use prost::Message;

/// Inputs of each target where no time is given.
const INPUTS: u64 = 20_000;
/// Those of a target whose inputs are files.
const INPUTS_AS_FILES: u64 = 500;
/// The most bytes of an input.
const LONGEST: usize = 4096;

/// A generator of random numbers (xorshift64*): its seed reproduces a failure.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }
}

/// An input made from `corpus`: bits flipped, bytes inserted, cut out or repeated, extreme numbers, pieces of another input.
fn change(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let offset = random.below(input.len() + 1);
        match random.below(7) {
            0 if offset < input.len() => input[offset] ^= 1 << random.below(8),
            1 => input.insert(offset, random.next() as u8),
            2 => drop(input.drain(offset..(offset + random.below(16)).min(input.len()))),
            3 if offset < input.len() => input[offset] = [0, 0x7f, 0x80, 0xff][random.below(4)],
            4 => {
                let piece = input[offset..(offset + random.below(32)).min(input.len())].to_vec();
                input.splice(offset..offset, piece);
            }
            5 => {
                let other = &corpus[random.below(corpus.len())];
                let begin = random.below(other.len());
                let piece = &other[begin..(begin + random.below(64)).min(other.len())];
                input.splice(offset..offset, piece.iter().copied());
            }
            _ => input.truncate(offset),
        }
    }
    input.truncate(LONGEST);
    input
}

/// How long inputs are made; None for a fixed number of them.
pub(crate) fn seconds() -> Option<Duration> {
    let seconds = std::env::var("PROBE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map(Duration::from_secs)
}

/// The seed of random inputs: always the same one for a fixed number of them, another in each long run, and the one in
/// PROBE_FUZZ_SEED to repeat a run.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("PROBE_FUZZ_SEED").ok().map(|text| text.parse().expect("PROBE_FUZZ_SEED is a number"));
    given.unwrap_or_else(|| seconds().map_or(1, |_| std::process::id().into()))
}

fn fuzz(name: &str, target: fn(&[u8]), more: Vec<Vec<u8>>) {
    fuzz_as_often(INPUTS, name, target, more);
}

fn fuzz_as_often(most: u64, name: &str, target: fn(&[u8]), more: Vec<Vec<u8>>) {
    let directory = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&directory).into_iter().flatten();
    let mut corpus: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    corpus.extend(more);
    assert!(corpus.len() >= 3, "{directory} is nearly empty");
    // Directories list files in any order, and a seed reproduces a run only with the same order.
    corpus.sort();
    let end = seconds().map(|seconds| Instant::now() + seconds);
    let seed = seed() | 1;
    let (mut random, mut inputs) = (Random(seed), 0);
    let deep = move |input: &[u8]| target(input);
    for input in &corpus {
        deep(input);
    }
    while end.map_or(inputs < most, |end| Instant::now() < end) {
        let input = change(&corpus, &mut random);
        inputs += 1;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| deep(&input))) {
            eprintln!("{name}, seed {seed}, input {inputs}: {:?}", String::from_utf8_lossy(&input));
            eprintln!("as bytes: {input:?}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{name}: {inputs} inputs from seed {seed}");
}

#[test]
fn frames_of_agents() {
    let mut strings = StringTable::default();
    let mut batches = Vec::new();
    let mut builder = BatchBuilder::new(&events::TABLE);
    for row in 0..5 {
        builder.push(events::Row {
            id: row,
            ts: Time(1_700_000_000_000_000_000 + row),
            kind: strings.id("hang"),
            severity: strings.id("error"),
            run: strings.id("gpt"),
            host: None,
            pid: (row > 2).then_some(7),
            rank: None,
            step: Some(row),
            message: strings.id("why"),
            details: None,
        });
    }
    batches.push(builder.take());
    let mut builder = BatchBuilder::new(&steps::TABLE);
    for step in 0..9 {
        builder.push(steps::Row {
            duration: 1.5,
            forward_time: 0.5,
            backward_time: 0.5,
            optimizer_time: 0.25,
            other_time: 0.25,
            clock: strings.id("why"),
            samples: (step > 3).then_some(8),
            detail: step % 2 == 0,
            warmup: Some(step == 0),
            ..steps::Row::of_a_second(step)
        });
    }
    batches.push(builder.take());
    let frames = batches.into_iter().map(Frame::Batch);
    let frames = frames.chain([Frame::Strings(Strings { first: 0, values: vec!["a".into(), "b".into()] })]);
    let encoded: Vec<_> = frames.map(|frame| AgentFrame { frame: Some(frame) }.encode_to_vec()).collect();
    // An unchanged input is accepted, so the target really parses it.
    encoded.iter().for_each(|frame| assert!(AgentFrame::decode(&frame[..]).is_ok()));
    fuzz("frame", targets::frame, encoded);
}

#[test]
fn endpoints() {
    fuzz("endpoint", targets::endpoint, Vec::new());
}

#[test]
fn the_sql_guard() {
    fuzz("sql", targets::sql, Vec::new());
}

#[test]
fn traces() {
    fuzz("trace", targets::trace, Vec::new());
}

#[test]
fn dumps_of_the_flight_recorder() {
    fuzz("flight_recorder", targets::flight_recorder, Vec::new());
}

#[test]
fn memory_snapshots() {
    fuzz("memory_snapshot", targets::memory_snapshot, Vec::new());
}

#[test]
fn pages() {
    fuzz("page", targets::page, Vec::new());
}

#[test]
fn exports_of_nsight_systems() {
    fuzz_as_often(INPUTS_AS_FILES, "nsight_systems", targets::nsight_systems, Vec::new());
}

#[test]
fn execution_traces() {
    fuzz_as_often(INPUTS_AS_FILES, "execution_trace", targets::execution_trace, Vec::new());
}

#[test]
fn dumps_of_nccls_inspector() {
    fuzz_as_often(INPUTS_AS_FILES, "nccl_inspector", targets::nccl_inspector, Vec::new());
}

#[test]
fn planes() {
    fuzz("planes", targets::planes, Vec::new());
}

/// A statement of random pieces of SQL; some of them parse.
fn statement() -> impl Strategy<Value = String> {
    let query = prop_oneof![
        Just("SELECT 1".to_owned()),
        Just("SELECT * FROM python.steps".to_owned()),
        Just("VALUES (1)".to_owned()),
        Just("INSERT INTO t VALUES (1)".to_owned()),
        Just("UPDATE t SET a = 1".to_owned()),
        Just("DELETE FROM t".to_owned()),
        Just("COPY t TO 'x'".to_owned()),
        Just("SELECT * INTO t FROM u".to_owned()),
        Just("DROP TABLE t".to_owned()),
        "[a-zA-Z0-9 ();,'*.=-]{0,40}",
    ];
    query.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|q| format!("({q})")),
            inner.clone().prop_map(|q| format!("EXPLAIN {q}")),
            inner.clone().prop_map(|q| format!("EXPLAIN ANALYZE VERBOSE {q}")),
            inner.clone().prop_map(|q| format!("SELECT * FROM ({q}) x")),
            inner.clone().prop_map(|q| format!("SELECT ({q}) IN ({q})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("WITH w AS ({a}) {b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} UNION ALL {b}")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a}; {b}")),
        ]
    })
}

/// Whether a word stands in a statement outside of quotes.
fn says(statement: &str, word: &str) -> bool {
    let bare: String = statement.split('\'').step_by(2).collect::<Vec<_>>().join(" ");
    bare.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|found| found.eq_ignore_ascii_case(word))
}

proptest! {
    /// The words of a statement that writes are in none that the guard lets through, wherever they stand.
    #[test]
    fn no_statement_that_writes_gets_through(text in statement()) {
        targets::sql(text.as_bytes());
        if let Ok(understood) = probe_query::understand(&text) {
            for (word, also) in [("INSERT", "INTO"), ("UPDATE", "SET"), ("DELETE", "FROM"), ("COPY", "TO"), ("DROP", "TABLE")] {
                let both = format!("{word} {also}");
                let writes = understood.to_uppercase().contains(&both) || understood.contains("UPDATE t SET");
                prop_assert!(!(writes && says(&understood, word)), "{} lets through {}", text, understood);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        targets::frame(&bytes);
    }

    #[test]
    fn no_text_makes_the_grammar_of_endpoints_panic(text in "[a-z0-9@:/.\\[\\] -]{0,40}") {
        targets::endpoint(text.as_bytes());
    }
}
