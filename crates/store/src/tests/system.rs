//! Tables that the collector fills have exactly the rows that it gave, and rows of other tables are refused.

use probe_common::error::Result;
use probe_proto::table::Table;
use probe_proto::tables::{drops, metrics};

use super::super::{RecordBatchBuilder, SystemTable, segments_beside, system_segment};
use super::*;

/// A table of the collector with these rows.
#[derive(Debug)]
struct Filled(&'static Table, RecordBatch);

impl SystemTable for Filled {
    fn table(&self) -> &'static Table {
        self.0
    }
    fn rows(&self) -> Result<RecordBatch> {
        Ok(self.1.clone())
    }
    fn beside(&self) -> Result<Vec<(Arc<ProcessIdentity>, RecordBatch)>> {
        Ok(vec![(identity(), self.1.clone())])
    }
}

fn record_batch(rows: &[Row]) -> RecordBatch {
    let mut builder = RecordBatchBuilder::new(&torch_trace::TABLE);
    rows.iter().for_each(|row| builder.push(*row));
    builder.finish(&strings().0).unwrap()
}

proptest! {
    #[test]
    fn rows_of_the_collector_are_scanned_as_they_are(rows in prop::collection::vec(row(), 1..60)) {
        let segments = segments_beside(&Filled(&torch_trace::TABLE, record_batch(&rows))).unwrap();
        assert_eq!(segments.len(), 1);
        check(&read(&segments[0]), &rows);
        check_ranges(&segments[0], &rows);
    }
}

#[test]
fn no_rows_are_no_segment_and_those_of_another_table_are_refused() {
    let none = RecordBatchBuilder::new(&drops::TABLE).finish(&StringTable::default()).unwrap();
    assert_eq!(none.num_columns(), drops::TABLE.columns.len());
    assert!(system_segment(&Filled(&drops::TABLE, none.clone())).unwrap().is_none());
    let error = system_segment(&Filled(&metrics::TABLE, none)).unwrap_err();
    assert!(error.to_string().contains("python.metrics: its rows have the columns of another table"), "{error}");
    let mut unknown = RecordBatchBuilder::new(&torch_trace::TABLE);
    unknown.push(Row { stage: Text(TEXTS.len() as u32), ..blank() });
    let error = unknown.finish(&strings().0).unwrap_err();
    assert!(error.to_string().contains("python.torch_trace"), "{error}");
}
