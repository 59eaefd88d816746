//! `probe [ENDPOINT] tables [NAME]`: tables and views, from the declarations in `probe-proto` and `probe-query`.

use std::fmt::Write;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use probe_client::{Client, collect};
use probe_common::error::{Error, Result};
use probe_proto::table::{Column, ColumnType, Table};
use probe_proto::tables::TABLES;
use probe_query::relations;

use super::connect::{ConnectOptions, with_client};
use super::status::CommandStatus;
use crate::output::{self, OutputFormat, Terminal, rows};

/// List tables, or the columns of one
///
/// This works without a live run. With an ENDPOINT it also shows the number of rows of each table, and the tables that
/// the program declared.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] tables [OPTIONS] [NAME]",
    after_help = "Examples:
  probe tables
  probe tables python.torch_trace
  probe gpt tables"
)]
pub(super) struct Args {
    /// A table: python.torch_trace, or torch_trace
    name: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    match (&args.name, endpoint) {
        (Some(name), None) => one(find_by(name, &[])?, args.format).map(|()| 0),
        (Some(name), _) if find_by(name, &[]).is_ok() => one(find_by(name, &[])?, args.format).map(|()| 0),
        (Some(name), endpoint) => with_client(endpoint, &args.connection, async |mut client: Client, _| {
            let own = client.declared().await?;
            one(find_by(name, &own)?, args.format).map(|()| 0)
        }),
        (None, None) => all(None, &[], args.format).map(|()| 0),
        (None, endpoint) => with_client(endpoint, &args.connection, async |mut client: Client, _| {
            let own = client.declared().await?;
            let counts = count(&mut client, &own).await?;
            all(Some(counts), &own, args.format).map(|()| 0)
        }),
    }
}

/// A table by its full name, or by its own name where only one table has it. `own` are the tables of the run's program.
pub(super) fn find_by(name: &str, own: &[&'static Table]) -> Result<&'static Table> {
    let requested = name.to_lowercase();
    let relations = || relations().chain(own.iter().copied());
    let found = relations()
        .find(|table| table.full_name() == requested)
        .or_else(|| relations().find(|table| table.name == requested));
    found.ok_or_else(|| {
        let near = |table: &&Table| {
            strsim::damerau_levenshtein(&table.full_name(), &requested)
                .min(strsim::damerau_levenshtein(table.name, &requested))
        };
        let nearest = relations().min_by_key(near).filter(|table| near(table) <= 5);
        let hint = match nearest {
            Some(table) => format!("did you mean {}; probe tables lists them all", table.full_name()),
            None => "probe tables lists them all".to_owned(),
        };
        Error::usage(format!("there is no table '{name}'")).hint(hint)
    })
}

/// The number of rows of every table: the declared ones first, then `own`.
pub(super) async fn count(client: &mut Client, own: &[&'static Table]) -> Result<Vec<i64>> {
    let counts = TABLES
        .iter()
        .chain(own)
        .enumerate()
        .map(|(index, table)| format!("SELECT {index} AS position, COUNT(*) AS rows FROM {}", table.full_name()));
    let sql = format!("{} ORDER BY position", counts.collect::<Vec<_>>().join(" UNION ALL "));
    let (_, batches) = collect(client.query(&sql).await?).await?;
    let counted = |batch: &arrow::array::RecordBatch| batch.column(1).as_primitive::<Int64Type>().values().to_vec();
    Ok(batches.iter().flat_map(|batch| counted(batch)).collect())
}

fn all(counts: Option<Vec<i64>>, own: &[&'static Table], format: OutputFormat) -> Result<()> {
    rows::show(listed(counts, own), format)
}

/// All tables and views, with the rows that the tables have. `own` are the tables of the run's program; they stand
/// after ours and before the views.
pub(super) fn listed(counts: Option<Vec<i64>>, own: &[&'static Table]) -> Vec<(&'static str, ArrayRef)> {
    let ours = TABLES.len();
    let relations = || relations().take(ours).chain(own.iter().copied()).chain(relations().skip(ours));
    let mut columns = vec![("table", rows::text(relations().map(|table| Some(table.full_name()))))];
    if let Some(counts) = counts {
        // The rows of a view are not counted: counting them would run it.
        let counts = relations().enumerate().map(|(index, _)| counts.get(index).copied());
        columns.push(("rows", std::sync::Arc::new(counts.collect::<Int64Array>())));
    }
    columns.push(("what", rows::text(relations().map(|table| Some(table.doc)))));
    columns
}

fn one(table: &'static Table, format: OutputFormat) -> Result<()> {
    if format == OutputFormat::Table {
        let mut text = describe(table, Terminal::of_stdout().width);
        text.push_str("\nExamples:\n");
        for example in table.examples {
            let _ = writeln!(text, "  probe query \"{example}\"");
        }
        return output::unless_closed(std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())).map(|_| ());
    }
    let columns = || table.all_columns();
    rows::show(
        vec![
            ("column", rows::text(columns().map(|column| Some(column.name)))),
            ("type", rows::text(columns().map(|column| Some(type_name(column))))),
            (
                "nullable",
                std::sync::Arc::new(arrow::array::BooleanArray::from_iter(
                    columns().map(|column| Some(column.nullable)),
                )),
            ),
            ("unit", rows::text(columns().map(|column| (!column.unit.is_empty()).then_some(column.unit)))),
            ("what", rows::text(columns().map(|column| Some(column.doc)))),
        ],
        format,
    )
}

/// A table as people read it: its sentence, and a line a column, the sentences wrapped to `width`.
pub(super) fn describe(table: &'static Table, width: Option<usize>) -> String {
    let longest = |field: fn(&'static Column) -> &'static str| {
        table.all_columns().map(|column| field(column).len()).max().unwrap_or_default()
    };
    let (names, types, units) = (longest(|column| column.name), longest(type_name), longest(|column| column.unit));
    let before = names + types + units + 6;
    let room = width.map(|width| width.saturating_sub(before).max(24));
    let mut out = format!("{}\n", table.full_name());
    for line in wrap(table.doc, width) {
        let _ = writeln!(out, "{line}");
    }
    out.push('\n');
    for column in table.all_columns() {
        let mut lines = wrap(column.doc, room).into_iter();
        let first = lines.next().unwrap_or_default();
        let _ = writeln!(out, "{:names$}  {:types$}  {:units$}  {first}", column.name, type_name(column), column.unit);
        for line in lines {
            let _ = writeln!(out, "{:before$}{line}", "");
        }
    }
    out
}

/// Text in lines of at most `width`; one line without a width.
fn wrap(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].chars().count() + 1 + word.chars().count() <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// A column's type in SQL's words.
pub(super) fn type_name(column: &Column) -> &'static str {
    match column.kind {
        ColumnType::Int32 => "int",
        ColumnType::Int64 => "bigint",
        ColumnType::Float64 => "double",
        ColumnType::Bool => "boolean",
        ColumnType::Text => "text",
        ColumnType::Timestamp => "timestamp",
        ColumnType::Unspecified => "",
    }
}
