//! Files have the rows of their segments, and the same ranges.

use std::path::Path;
use std::process::Command;

use arrow::array::RecordBatch;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use probe_proto::tables::steps;

use super::*;
use crate::file_writer::write_file;
use crate::{BatchOrigin, GroupReader, ParquetFile};

/// A segment for each list of batches: the first of rank 0, the next of rank 1, and so on.
fn segments(lists: &[Vec<Vec<Row>>]) -> Vec<Arc<Segment>> {
    let (_, mut strings) = strings();
    let segment = |(rank, batches): (usize, &Vec<Vec<Row>>)| {
        let identity = ProcessIdentity { rank: Some(rank as i32), ..ProcessIdentity::clone(&super::identity()) };
        let origin = BatchOrigin { instance: "agent".into(), first_seq: 7, last_seq: u64::MAX };
        let mut rows = batches.iter().map(|batch| BatchRows::decode(&mapping(), &encode(batch), &mut strings).unwrap());
        let first = Segment::new(Some(Arc::new(identity)), Some(origin), rows.next().unwrap(), 0);
        Arc::new(rows.fold(first, |segment, rows| segment.with_rows(rows, u64::MAX, 0)))
    };
    lists.iter().enumerate().map(segment).collect()
}

fn read_file(path: &Path) -> Vec<RecordBatch> {
    let file = std::fs::File::open(path).unwrap();
    let options = ArrowReaderOptions::new().with_schema(arrow_schema(&torch_trace::TABLE));
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
        .unwrap()
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn in_memory(segments: &[Arc<Segment>]) -> RecordBatch {
    let batches: Vec<RecordBatch> = segments.iter().flat_map(|segment| read(segment)).collect();
    arrow::compute::concat_batches(&arrow_schema(&torch_trace::TABLE), &batches).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_file_is_its_segments(
        lists in prop::collection::vec(prop::collection::vec(prop::collection::vec(row(), 1..30), 1..4), 0..4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let segments = segments(&lists);
        let written = write_file(directory.path(), "0.parquet", &torch_trace::TABLE, &segments, &|_| ()).unwrap();
        let opened = ParquetFile::open(&directory.path().join("0.parquet"), &torch_trace::TABLE).unwrap();
        prop_assert_eq!(opened.whole().rows, lists.iter().flatten().map(Vec::len).sum::<usize>());
        for (group, segment) in opened.groups.iter().zip(&segments) {
            prop_assert_eq!(&group.identity, &segment.identity);
            prop_assert_eq!(&group.origins[..], segment.origin.as_slice());
            prop_assert!(group.column_bytes.iter().all(|bytes| *bytes > 0));
            for index in 0..arrow_schema(&torch_trace::TABLE).fields().len() {
                let (in_file, in_memory) = (group.range(&torch_trace::TABLE, index), segment.range(index));
                prop_assert_eq!(in_file.1, in_memory.1);
                // A file may have no bounds for floats with NaN or a negative zero. Otherwise they are the same, to the bit.
                let column = index.checked_sub(IDENTITY.len()).map(|own| &torch_trace::TABLE.columns[own]);
                let unknown = in_file.0.is_none() && column.is_some_and(|column| column.kind == ColumnType::Float64);
                if !unknown {
                    prop_assert_eq!(format!("{:?}", in_file.0), format!("{:?}", in_memory.0));
                }
            }
        }
        // What is known of the file when it is written agrees with what it is opened with.
        prop_assert_eq!(written.groups.len(), opened.groups.len());
        prop_assert_eq!((written.bytes, written.whole().rows), (opened.bytes, opened.whole().rows));
        // Compared as text, because a NaN is not equal to itself.
        let all = concat(&read_file(&opened.path));
        prop_assert_eq!(format!("{:?}", all.columns()), format!("{:?}", in_memory(&segments).columns()));
    }
}

fn concat(batches: &[RecordBatch]) -> RecordBatch {
    arrow::compute::concat_batches(&arrow_schema(&torch_trace::TABLE), batches).unwrap()
}

/// A file without our notes, as another program writes it after it has read ours.
#[test]
fn a_file_of_someone_elses_is_known_by_its_footer() {
    let directory = tempfile::tempdir().unwrap();
    let rows = |step| vec![vec![Row { step, duration: Some(0.5), ..blank() }; 4]];
    let segments = segments(&[rows(3), rows(9)]);
    let path = directory.path().join("other.parquet");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, arrow_schema(&torch_trace::TABLE), None).unwrap();
    for segment in &segments {
        read(segment).iter().for_each(|batch| writer.write(batch).unwrap());
        writer.flush().unwrap();
    }
    writer.write(&in_memory(&segments)).unwrap();
    writer.close().unwrap();
    let opened = ParquetFile::open(&path, &torch_trace::TABLE).unwrap();
    assert_eq!(opened.whole().rows, 16);
    // One process in each of the first two row groups, both in the third.
    let ranks: Vec<Option<i32>> =
        opened.groups.iter().map(|group| group.identity.as_ref().and_then(|identity| identity.rank)).collect();
    assert_eq!(ranks, [Some(0), Some(1), None]);
    let index = |name| arrow_schema(&torch_trace::TABLE).index_of(name).unwrap();
    let range = |group: usize, name| format!("{:?}", opened.groups[group].range(&torch_trace::TABLE, index(name)));
    assert_eq!(range(2, "rank"), "(Some((Int32(0), Int32(1))), 0)");
    assert_eq!(range(2, "run"), "(None, 0)");
    assert_eq!(range(2, "step"), "(Some((Int64(3), Int64(9))), 0)");
    // Whether there is a NaN is not known.
    assert_eq!(range(0, "duration"), "(None, 0)");
    assert_eq!(range(0, "allocated"), "(None, 4)");
}

/// Files of an older or a newer version: a column that the file lacks is NULL, and one that is not known here is ignored.
#[test]
fn files_of_other_versions() {
    let directory = tempfile::tempdir().unwrap();
    let rows = in_memory(&segments(&[vec![vec![Row { step: 3, duration: Some(0.5), ..blank() }; 4]]]));
    let without = |name: &str| {
        let others: Vec<usize> =
            (0..rows.num_columns()).filter(|index| rows.schema().field(*index).name() != name).collect();
        let kept = rows.project(&others).unwrap();
        let novel: arrow::array::ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![7; rows.num_rows()]));
        let columns = kept.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
        let all = columns.into_iter().zip(kept.columns().iter().cloned()).chain([("novel".to_owned(), novel)]);
        arrow::array::RecordBatch::try_from_iter(all).unwrap()
    };
    let written = |name: &str, rows: &arrow::array::RecordBatch| {
        let path = directory.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).unwrap();
        writer.write(rows).unwrap();
        writer.close().unwrap();
        ParquetFile::open(&path, &torch_trace::TABLE)
    };
    let file = Arc::new(written("1.parquet", &without("duration")).unwrap());
    assert!(!file.ours, "never merged: what is not known here would be lost");
    let schema = arrow_schema(&torch_trace::TABLE);
    let indices = [schema.index_of("step").unwrap(), schema.index_of("duration").unwrap()];
    let projected = Arc::new(schema.project(&indices).unwrap());
    let read: Vec<_> = GroupReader::open(&file, 0, &indices, &projected, 100, |_| None, |_| ()).unwrap().collect();
    let [Ok(batch)] = &read[..] else { panic!("{read:?}") };
    assert_eq!((batch.num_rows(), batch.column(1).null_count()), (4, 4));
    assert_eq!(format!("{:?}", file.groups[0].range(&torch_trace::TABLE, indices[1])), "(None, 4)");
    // A column that can't be NULL must not be missing.
    let error = written("2.parquet", &without("stage")).unwrap_err();
    assert!(error.to_string().contains("2.parquet") && error.to_string().contains("no column stage"), "{error}");
}

#[test]
fn a_file_is_there_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let segments = segments(&[vec![vec![blank(); 4]]]);
    let names = || {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // A file that an earlier attempt left is overwritten.
    std::fs::write(directory.path().join(".0.parquet.writing"), "half").unwrap();
    write_file(directory.path(), "0.parquet", &torch_trace::TABLE, &segments, &|_| ()).unwrap();
    assert_eq!(names(), ["0.parquet"]);
    // The file can't replace a directory of its name.
    std::fs::create_dir_all(directory.path().join("1.parquet/full")).unwrap();
    let error = write_file(directory.path(), "1.parquet", &torch_trace::TABLE, &segments, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("1.parquet"), "{error}");
    assert_eq!(names(), ["0.parquet", "1.parquet"]);
    // A file that was cut short, and one of a later version, are errors that name it.
    let whole = std::fs::read(directory.path().join("0.parquet")).unwrap();
    let cut = directory.path().join("2.parquet");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let error = ParquetFile::open(&cut, &torch_trace::TABLE).unwrap_err();
    assert!(error.to_string().contains("2.parquet"), "{error}");
    let version = whole.windows(11).position(|bytes| bytes == b"\"version\":1").unwrap();
    let mut later = whole;
    later[version + 10] = b'9';
    std::fs::write(&cut, later).unwrap();
    let error = ParquetFile::open(&cut, &torch_trace::TABLE).unwrap_err();
    assert!(error.to_string().contains("another version of probe"), "{error}");
    // A file of another table lacks columns.
    let error = ParquetFile::open(&directory.path().join("0.parquet"), &steps::TABLE).unwrap_err();
    assert!(error.to_string().contains("column"), "{error}");
}

/// DuckDB, Polars and pyarrow read our files without conversion, and find the rows that we wrote.
#[test]
fn other_programs_read_them() {
    let Ok(python) = std::env::var("PROBE_TEST_PYTHON") else { return };
    let directory = tempfile::tempdir().unwrap();
    // Enough different floats that their dictionary overflows, so that every encoding is in the file.
    let rows: Vec<Row> = (0..20_000)
        .map(|n| Row {
            step: n / 100,
            ts: Time(1_767_225_600_000_000_000 + n * 1001),
            module: (n % 7 != 0).then_some(Text(3)),
            stage: Text(2),
            duration: (n % 5 != 0).then_some(n as f64 / 1024.0),
            host_duration: n as f64 / 1024.0,
            max_allocated: Some(f64::from(n as i32 % 3)),
            ..blank()
        })
        .collect();
    let segments = segments(&[vec![rows.clone()], vec![rows]]);
    let file = write_file(directory.path(), "0.parquet", &torch_trace::TABLE, &segments, &|_| ()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/it/sql/readers.py");
    let output = Command::new(python).arg(script).arg(&file.path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "40000 199 34284 32000 19.5302734375 390605.46875 1 1767225600020018999\n";
    let printed = String::from_utf8(output.stdout).unwrap();
    for (reader, line) in ["duckdb", "polars", "pyarrow"].iter().zip(printed.split_inclusive('\n')) {
        assert_eq!(line, format!("{reader} {expected}"));
    }
    assert_eq!(printed.lines().count(), 3);
}
