//! Declarations of tables: [`Table`], [`Column`] and the [`table!`](crate::table!) macro, which makes both and a row type.

use crate::column_builder::ColumnBuilder;
pub use crate::v1::ColumnType;

/// The declaration of a table, for the documentation, the agent and the collector.
#[derive(Debug)]
pub struct Table {
    /// SQL schema: `python`, `probe`.
    pub schema: &'static str,
    /// SQL name within the schema.
    pub name: &'static str,
    /// The table's purpose, in one sentence.
    pub doc: &'static str,
    /// Which side fills the table.
    pub source: TableSource,
    /// The table's own columns; rows that came from an agent also have [`IDENTITY`].
    pub columns: &'static [Column],
    /// Column names in the order in which rows arrive sorted.
    pub sort: &'static [&'static str],
    /// Queries worth starting from.
    pub examples: &'static [&'static str],
}

impl Table {
    /// `schema.name`, as in SQL and on the wire.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// All columns as SQL sees them: identity first for tables filled by agents.
    pub fn all_columns(&self) -> impl Iterator<Item = &'static Column> {
        let identity: &'static [Column] = match self.source {
            TableSource::Agent => IDENTITY,
            TableSource::Collector => &[],
        };
        identity.iter().chain(self.columns)
    }

    /// The schema of this table for `Hello.tables`.
    pub fn wire_schema(&self) -> crate::v1::TableSchema {
        let columns = self.columns.iter();
        crate::v1::TableSchema {
            name: self.full_name(),
            columns: columns
                .map(|c| crate::v1::ColumnSchema { name: c.name.to_owned(), r#type: c.kind as i32 })
                .collect(),
        }
    }
}

/// Which side fills a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableSource {
    /// Agents, over the wire; rows carry the identity columns.
    Agent,
    /// The collector itself.
    Collector,
}

/// A column of a [`Table`].
#[derive(Debug)]
pub struct Column {
    /// SQL name.
    pub name: &'static str,
    /// Type on the wire and in SQL.
    pub kind: ColumnType,
    /// Whether the column can be NULL.
    pub nullable: bool,
    /// Unit of the values; empty if they have no unit.
    pub unit: &'static str,
    /// The column's meaning, in one sentence.
    pub doc: &'static str,
}

/// Columns that say which process a row came from. The collector adds them to every row of an agent, from the agent's Hello.
pub static IDENTITY: &[Column] = &[
    Column {
        name: "run",
        kind: ColumnType::Text,
        nullable: false,
        unit: "",
        doc: "The run, with its number if the name was used before: gpt, gpt@2.",
    },
    Column {
        name: "host",
        kind: ColumnType::Text,
        nullable: false,
        unit: "",
        doc: "Host name of the machine the process runs on.",
    },
    Column { name: "pid", kind: ColumnType::Int32, nullable: false, unit: "", doc: "Process id on that host." },
    Column {
        name: "rank",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "",
        doc: "Global rank; NULL without a process group.",
    },
    Column {
        name: "local_rank",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "",
        doc: "Rank within its host; NULL when the launcher does not set it.",
    },
    Column {
        name: "world_size",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "ranks",
        doc: "Ranks in the default process group; NULL without one.",
    },
    Column { name: "role", kind: ColumnType::Text, nullable: false, unit: "", doc: "What the process is: trainer." },
];

/// A value that a row can hold, with its SQL type and its packing on the wire.
pub trait Cell {
    /// The type on the wire and in SQL.
    const KIND: ColumnType;
    /// Whether the value can be NULL.
    const NULLABLE: bool = false;
    /// Appends the value to its column.
    fn put(self, column: &mut ColumnBuilder);
}

/// An id in the string table of the rows' builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text(pub u32);

/// Nanoseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Cell for i32 {
    const KIND: ColumnType = ColumnType::Int32;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_int(i64::from(self));
    }
}
impl Cell for i64 {
    const KIND: ColumnType = ColumnType::Int64;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_int(self);
    }
}
impl Cell for f64 {
    const KIND: ColumnType = ColumnType::Float64;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_float(self);
    }
}
impl Cell for bool {
    const KIND: ColumnType = ColumnType::Bool;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_int(i64::from(self));
    }
}
impl Cell for Text {
    const KIND: ColumnType = ColumnType::Text;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_int(i64::from(self.0));
    }
}
impl Cell for Time {
    const KIND: ColumnType = ColumnType::Timestamp;
    fn put(self, column: &mut ColumnBuilder) {
        column.put_int(self.0);
    }
}
impl<T: Cell> Cell for Option<T> {
    const KIND: ColumnType = T::KIND;
    const NULLABLE: bool = true;
    fn put(self, column: &mut ColumnBuilder) {
        match self {
            Some(value) => value.put(column),
            None => column.put_null(),
        }
    }
}

/// A row type that [`table!`](crate::table!) generates.
pub trait Row: Copy {
    /// The row's table.
    const TABLE: &'static Table;
    /// Appends every cell to its column, in order.
    fn put(self, columns: &mut [ColumnBuilder]);
}

/// Declares a table and its row type in one text: `pub static TABLE` and `pub struct Row`.
#[macro_export]
macro_rules! table {
    (
        $schema:ident . $name:ident, $source:ident, $doc:literal;
        sort: [$($sort:ident),*];
        examples: [$($example:literal),* $(,)?];
        $($column:ident : $type:ty, $unit:literal, $column_doc:literal;)*
    ) => {
        #[doc = $doc]
        pub static TABLE: $crate::table::Table = $crate::table::Table {
            schema: stringify!($schema),
            name: stringify!($name),
            doc: $doc,
            source: $crate::table::TableSource::$source,
            columns: &[$($crate::table::Column {
                name: stringify!($column),
                kind: <$type as $crate::table::Cell>::KIND,
                nullable: <$type as $crate::table::Cell>::NULLABLE,
                unit: $unit,
                doc: $column_doc,
            }),*],
            sort: &[$(stringify!($sort)),*],
            examples: &[$($example),*],
        };

        #[doc = $doc]
        #[derive(Debug, Clone, Copy)]
        pub struct Row {
            $(#[doc = $column_doc] pub $column: $type,)*
        }

        impl $crate::table::Row for Row {
            const TABLE: &'static $crate::table::Table = &TABLE;
            fn put(self, columns: &mut [$crate::column_builder::ColumnBuilder]) {
                let mut columns = columns.iter_mut();
                $(if let Some(column) = columns.next() { $crate::table::Cell::put(self.$column, column); })*
            }
        }
    };
}
