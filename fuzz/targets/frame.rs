//! Frames of an agent, of any bytes. Each target has a file, so that this one builds without the query engine.

use probe_proto::decode::{self, DecodedValues, ReceivedStrings};
use probe_proto::table::ColumnType;
use probe_proto::tables::TABLES;
use probe_proto::v1::{AgentFrame, agent_frame::Frame};
use prost::Message;

/// Number of strings that a connection's table has before a batch arrives.
const STRINGS: usize = 3;

/// Decodes any bytes as a frame of an agent: its messages, and every column of a batch as every table that it may belong to.
pub fn frame(data: &[u8]) {
    let Ok(frame) = AgentFrame::decode(data) else { return };
    match frame.frame {
        Some(Frame::Batch(batch)) => {
            let Ok(rows) = decode::rows(&batch) else { return };
            assert!(rows <= probe_proto::MAX_ROWS);
            for table in TABLES.iter().filter(|table| table.columns.len() == batch.columns.len()) {
                for (column, packed) in table.columns.iter().zip(&batch.columns) {
                    let unpacked = decode::column(column.name, column.kind, column.nullable, packed, rows, STRINGS);
                    let Ok(unpacked) = unpacked else { continue };
                    assert!(unpacked.validity.as_ref().is_none_or(|bits| bits.len() == rows.div_ceil(8)));
                    match &unpacked.values {
                        DecodedValues::Nulls => assert!(column.nullable || rows == 0),
                        DecodedValues::Constant(value) => assert!(rows == 0 || fits(column.kind, *value)),
                        DecodedValues::Ints(values) => {
                            assert_eq!(values.len(), rows);
                            let valid = values.iter().enumerate().filter(|(row, _)| unpacked.is_valid(*row));
                            valid.for_each(|(_, value)| assert!(fits(column.kind, *value)));
                        }
                        DecodedValues::Floats(bytes) => assert_eq!(bytes.len(), 8 * rows),
                    }
                }
            }
        }
        Some(Frame::Strings(strings)) => {
            let (mut received, sent) = (ReceivedStrings::default(), strings.values.len());
            if received.extend(strings).is_ok() {
                assert_eq!(received.values().len(), sent);
            }
        }
        _ => {}
    }
}

fn fits(kind: ColumnType, value: i64) -> bool {
    match kind {
        ColumnType::Int32 => i32::try_from(value).is_ok(),
        ColumnType::Bool => value == 0 || value == 1,
        ColumnType::Text => (0..STRINGS as i64).contains(&value),
        _ => true,
    }
}
