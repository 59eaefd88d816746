//! Column names for formats that find a column by its name.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};

use super::writer::io_error;

/// A schema whose column names are distinct. A second column of one name (SELECT a.step, b.step …) would overwrite the first
/// in an object, or make a file that many readers refuse: it becomes `step_2`.
pub(super) fn distinct(schema: &SchemaRef) -> SchemaRef {
    let mut taken: HashSet<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut seen = HashSet::new();
    let fields = schema.fields().iter().map(|field| {
        if seen.insert(field.name().clone()) {
            return Arc::clone(field);
        }
        let mut number = 2;
        let name = loop {
            let name = format!("{}_{number}", field.name());
            if taken.insert(name.clone()) {
                break name;
            }
            number += 1;
        };
        Arc::new(Field::clone(field).with_name(name))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A batch under the names of `schema`, whose types are its own.
pub(super) fn renamed(batch: &RecordBatch, schema: &SchemaRef) -> io::Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options).map_err(io_error)
}
