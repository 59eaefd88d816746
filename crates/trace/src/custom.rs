//! Rows of tables that the program declares, on their way into the [`RowBuffer`](crate::row_buffer::RowBuffer).

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum CustomValue {
    /// Not given, or None.
    Null,
    /// An integer, a boolean, nanoseconds since 1970.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text.
    Text(Box<str>),
}

/// A row that waits: when it was appended, and a value for each column that the program declared.
#[derive(Debug)]
pub struct CustomRow {
    /// The step that the row belongs to.
    pub step: i64,
    /// Nanoseconds since 1970.
    pub unix_ns: i64,
    /// The values, in the order of the table's columns after `step` and `ts`.
    pub values: Vec<CustomValue>,
}
