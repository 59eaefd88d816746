//! `--format json-rows`: for programs that have no Arrow. A line says the columns and their types, then each row is an
//! array on a line, and the last line says how many rows there were: without it the answer broke off.
//!
//! Values are exact: times and durations are whole numbers of their unit (times since 1970), floats are NaN, Infinity
//! and -Infinity where they are, decimals are text, bytes are hexadecimal, and a struct is an array of its fields.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::json::StructMode;
use arrow::json::writer::{
    Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, Writer as ArrowWriter, WriterBuilder,
};
use serde_json::{Value, json};

use super::names::{distinct, renamed};
use super::writer::{AnswerWriter, BoxedOutput, io_error};

/// Writes the format.
pub(super) struct JsonRowsWriter<'a> {
    writer: ArrowWriter<BoxedOutput<'a>, LineDelimited>,
    schema: SchemaRef,
    rows: usize,
}

impl<'a> JsonRowsWriter<'a> {
    /// Writes the line of columns at once, so that an answer without rows has its columns.
    pub(super) fn new(schema: &SchemaRef, mut out: BoxedOutput<'a>) -> io::Result<Self> {
        let schema = distinct(schema);
        let columns: Vec<Value> = schema.fields().iter().map(described).collect();
        writeln!(out, "{}", json!({ "columns": columns }))?;
        let builder =
            WriterBuilder::new().with_struct_mode(StructMode::ListOnly).with_encoder_factory(Arc::new(ExactEncoders));
        Ok(Self { writer: builder.build(out), schema, rows: 0 })
    }
}

impl AnswerWriter for JsonRowsWriter<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let batch = renamed(batch, &self.schema)?;
        self.rows += batch.num_rows();
        self.writer.write(&batch).map_err(io_error)?;
        self.writer.get_mut().flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.finish().map_err(io_error)?;
        let out = self.writer.get_mut();
        writeln!(out, "{}", json!({ "rows": self.rows }))?;
        out.flush()
    }
}

/// A column as the first line has it.
fn described(field: &FieldRef) -> Value {
    let mut described = kind(field.data_type());
    described["name"] = json!(field.name());
    described
}

fn kind(kind: &DataType) -> Value {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    let list = |item: &Field| json!({ "type": "list", "item": self::kind(item.data_type()) });
    match kind {
        DataType::Null => json!({ "type": "null" }),
        DataType::Boolean => json!({ "type": "bool" }),
        kind if kind.is_integer() => json!({ "type": "int" }),
        kind if kind.is_floating() => json!({ "type": "float" }),
        DataType::Timestamp(time_unit, zone) => json!({ "type": "timestamp", "unit": unit(time_unit), "zone": zone }),
        DataType::Duration(time_unit) => json!({ "type": "duration", "unit": unit(time_unit) }),
        DataType::Date32 | DataType::Date64 => json!({ "type": "date" }),
        DataType::Time32(_) | DataType::Time64(_) => json!({ "type": "time" }),
        kind if kind.is_decimal() => json!({ "type": "decimal" }),
        kind if kind.is_binary() => json!({ "type": "binary" }),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => list(item),
        DataType::Struct(fields) => {
            json!({ "type": "struct", "fields": fields.iter().map(described).collect::<Vec<_>>() })
        }
        DataType::Dictionary(_, values) => self::kind(values),
        DataType::Map(..) => json!({ "type": "map" }),
        // Intervals are text too: they have no number in one unit.
        _ => json!({ "type": "text" }),
    }
}

/// Encodes exactly the values that the other JSON formats do not keep.
#[derive(Debug)]
struct ExactEncoders;

impl EncoderFactory for ExactEncoders {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let as_type = |kind| cast(array, &kind);
        let encoder: Box<dyn Encoder> = match array.data_type() {
            kind if kind.is_floating() => Box::new(FloatEncoder(as_type(DataType::Float64)?)),
            DataType::Timestamp(..) | DataType::Duration(_) => Box::new(IntegerEncoder(as_type(DataType::Int64)?)),
            kind if kind.is_decimal() => Box::new(TextEncoder(as_type(DataType::Utf8)?)),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

struct FloatEncoder(ArrayRef);

impl Encoder for FloatEncoder {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let value = self.0.as_primitive::<Float64Type>().value(row);
        // A write to memory does not fail.
        let _ = match value {
            value if value.is_nan() => out.write_all(b"NaN"),
            f64::INFINITY => out.write_all(b"Infinity"),
            f64::NEG_INFINITY => out.write_all(b"-Infinity"),
            value => serde_json::to_writer(out, &value).map_err(io::Error::from),
        };
    }
}

struct IntegerEncoder(ArrayRef);

impl Encoder for IntegerEncoder {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let _ = write!(out, "{}", self.0.as_primitive::<Int64Type>().value(row));
    }
}

struct TextEncoder(ArrayRef);

impl Encoder for TextEncoder {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let _ = serde_json::to_writer(out, self.0.as_string::<i32>().value(row));
    }
}
