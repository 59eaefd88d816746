//! Pages of a row group: what is said of their rows holds, and exactly the rows of those that are needed are read.

use arrow::compute::concat_batches;
use datafusion::common::ScalarValue;

use super::*;
use crate::file_writer::write_file;
use crate::{GroupReader, ParquetFile, RowBlock};

/// Rows of three pages: floats that are NULL in one page and in part of another, times, and an integer that grows.
fn rows() -> Vec<Row> {
    let row = |number: i64| Row {
        step: number / 100,
        ts: Time(1_000 * number),
        duration: (number % 7 != 0).then(|| f64::from((number * 7919 % 10_007) as i32) / 1024.0),
        total_duration: (!(20_000..41_000).contains(&number)).then_some(0.5),
        host_duration: if number == 30_000 { f64::NAN } else { number as f64 },
        ..blank()
    };
    (0..45_000).map(row).collect()
}

#[test]
fn the_rows_of_the_blocks_that_are_needed_are_read_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let (_, mut strings) = strings();
    let decoded = BatchRows::decode(&mapping(), &encode(&rows()), &mut strings).unwrap();
    let segment = Arc::new(Segment::new(Some(identity()), None, decoded, 0));
    write_file(directory.path(), "0.parquet", &torch_trace::TABLE, &[Arc::clone(&segment)], &|_| ()).unwrap();
    let file = Arc::new(ParquetFile::open(&directory.path().join("0.parquet"), &torch_trace::TABLE).unwrap());

    let schema = arrow_schema(&torch_trace::TABLE);
    let names = ["pid", "step", "module", "ts", "duration", "total_duration", "host_duration", "allocated"];
    let indices = names.map(|name| schema.index_of(name).unwrap());
    let projected = Arc::new(schema.project(&indices).unwrap());
    let all = concat_batches(&schema, &read(&segment)).unwrap().project(&indices).unwrap();
    let mut bytes_read = Vec::new();
    for wanted in 0..8_u8 {
        let (mut blocks, mut keep) = (Vec::new(), Vec::new());
        let choose = |found: &[RowBlock]| {
            blocks = found.to_vec();
            keep = (0..found.len()).map(|index| wanted & 1 << (index % 3) != 0).collect();
            Some(keep.clone())
        };
        let mut bytes = 0;
        let reader = GroupReader::open(&file, 0, &indices, &projected, 4096, choose, |more| bytes += more).unwrap();
        let found: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
        // Pages have 20,000 rows or a few more, and one ends where a column's dictionary has grown too large.
        assert!((3..=9).contains(&blocks.len()), "{}", blocks.len());
        let (mut begin, mut expected) = (0, Vec::new());
        for (block, keep) in blocks.iter().zip(&keep) {
            let part = all.slice(begin, block.rows);
            begin += block.rows;
            for (column, index) in indices.iter().enumerate() {
                let (bounds, nulls) = block.range(&file.groups[0], &torch_trace::TABLE, *index);
                let values = part.column(column);
                assert!(nulls.is_none_or(|nulls| nulls == values.null_count()), "{}: {nulls:?}", names[column]);
                let is_within = |row: usize, (low, high): &(ScalarValue, ScalarValue)| {
                    let value = ScalarValue::try_from_array(values, row).unwrap();
                    value.is_null() || (*low <= value && value <= *high)
                };
                if let Some(bounds) = &bounds {
                    assert!((0..part.num_rows()).all(|row| is_within(row, bounds)), "{}: {bounds:?}", names[column]);
                }
                let is_known = !matches!(names[column], "module" | "host_duration" | "allocated");
                // Of a part of a page in which some values are NULL it is not known how many.
                let some_are_null = matches!(names[column], "duration" | "total_duration");
                assert!(!is_known || some_are_null || nulls.is_some(), "{}", names[column]);
                let has_values = values.null_count() < block.rows;
                assert!(bounds.is_some() || !is_known || !has_values, "{}", names[column]);
                assert!(bounds.is_none() || is_known, "{}: {bounds:?}", names[column]);
            }
            expected.extend(keep.then_some(part));
        }
        assert_eq!(begin, all.num_rows());
        let text = |batches: &[RecordBatch]| format!("{:?}", concat_batches(&projected, batches).unwrap().columns());
        assert_eq!(text(&found), text(&expected), "{keep:?}");
        assert_eq!(bytes > 0, wanted != 0, "where no block is needed nothing is read");
        bytes_read.push(bytes);
    }
    assert!([1, 2, 4].iter().all(|wanted| bytes_read[*wanted] < bytes_read[7]), "{bytes_read:?}");
}
