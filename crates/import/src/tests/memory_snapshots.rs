//! Memory snapshots: what old and new versions of torch write becomes rows, and hostile ones end at a bound.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::table_rows;
use crate::pickle::{DictWatcher, PickleLimits, read_as_far};
use crate::{ImportedCapture, RangePatterns, TraceFile, TraceFormat, find, import, read_memory_snapshot};

/// Made by `fuzz/memory_snapshots.py`.
fn corpus(name: &str) -> Vec<u8> {
    fs::read(format!("{}/../../fuzz/corpus/memory_snapshot/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn imported(bytes: &[u8], directory: &Path) -> Result<ImportedCapture, String> {
    let path = directory.join("rank_3.pickle");
    fs::write(&path, bytes).unwrap();
    let file = TraceFile { path, capture: "rank_3.pickle".into(), named: true, format: TraceFormat::MemorySnapshot };
    let mut imported = import(&[file], "run@1", directory, &RangePatterns::default(), &mut |_| ())
        .map_err(|error| error.to_string())?;
    Ok(imported.captures.remove(0))
}

fn events(directory: &Path) -> Vec<Vec<String>> {
    let columns =
        ["number", "action", "device", "size", "allocated", "reserved", "device_free", "file", "line", "metadata"];
    table_rows(directory, "python.memory_events", &columns)
}

fn blocks(directory: &Path) -> Vec<Vec<String>> {
    let columns =
        ["device", "segment_type", "expandable", "pool", "size", "requested_size", "state", "file", "line", "function"];
    table_rows(directory, "gpu.memory_blocks", &columns)
}

#[test]
fn all_protocols_become_the_same_rows() {
    for protocol in 2..=5 {
        let directory = tempfile::tempdir().unwrap();
        let capture = imported(&corpus(&format!("protocol{protocol}")), directory.path()).unwrap();
        assert_eq!((capture.rank, capture.events, capture.problem), (Some(3), 8, None));
        assert_eq!((capture.rows.memory_events, capture.rows.memory_blocks), (8, 5));
        assert_eq!(capture.left_out, [("annotations".to_owned(), 1)]);
        assert_eq!(capture.began, Some(1_767_225_600_000_000_000));
        let (model, loss) = (["/home/me/model.py", "7"], ["/home/me/train.py", "41"]);
        let expected = [
            ["0", "segment_map", "cuda:0", "20971520", "1400", "23068672", "", model[0], model[1], ""],
            ["1", "alloc", "cuda:0", "20000000", "20001400", "23068672", "", model[0], model[1], "epoch 1"],
            ["2", "alloc", "cuda:0", "5000", "20006400", "23068672", "", loss[0], loss[1], ""],
            ["3", "oom", "cuda:0", "85899345920", "20006400", "23068672", "1000000000", loss[0], loss[1], ""],
            ["4", "free_requested", "cuda:0", "5000", "20001400", "23068672", "", "", "", ""],
            ["5", "free_completed", "cuda:0", "5000", "20001400", "23068672", "", "", "", ""],
            ["6", "free_requested", "cuda:0", "1000", "20000400", "23068672", "", "/home/me/train.py", "40", ""],
            ["7", "snapshot", "cuda:0", "20973056", "20000400", "23068672", "", "", "", ""],
        ];
        assert_eq!(events(directory.path()), expected, "protocol {protocol}");
        let expected = [
            ["cuda:0", "small", "false", "[0,0]", "512", "400", "active_allocated", "/home/me/train.py", "40", "main"],
            ["cuda:0", "small", "false", "[0,0]", "1024", "1000", "active_pending_free", loss[0], loss[1], "loss"],
            ["cuda:0", "small", "false", "[0,0]", "2095616", "0", "inactive", "", "", ""],
            [
                "cuda:0",
                "large",
                "true",
                "[0,0]",
                "20971520",
                "20000000",
                "active_allocated",
                model[0],
                model[1],
                "forward",
            ],
            ["cuda:1", "small", "false", "[0,0]", "2097152", "2097152", "active_allocated", "", "", ""],
        ];
        assert_eq!(blocks(directory.path()), expected, "protocol {protocol}");
    }
}

#[test]
fn blocks_with_a_history_and_events_without_a_time_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let capture = imported(&corpus("old"), directory.path()).unwrap();
    assert_eq!((capture.began, capture.rows.memory_events, capture.rows.memory_blocks), (None, 2, 2));
    let expected = [
        ["0", "segment_alloc", "cuda:0", "2097152", "0", "2097152", "", "/home/me/model.py", "7", ""],
        ["1", "alloc", "cuda:0", "400", "400", "2097152", "", "/home/me/model.py", "7", ""],
    ];
    assert_eq!(events(directory.path()), expected);
    let expected = [
        ["cuda:0", "small", "", "", "512", "400", "active_allocated", "/home/me/model.py", "7", "forward"],
        ["cuda:0", "small", "", "", "2096640", "", "inactive", "", "", ""],
    ];
    assert_eq!(blocks(directory.path()), expected);
    let addresses = table_rows(directory.path(), "gpu.memory_blocks", &["segment_address", "address"]);
    assert_eq!(addresses, [["139637976727552", "139637976727552"], ["139637976727552", "139637976728064"]]);

    // The segments alone.
    let directory = tempfile::tempdir().unwrap();
    let capture = imported(&corpus("segments"), directory.path()).unwrap();
    assert_eq!((capture.rows.memory_events, capture.rows.memory_blocks), (0, 2));
}

#[test]
fn a_snapshot_is_found_by_what_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["protocol2", "old", "segments"] {
        fs::write(directory.path().join(name), corpus(name)).unwrap();
    }
    let found = find(&[directory.path().to_owned()], None).unwrap();
    assert!(
        found.files.len() == 3 && found.files.iter().all(|file| file.format == TraceFormat::MemorySnapshot),
        "{found:?}"
    );
}

#[test]
fn one_with_code_is_refused_by_name_and_nothing_of_it_is_kept() {
    for (name, instruction) in [("code2", "GLOBAL"), ("code4", "STACK_GLOBAL")] {
        let directory = tempfile::tempdir().unwrap();
        let why = imported(&corpus(name), directory.path()).unwrap_err();
        assert!(why.contains(&format!(": {instruction} imports or calls code")), "{why}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the file itself");
    }
}

#[test]
fn a_cut_snapshot_keeps_what_came_before_and_says_so() {
    let whole = corpus("protocol4");
    let position = whole.windows(4).rposition(|bytes| bytes == b"free").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let capture = imported(&whole[..position], directory.path()).unwrap();
    assert!(capture.problem.clone().unwrap().contains("bytes are announced"), "{capture:?}");
    assert_eq!(capture.rows.memory_blocks, 5);
    let events = events(directory.path());
    assert_eq!((events.len(), &*events[1][1]), (5, "alloc"));
    assert!(events.iter().all(|event| event[4].is_empty()), "what came later is not known: {events:?}");
    // Nothing is left of it.
    assert!(imported(&whole[..20], directory.path()).unwrap_err().contains("pickle: "));
}

/// Instructions, and STOP.
fn program(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04".to_vec(), parts.concat(), b".".to_vec()].concat()
}

/// An event as C++ writes it: nothing of it is kept to be named again.
const EVENT: &[u8] = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeM\x00\x02\x8c\x06frames](}(\x8c\x08filename\x8c\x04a.py\x8c\x04lineK\x03\x8c\x04name\x8c\x01fu}(\x8c\x08filename\x8c\x04b.py\x8c\x04lineK\x04\x8c\x04name\x8c\x01gueu";

struct Taking(u32);

impl DictWatcher for Taking {
    fn filled(&mut self, heap: &mut crate::pickle::PickleHeap, dict: u32) -> Option<u32> {
        let is_event = heap.items(dict).len() == 6
            && heap.items(dict).iter().any(|value| matches!(value, crate::pickle::Value::List(_)));
        is_event.then(|| {
            self.0 += 1;
            self.0
        })
    }
}

#[test]
fn events_need_no_room_once_they_are_taken_out() {
    // 4 containers and 24 values each.
    let bytes = program(&[b"](", &EVENT.repeat(20_000), b"e"]);
    let limits = PickleLimits { values: 41_000, containers: 8, memo: 8 };
    let (mut taking, mut nothing) = (Taking(0), ());
    let read = read_as_far(&bytes[..], limits, &mut taking);
    assert_eq!((read.stopped, taking.0), (None, 20_000));
    let read = read_as_far(&bytes[..], limits, &mut nothing);
    assert!(read.stopped.unwrap().what.contains("lists, tuples and dicts at once"));
}

#[test]
fn hostile_snapshots_end_at_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = |traces: &[u8]| program(&[b"}(\x8c\x08segments]\x8c\x0ddevice_traces", traces, b"u"]);
    // The same event, and the same list of events, again and again.
    let named = [&b"](]("[..], EVENT, b"q\x00", &b"h\x00".repeat(1000), b"ee"].concat();
    let capture = imported(&snapshot(&named), directory.path()).unwrap();
    assert_eq!((capture.rows.memory_events, &capture.left_out[..]), (1, &[("named twice".to_owned(), 1000)][..]));
    // An event of another form, of an unknown action, and one that is no dict.
    let odd =
        [&b"](]("[..], b"}(\x8c\x06action\x8c\x05alloc\x8c\x04size]u}(\x8c\x06action\x8c\x04hurlu", b"ee"].concat();
    let capture = imported(&snapshot(&odd), directory.path()).unwrap();
    assert_eq!(capture.left_out, [("unreadable".to_owned(), 2)]);
    assert!(read_memory_snapshot(&snapshot(b"](](K\x01ee")).unwrap_err().contains("an event of the allocator"));
    // Segments that hold each other, or the same blocks, without end.
    let mut bomb = b"]q\x00".to_vec();
    for number in 0..40_u8 {
        bomb.extend([b']', b'(', b'h', number, b'h', number, b'e', b'q', number + 1]);
    }
    let why = read_memory_snapshot(&program(&[b"}(\x8c\x08segments", &bomb, b"u"])).unwrap_err();
    assert!(why.contains("invalid type"), "{why}");
    let shared = [
        &b"}(\x8c\x08segments](}(\x8c\x06blocks]("[..],
        &b"}".repeat(1000),
        b"eq\x00uh\x00",
        &b"}(\x8c\x06blocksh\x00u".repeat(100_000),
        b"eu",
    ];
    // The list itself is no segment.
    assert!(read_memory_snapshot(&program(&shared)).is_err());
    let shared = [
        &b"}(\x8c\x08segments](}(\x8c\x06blocks]("[..],
        &b"}".repeat(1000),
        b"eq\x00u",
        &b"}(\x8c\x06blocksh\x00u".repeat(100_000),
        b"eu",
    ];
    let why = read_memory_snapshot(&program(&shared)).unwrap_err();
    assert!(why.contains("counting shared ones each time"), "{why}");
    // Sizes that lie, and sums that overflow.
    for bytes in [&b"X\xff\xff\xff\x7fab"[..], b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab"] {
        assert!(read_memory_snapshot(&program(&[b"}", bytes])).unwrap_err().contains("bytes are announced"));
    }
    let most = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let block =
        [&b"}(\x8c\x04size"[..], most, b"\x8c\x05state\x8c\x10active_allocated\x8c\x07address", most, b"u"].concat();
    let segment = [
        &b"}(\x8c\x06deviceK\x00\x8c\x07address"[..],
        most,
        b"\x8c\x0atotal_size",
        most,
        b"\x8c\x06blocks](",
        &block,
        &block,
        b"eu",
    ]
    .concat();
    let event = [&b"}(\x8c\x06action\x8c\x05alloc\x8c\x04size"[..], most, b"\x8c\x07time_us", most, b"u"].concat();
    let bytes =
        program(&[b"}(\x8c\x08segments](", &segment, &segment, b"e\x8c\x0ddevice_traces](](", &event, &event, b"eeu"]);
    let directory = tempfile::tempdir().unwrap();
    imported(&bytes, directory.path()).unwrap();
    let rows = events(directory.path());
    assert!(rows.len() == 2 && rows.iter().all(|row| row[4].is_empty() && row[5].is_empty()), "{rows:?}");
}

#[test]
fn a_history_that_does_not_come_out_has_no_sums() {
    // Allocated in the history, and not there at the end.
    let segments =
        b"\x8c\x08segments](}(\x8c\x06deviceK\x00\x8c\x07addressK\x01\x8c\x0atotal_sizeM\x00\x04\x8c\x06blocks]ue";
    let bytes = program(&[b"}(", segments, b"\x8c\x0ddevice_traces](](", EVENT, b"eeu"]);
    let directory = tempfile::tempdir().unwrap();
    imported(&bytes, directory.path()).unwrap();
    assert_eq!(events(directory.path()), [["0", "alloc", "cuda:0", "512", "", "1024", "", "a.py", "3", ""]]);
}

#[test]
fn times_further_apart_than_64_bits_count_are_kept() {
    let event = |time_us: i64| {
        [&b"}(\x8c\x06action\x8c\x05alloc\x8c\x07time_us\x8a\x08"[..], &time_us.to_le_bytes(), b"u"].concat()
    };
    let (first, last) = (event(i64::MIN / 1000), event(i64::MAX / 1000));
    let bytes = program(&[b"}(\x8c\x0ddevice_traces](](", &first, &last, b"eeu"]);
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(imported(&bytes, directory.path()).unwrap().events, 2);
    assert_eq!(table_rows(directory.path(), "python.captures", &["duration"]), [["18446744073.70955"]]);
}

proptest! {
    /// A snapshot that is cut anywhere, or changed in one byte, is read as far as it goes or refused.
    #[test]
    fn damage_anywhere_is_refused_or_said(
        protocol in 2..=5_u8, position in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = corpus(&format!("protocol{protocol}"));
        let position = position.index(bytes.len());
        if cut {
            bytes.truncate(position);
        } else {
            bytes[position] = byte;
        }
        let directory = tempfile::tempdir().unwrap();
        match imported(&bytes, directory.path()) {
            Ok(capture) => prop_assert!(capture.problem.is_some() || !cut),
            Err(why) => prop_assert!(why.contains("as a memory snapshot"), "{}", why),
        }
    }

    /// What an allocator did, backwards: sums are what a forward count gives.
    #[test]
    fn sums_are_those_of_a_forward_count(actions in prop::collection::vec((0..3_u8, 1..1000_i64), 0..60), older in 0..500_i64) {
        let (mut live, mut allocated, mut expected) = (Vec::new(), older, Vec::new());
        let mut trace = Vec::new();
        for (number, (action, size)) in actions.into_iter().enumerate() {
            let (word, size) = match (action, live.pop()) {
                (0, Some(size)) => {
                    allocated -= size;
                    ("free_requested", size)
                }
                (_, back) => {
                    live.extend(back);
                    live.push(size);
                    allocated += size;
                    ("alloc", size)
                }
            };
            trace.extend([b"}(\x8c\x06action\x8c", &[word.len() as u8][..], word.as_bytes(), b"\x8c\x04sizeM"].concat());
            trace.extend((size as u16).to_le_bytes());
            trace.push(b'u');
            expected.push((number.to_string(), allocated.to_string()));
        }
        let block = |size: i64| {
            [&b"}(\x8c\x05state\x8c\x10active_allocated\x8c\x04sizeJ"[..], &(size as i32).to_le_bytes(), b"u"].concat()
        };
        let blocks: Vec<u8> = live.iter().copied().chain([older]).flat_map(block).collect();
        let bytes = program(&[
            b"}(\x8c\x08segments](}(\x8c\x06deviceK\x00\x8c\x06blocks](", &blocks, b"eue\x8c\x0ddevice_traces](](", &trace, b"eeu",
        ]);
        let directory = tempfile::tempdir().unwrap();
        imported(&bytes, directory.path()).unwrap();
        let rows = table_rows(directory.path(), "python.memory_events", &["number", "allocated"]);
        let rows: Vec<(String, String)> = rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        prop_assert_eq!(rows, expected);
    }
}
