//! Writers of rows for people and programs: one file a format, each written batch by batch in bounded memory.

mod arrow;
mod cell;
pub mod chart;
mod column;
mod csv;
mod file;
mod format;
mod json;
mod json_rows;
mod layout;
mod names;
mod number;
mod parquet;
mod print;
mod records;
pub mod rows;
mod table;
mod terminal;
mod writer;

pub use self::file::UnfinishedFile;
pub use self::format::{OutputFormat, TABLE_ROWS};
pub use self::print::{PrintedRows, feed, print, save, unless_closed};
pub use self::terminal::{RowLayout, Terminal};
pub use self::writer::{AnswerWriter, BoxedOutput};
