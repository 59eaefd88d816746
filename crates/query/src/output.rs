//! Converts the rows that leave the engine to the same plain types whether they came from memory, from files or over the network.
//!
//! String views and dictionaries are how rows are kept and computed with. Not every client knows them, and a batch of
//! views drags the string data of a whole connection over the wire; so text leaves as Utf8.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};

use super::made::array_bytes;

/// The most bytes of one batch that leaves, except where a single row has more.
const MAX_BATCH_BYTES: usize = 512 << 10;

/// The schema that a client sees. Every column may be NULL: the planner's and the executor's opinions on that differ,
/// and clients compare the schema that was announced with that of the batches.
pub fn plain_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| Field::new(field.name(), plain(field.data_type()), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A schema with other names of its columns.
pub(super) fn with_names(schema: &Schema, names: &[String]) -> SchemaRef {
    let fields = schema.fields().iter().zip(names).map(|(field, name)| field.as_ref().clone().with_name(name));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The batches of `stream`, converted to `schema`.
pub(super) fn plain_stream(stream: SendableRecordBatchStream, schema: SchemaRef) -> SendableRecordBatchStream {
    let target = Arc::clone(&schema);
    let pieces = stream.map_ok(|batch| futures::stream::iter(pieces(&batch).map(Ok::<_, DataFusionError>)));
    let batches = pieces.try_flatten().map(move |batch| Ok(plain_batch(&batch?, &target)?));
    Box::pin(RecordBatchStreamAdapter::new(schema, batches.map(|batch: Result<_, DataFusionError>| batch)))
}

/// Splits a batch into pieces that are no larger than [`MAX_BATCH_BYTES`] once converted, except where a single row is larger: many views
/// may show one text.
fn pieces(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + use<> {
    let bytes: usize = batch.columns().iter().map(|column| array_bytes(column.as_ref())).sum();
    let (batch, all) = (batch.clone(), batch.num_rows());
    let rows = (all / (bytes / MAX_BATCH_BYTES + 1)).max(1);
    // An empty batch gives one piece, too.
    (0..all.max(1)).step_by(rows).map(move |begin| batch.slice(begin, rows.min(all - begin)))
}

fn plain_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let column = |(array, field): (&ArrayRef, &Arc<Field>)| {
        if array.data_type() == field.data_type() { Ok(Arc::clone(array)) } else { cast(array, field.data_type()) }
    };
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

fn plain(kind: &DataType) -> DataType {
    let field = |field: &Arc<Field>| Arc::new(field.as_ref().clone().with_data_type(plain(field.data_type())));
    match kind {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => plain(values),
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}
