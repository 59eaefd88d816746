//! The values of one column, packed for the wire.

use bytes::Bytes;

use crate::v1::{self, ColumnType};

/// The values of one column, until they are packed as a [`v1::Column`].
#[derive(Debug)]
pub struct ColumnBuilder {
    pub(crate) kind: ColumnType,
    /// Integer-like values, or the bits of floats.
    pub(crate) values: Vec<i64>,
    /// Row numbers of NULLs.
    pub(crate) nulls: Vec<u32>,
}

impl ColumnBuilder {
    pub(crate) fn new(kind: ColumnType) -> Self {
        Self { kind, values: Vec::new(), nulls: Vec::new() }
    }

    /// Appends an integer, a boolean, a timestamp or a string id.
    pub fn put_int(&mut self, value: i64) {
        self.values.push(value);
    }

    /// Appends a float.
    pub fn put_float(&mut self, value: f64) {
        self.values.push(value.to_bits() as i64);
    }

    /// Appends a NULL.
    pub fn put_null(&mut self) {
        self.nulls.push(self.values.len() as u32);
        // A NULL repeats the value before it, which needs no wider packing.
        self.values.push(self.values.last().copied().unwrap_or_default());
    }

    pub(crate) fn take(&mut self, rows: usize) -> v1::Column {
        debug_assert_eq!(self.values.len(), rows);
        let values = std::mem::take(&mut self.values);
        let nulls = std::mem::take(&mut self.nulls);
        if nulls.len() == rows {
            return v1::Column { nulls: true, ..Default::default() };
        }
        let mut validity = Vec::new();
        if !nulls.is_empty() {
            validity = vec![0xff_u8; rows.div_ceil(8)];
            for row in nulls {
                validity[row as usize / 8] &= !(1 << (row % 8));
            }
        }
        let (base, width, data) = match self.kind {
            ColumnType::Float64 => (0, 8, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            _ => pack(&values),
        };
        v1::Column { data: Bytes::from(data), validity: Bytes::from(validity), base, width, nulls: false }
    }
}

/// Packs integers as offsets from their smallest, in as few bytes each as the largest needs.
fn pack(values: &[i64]) -> (i64, u32, Vec<u8>) {
    let base = values.iter().copied().min().unwrap_or_default();
    let largest = values.iter().map(|v| v.wrapping_sub(base) as u64).max().unwrap_or_default();
    let offsets = values.iter().map(|v| v.wrapping_sub(base) as u64);
    let (width, data) = match largest {
        0 => (0, Vec::new()),
        1..=0xff => (1, offsets.map(|v| v as u8).collect()),
        0x100..=0xffff => (2, offsets.flat_map(|v| (v as u16).to_le_bytes()).collect()),
        0x1_0000..=0xffff_ffff => (4, offsets.flat_map(|v| (v as u32).to_le_bytes()).collect()),
        _ => (8, offsets.flat_map(u64::to_le_bytes).collect()),
    };
    (base, width, data)
}
