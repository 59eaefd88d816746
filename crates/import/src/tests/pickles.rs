//! Pickles: what Python writes is read, what would run code is not, and hostile ones end at a bound.

use std::fs;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::flight_recorder::parse;
use crate::pickle::{PartialPickle, PickleLimits, read_as_far};

/// Pickles of Python's own module, which also are the corpus of `fuzz/`.
fn corpus(name: &str) -> Vec<u8> {
    fs::read(format!("{}/../../fuzz/corpus/flight_recorder/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn value(bytes: &[u8]) -> Result<Value, String> {
    read(bytes)?.pickle.parse().map_err(|error| error.to_string())
}

/// A whole pickle, or why it is not whole.
fn read(bytes: &[u8]) -> Result<PartialPickle, String> {
    let read = read_as_far(bytes, PickleLimits::WHOLE, &mut ());
    match (&read.stopped, read.problem()) {
        (Some(refused), _) => Err(format!("{}: {}", refused.offset, refused.what)),
        (None, Some(problem)) => Err(problem),
        (None, None) => Ok(read),
    }
}

/// Instructions, and STOP.
fn program(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02".to_vec(), parts.concat(), b".".to_vec()].concat()
}

fn refused(bytes: &[u8]) -> String {
    value(bytes).unwrap_err()
}

#[test]
fn all_protocols_say_the_same() {
    let expected = format!("{:?}", parse(corpus("json")).unwrap());
    assert!(expected.contains("train é.py") && expected.contains("45266"), "{expected}");
    for protocol in 2..=5 {
        assert_eq!(format!("{:?}", parse(corpus(&format!("protocol{protocol}"))).unwrap()), expected);
    }
}

#[test]
fn plain_values_are_read() {
    #[derive(Debug, Deserialize)]
    struct Dump {
        new: New,
    }
    #[derive(Debug, Deserialize)]
    struct New {
        wide: Option<i64>,
        negative: i64,
        empty: Vec<i64>,
        one: (i64,),
        three: (i64, i64, i64),
        five: Vec<i64>,
        float: f64,
        long: String,
    }
    for protocol in 2..=5 {
        let pickle = read(&corpus(&format!("protocol{protocol}"))).unwrap().pickle;
        let Dump { new } = pickle.parse().unwrap();
        assert_eq!((new.wide, new.negative, new.empty), (None, i64::MIN, vec![]));
        assert_eq!((new.one, new.three, new.five), ((1,), (1, 2, 3), vec![1, 2, 3, 4, 5]));
        assert_eq!((new.float, new.long.len()), (1e-300, 300));
    }
}

#[test]
fn whatever_would_run_code_is_refused_by_name() {
    for (name, instruction) in [
        ("reduce2", "GLOBAL"),
        ("reduce4", "STACK_GLOBAL"),
        ("newobj2", "GLOBAL"),
        ("newobj4", "STACK_GLOBAL"),
        ("ordered", "GLOBAL"),
        ("complex", "GLOBAL"),
    ] {
        let why = refused(&corpus(name));
        assert!(why.contains(&format!(": {instruction} imports or calls code")), "{name}: {why}");
    }
    assert!(refused(&corpus("reduce2")).ends_with("only plain data is read (posix.system)"));
    for (instruction, name) in [
        (&b"R"[..], "REDUCE"),
        (b"b", "BUILD"),
        (b"ia\nb\n", "INST"),
        (b"o", "OBJ"),
        (b"\x81", "NEWOBJ"),
        (b"\x92", "NEWOBJ_EX"),
        (b"P1\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
    ] {
        let why = refused(&program(&[b"())", instruction]));
        assert!(why.contains(&format!("{name} imports or calls code")), "{why}");
    }
    for (name, what) in [
        ("set4", "EMPTY_SET is not read"),
        ("bytearray5", "BYTEARRAY8 is not read"),
        ("protocol0", "protocol 0 is not read"),
    ] {
        assert!(refused(&corpus(name)).contains(what), "{name}: {}", refused(&corpus(name)));
    }
    assert!(refused(&program(&[b"\xff"])).contains("0xff is no instruction"));
}

#[test]
fn damage_is_said_with_its_place() {
    for (bytes, what) in [
        (program(&[b"K\x01K\x02a"]), "6: it adds to something that is no list"),
        (program(&[b"}(K\x01u"]), "6: a key of a dict has no value"),
        (program(&[b"]]s"]), "4: it adds to something that is no dict"),
        (program(&[b"Ns"]), "3: it takes a value where there is none"),
        (program(&[b"N("]), "it takes a value"),
        (program(&[b"t"]), "it goes back to a MARK where there is none"),
        (program(&[b"h\x05"]), "it names value 5, and there is none"),
        (program(&[b"N.N"]), "bytes follow its end"),
        (program(&[b"X\xff\xff\xff\x7fab"]), "2147483647 bytes are announced and 3 are left"),
        (program(&[b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab"]), "18446744073709551615 bytes are announced"),
        (program(&[b"\x8b\xff\xff\xff\xff"]), "a whole number has 4294967295 bytes"),
        (b"\x80\x09N.".to_vec(), "protocol 9 is not known"),
        (b"\x80\x02N".to_vec(), "3: it ends before its STOP"),
        (Vec::new(), "0: it ends before its STOP"),
    ] {
        let why = refused(&bytes);
        assert!(why.contains(what), "{bytes:?}: {why}");
    }
    // POP takes a MARK that nothing follows; text that is no UTF-8 stays bytes.
    assert_eq!(value(&program(&[b"K\x07(0"])), Ok(json!(7)));
    assert!(read(&program(&[b"X\x01\x00\x00\x00\xff"])[..]).is_ok());
}

#[test]
fn whole_numbers_are_exact_or_unknown() {
    for (bytes, expected) in [
        (&b"\x8a\x00"[..], json!(0)),
        (b"\x8a\x01\xff", json!(-1)),
        (b"\x8a\x02\xff\x00", json!(255)),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", json!(i64::MAX)),
        (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", json!(i64::MIN)),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00", Value::Null),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\xff", json!(i64::MIN)),
        (b"J\xff\xff\xff\xff", json!(-1)),
        (b"M\xff\xff", json!(65535)),
        (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", json!(1.5)),
    ] {
        assert_eq!(value(&program(&[bytes])), Ok(expected), "{bytes:?}");
    }
}

#[test]
fn what_grows_or_nests_without_end_is_refused() {
    // Each list holds the one before twice: 40 of them are 2^40 values, and 40 values in memory.
    let mut bomb = b"]q\x00".to_vec();
    for number in 0..40_u8 {
        bomb.extend([b']', b'(', b'h', number, b'h', number, b'e', b'q', number + 1]);
    }
    assert!(read(&program(&[&bomb])[..]).is_ok());
    assert!(refused(&program(&[&bomb])).contains("counting shared ones each time"));
    // A list that contains itself, as a dump's entries.
    assert!(refused(&corpus("itself")).contains("containers are within each other"));
    assert!(parse(corpus("itself")).is_err());
    assert!(refused(&program(&[&b"(".repeat(1001)])).contains("more than 1000 containers"));
    // Built from within, it nests without a MARK; reading it stops at the bound.
    let nested = [b"]".to_vec(), b"\x85".repeat(100_000)].concat();
    assert!(refused(&program(&[&nested])).contains("more than 64 containers"));
    // One text of 1 MiB, named a thousand times.
    let text =
        [b"X\x00\x00\x10\x00".to_vec(), vec![b'a'; 1 << 20], b"q\x00(".to_vec(), b"h\x00".repeat(1000), b"l".to_vec()]
            .concat();
    assert!(refused(&program(&[&text])).contains("counting shared ones each time"));
    assert!(refused(&program(&[&b"]".repeat((1 << 21) + 1)])).contains("lists, tuples and dicts"));
    assert!(refused(&program(&[&b"N".repeat((1 << 24) + 1)])).contains("values"));
}

#[test]
fn json_within_json_is_refused_too() {
    let deep = format!("{{\"version\": \"2.10\", \"entries\": {}", "[".repeat(100_000));
    assert!(parse(deep.into_bytes()).unwrap_err().contains("line 1"));
}

/// Plain data that pickles have.
fn plain() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        (-1e300..1e300).prop_map(|float: f64| Value::from(float)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A pickle of it, in one of the ways in which it can be written.
fn write(value: &Value, way: &mut impl FnMut() -> bool, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) if way() && i32::try_from(number).is_ok() => {
                out.push(b'J');
                out.extend((number as i32).to_le_bytes());
            }
            (Some(number), _) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            (None, float) => {
                out.push(b'G');
                out.extend(float.unwrap().to_be_bytes());
            }
        },
        Value::String(text) if way() && text.len() < 256 => {
            out.extend([0x8c, text.len() as u8]);
            out.extend(text.as_bytes());
        }
        Value::String(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Value::Array(items) if way() => {
            out.push(b']');
            for item in items {
                write(item, way, out);
                out.push(b'a');
            }
        }
        Value::Array(items) => {
            let is_tuple = way();
            out.extend(if is_tuple { &b"("[..] } else { b"](" });
            items.iter().for_each(|item| write(item, way, out));
            out.push(if is_tuple { b't' } else { b'e' });
        }
        Value::Object(map) => {
            out.extend(b"}(");
            for (key, item) in map {
                write(&Value::from(key.as_str()), way, out);
                write(item, way, out);
            }
            out.push(b'u');
        }
    }
    // Python's pickler keeps what it may name again.
    if way() {
        out.push(0x94);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(value in plain(), ways in any::<u64>()) {
        let mut ways = ways;
        let mut way = move || {
            ways = ways.rotate_left(1);
            ways & 1 == 1
        };
        let mut bytes = Vec::new();
        write(&value, &mut way, &mut bytes);
        prop_assert_eq!(super::pickles::value(&program(&[&bytes])), Ok(value));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = value(&bytes);
        let _ = parse(program(&[&bytes]));
    }

    /// Instructions that mean something, in any order.
    #[test]
    fn no_program_makes_the_reader_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                &b"("[..], b"N", b"]", b"}", b")", b"a", b"e", b"s", b"u", b"t", b"l", b"d", b"0", b"1", b"2",
                b"q\x00", b"h\x00", b"\x94", b"h\x01", b"\x85", b"\x86", b"\x87", b"K\x01", b"\x8c\x01a", b"\x8a\x01\x80",
                b"\x8c\x07entries", b"\x8c\x09pg_config", b"\x8c\x07version",
            ]),
            0..60,
        )
    ) {
        let bytes = program(&parts);
        let _ = value(&bytes);
        let _ = parse(bytes);
    }
}
