//! Cuts batches that are too large for a frame into pieces.

use probe_proto::MAX_FRAME;
use probe_proto::v1::{Batch, Column};
use prost::Message;

/// The largest number of rows of a batch. A multiple of 8, so that validity can be cut at whole bytes.
pub const MAX_BATCH_ROWS: usize = 65_536;

/// Cuts a batch into pieces of at most [`MAX_BATCH_ROWS`] rows that fit well within a frame, in order.
pub fn split_batch(batch: Batch) -> Vec<Batch> {
    let rows = batch.rows as usize;
    let bytes_per_row = batch.encoded_len().div_ceil(rows.max(1)).max(1);
    let fitting = (MAX_FRAME / 2 / bytes_per_row / 8 * 8).clamp(8, MAX_BATCH_ROWS);
    if rows <= fitting {
        return vec![batch];
    }
    let pieces = (0..rows).step_by(fitting).map(|start| {
        let end = (start + fitting).min(rows);
        Batch {
            seq: 0,
            table: batch.table,
            rows: (end - start) as u32,
            columns: batch.columns.iter().map(|column| slice(column, start, end)).collect(),
            recorded: batch.recorded - (rows - end) as u64,
        }
    });
    pieces.collect()
}

/// Rows `start..end` of a column; `start` is a multiple of 8.
fn slice(column: &Column, start: usize, end: usize) -> Column {
    let width = column.width as usize;
    let validity = match column.validity.is_empty() {
        true => column.validity.clone(),
        false => column.validity.slice(start / 8..end.div_ceil(8)),
    };
    Column {
        data: column.data.slice(start * width..end * width),
        validity,
        base: column.base,
        width: column.width,
        nulls: column.nulls,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use probe_proto::decode;
    use probe_proto::encode::BatchBuilder;
    use probe_proto::table::{ColumnType, Time};
    use probe_proto::tables::steps;

    fn row(step: i64) -> steps::Row {
        steps::Row {
            ts: Time(step * 1_000_000),
            duration: step as f64,
            other_time: 0.0,
            samples: (step % 3 != 0).then_some(step),
            ..steps::Row::of_a_second(step)
        }
    }

    fn batch(rows: i64) -> Batch {
        let mut builder = BatchBuilder::new(&steps::TABLE);
        (0..rows).for_each(|step| builder.push(row(step)));
        let mut batch = builder.take();
        batch.recorded = 1_000_000 + rows as u64;
        batch
    }

    #[test]
    fn a_cut_batch_has_the_same_rows_in_the_same_order() {
        let rows = MAX_BATCH_ROWS as i64 * 2 + 13;
        let pieces = split_batch(batch(rows));
        assert_eq!(pieces.iter().map(|p| p.rows as i64).collect::<Vec<_>>(), [65_536, 65_536, 13]);
        assert_eq!(pieces.iter().map(|p| p.recorded).collect::<Vec<_>>(), [1_065_536, 1_131_072, 1_131_085]);
        let samples_at = steps::TABLE.columns.iter().position(|column| column.name == "samples").unwrap();
        let mut expected = 0;
        for piece in &pieces {
            assert!(piece.encoded_len() < MAX_FRAME);
            let rows = piece.rows as usize;
            let step = decode::column("step", ColumnType::Int64, false, &piece.columns[0], rows, 0).unwrap();
            let samples =
                decode::column("samples", ColumnType::Int64, true, &piece.columns[samples_at], rows, 0).unwrap();
            let (decode::DecodedValues::Ints(step), decode::DecodedValues::Ints(sample)) =
                (&step.values, &samples.values)
            else {
                panic!("{step:?}")
            };
            for row in 0..rows {
                assert_eq!(step[row], expected);
                assert_eq!(samples.is_valid(row), expected % 3 != 0);
                assert!(!samples.is_valid(row) || sample[row] == expected);
                expected += 1;
            }
        }
        assert_eq!(expected, rows);
    }

    #[test]
    fn a_small_batch_is_not_cut() {
        assert_eq!(split_batch(batch(5)).len(), 1);
    }
}
