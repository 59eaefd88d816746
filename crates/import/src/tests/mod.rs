//! The reader against a model, and files that are not meant to be read.

mod attribution;
mod captured;
mod execution_traces;
mod hostile_numbers;
mod memory;
mod memory_snapshots;
mod nsight_compute;
mod nsight_systems;
mod pickles;
mod table_rows;
mod xplane;

use std::io::{Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use table_rows::table_rows;

use crate::collect::CollectedEvents;
use crate::elements::{ElementReader, JsonElement};
use crate::input::TextInput;

/// Reads as little at a time as is allowed, so that every boundary is met.
struct Trickle<'a>(&'a [u8], usize);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.0.len().min(self.1).min(buffer.len());
        buffer[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        Ok(length)
    }
}

/// Events, the keys of other values, and why it stopped.
fn elements(text: &[u8], at_once: usize) -> (Vec<Vec<u8>>, Vec<String>, Option<String>) {
    let mut reader = ElementReader::new(Trickle(text, at_once));
    let (mut events, mut keys) = (Vec::new(), Vec::new());
    loop {
        match reader.next() {
            Ok(Some(JsonElement::Event(event, offset))) => {
                assert_eq!(&text[offset as usize..][..event.len()], event);
                events.push(event.to_vec());
            }
            Ok(Some(JsonElement::Value(key, _))) => keys.push(key.to_owned()),
            Ok(None) => return (events, keys, None),
            Err(stopped) => return (events, keys, Some(stopped.what)),
        }
    }
}

fn collected(text: &[u8]) -> CollectedEvents {
    let directory = tempfile::tempdir().unwrap();
    CollectedEvents::read(text, directory.path(), u64::MAX, &mut || ()).unwrap()
}

fn counts(text: &[u8]) -> (u64, u64, u64) {
    let collected = collected(text);
    (collected.events, collected.left_out.values().sum(), collected.mended)
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\"\\\\\\]\\[{},:\n é]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"\\\\]{0,5}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever valid JSON says, in whatever order of its keys, the events are cut where serde_json ends them.
    #[test]
    fn valid_json_is_cut_as_a_parser_reads_it(
        events in prop::collection::vec(any_json(), 0..8),
        others in prop::collection::btree_map("[a-z]{1,4}", any_json(), 0..4),
        position in 0..4_usize,
        pretty in any::<bool>(),
        at_once in 1..40_usize,
    ) {
        let text = |value: &Value| if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) }.unwrap();
        let mut parts: Vec<String> = others.iter().map(|(key, value)| format!("{}: {}", json!(key), text(value))).collect();
        parts.insert(position.min(parts.len()), format!("\"traceEvents\": {}", text(&json!(events))));
        let whole = format!("{{{}}}", parts.join(", "));
        let (found, keys, stopped) = elements(whole.as_bytes(), at_once);
        prop_assert_eq!(stopped, None);
        let found: Vec<Value> = found.iter().map(|event| serde_json::from_slice(event).unwrap()).collect();
        prop_assert_eq!(found, events);
        prop_assert_eq!(keys, others.into_keys().collect::<Vec<_>>());
    }

    /// A file that ends anywhere gives the events before its end, and says so.
    #[test]
    fn a_truncated_file_keeps_what_came_before(events in 1..6_usize, cut in any::<prop::sample::Index>()) {
        let event = json!({"ph": "X", "cat": "cpu_op", "name": "a\"b", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {"External id": 1}});
        let text = serde_json::to_string(&json!({"traceEvents": vec![event; events]})).unwrap();
        let cut = cut.index(text.len());
        let found = collected(&text.as_bytes()[..cut]);
        prop_assert!(found.problem.is_some());
        let whole = collected(text.as_bytes());
        prop_assert!(whole.problem.is_none() && found.events <= whole.events);
        prop_assert_eq!(whole.events, events as u64);
        prop_assert_eq!(found.events, text[..cut].matches("\"ts\":1.5}").count() as u64);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[{\"traceEvents:,0-9NaN}\\]]{0,80}") {
        collected(&bytes);
        collected(format!("{{\"traceEvents\": [{text}").as_bytes());
    }
}

#[test]
fn what_is_no_json_is_mended_or_counted() {
    let event = |name: &str, rest: &str| {
        format!(
            "{{\"traceEvents\":[{{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\"ts\":1,\"dur\":1{rest}}}]}}"
        )
    };
    // Unescaped quotes, a control byte, words that are no values, an unknown escape, a comma too many.
    for (name, rest) in [
        ("say \"hello\" to", ""),
        ("a\u{1}b", ""),
        ("a", ",\"args\":{\"Device\":N/A,\"x\":NaN,\"y\":-inf}"),
        ("C:\\windows\\k", ""),
        ("a", ",\"args\":{\"x\":[1,],}"),
    ] {
        assert_eq!(counts(event(name, rest).as_bytes()), (1, 0, 1), "{name} {rest}");
    }
    assert_eq!(counts(event("fine", "").as_bytes()), (1, 0, 0));
    let not_utf8 =
        [event("x", "").as_bytes()[..50].to_vec(), vec![0xff], event("x", "").as_bytes()[50..].to_vec()].concat();
    let (events, _, mended) = counts(&not_utf8);
    assert_eq!((events, mended), (1, 1));
    // An event that is none, and one without a time.
    assert_eq!(counts(br#"{"traceEvents":[7,{"ph":"X","cat":"kernel","name":"k"}]}"#), (2, 2, 0));
}

#[test]
fn hostile_numbers_are_bounded() {
    let text = br#"{"traceEvents":[
        {"ph":"X","cat":"cpu_op","name":"a","name":"b","pid":1,"tid":1,"ts":5,"dur":7},
        {"ph":"X","cat":"cpu_op","name":"f","pid":1,"tid":1,"ts":5,"dur":-7},
        {"ph":"X","cat":"cpu_op","name":"g","pid":1,"tid":1,"ts":5,"dur":9223372036854775807},
        {"ph":"X","cat":"kernel","name":"h","pid":0,"tid":7,"ts":5,"dur":1e300},
        {"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":99999999999999999999999,"dur":1},
        {"ph":"X","cat":"kernel","name":"d","pid":0,"tid":7,"ts":1e999,"dur":NaN,"args":{"correlation":1e400,"grid":[1,2,"x"]}},
        {"ph":"X","cat":"kernel","name":"e","pid":0,"tid":7,"ts":7,"dur":1e10}]}"#;
    let found = collected(text);
    assert_eq!(found.window, Some((5000, 10_000_000_007_000)));
    let left_out: Vec<(&str, u64)> = found.left_out.iter().map(|(reason, events)| (&**reason, *events)).collect();
    assert_eq!(left_out, [("with an impossible duration", 3), ("without a time", 2)]);
    assert!(found.texts.get(0).is_some_and(|name| &**name == "b"), "the last of two values of a key");
}

#[test]
fn depth_and_length_are_refused_where_they_are() {
    let deep = format!("{{\"traceEvents\":[{}", "[".repeat(200));
    assert!(collected(deep.as_bytes()).problem.unwrap().contains("brackets in each other"));
    let long = [br#"{"traceEvents":[{"ph":"X","name":""#.to_vec(), vec![b'x'; 17 << 20]].concat();
    assert!(collected(&long).problem.unwrap().contains("longer than 16 MiB"));
    assert_eq!(
        collected(b"7").problem.unwrap(),
        "at byte 0 of its text, after 0 events: it is no JSON object or array"
    );
}

#[test]
fn a_gzip_bomb_ends_at_its_bound_and_several_members_are_one_text() {
    let packed = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let bomb = packed(&vec![b' '; 80 << 20]);
    let size = bomb.len() as u64;
    let input = TextInput::of(std::io::Cursor::new(bomb), size / 100).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let found = CollectedEvents::read(input.text, directory.path(), u64::MAX, &mut || ()).unwrap();
    assert!(found.problem.unwrap().contains("times as large as the file"));

    let event = br#"{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}"#;
    let members = [packed(b"{\"traceEvents\":["), packed(event), packed(b"]}")].concat();
    let size = members.len() as u64;
    let input = TextInput::of(std::io::Cursor::new(members), size).unwrap();
    let found = CollectedEvents::read(input.text, directory.path(), u64::MAX, &mut || ()).unwrap();
    assert_eq!((found.events, found.problem), (1, None));
}
