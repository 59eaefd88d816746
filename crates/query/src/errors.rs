//! Errors of queries, in words for people.

use std::borrow::Borrow;

use probe_common::error::{Error, Result};
use probe_proto::table::Table;

use super::bounds::QueryBounds;
use super::catalog::CATALOG;
use super::function_replacements;
use super::names::{comma_separated, nearest};
use super::views::views;
use datafusion::common::{Column, DataFusionError, SchemaError, TableReference};
use datafusion::sql::sqlparser::parser::ParserError;

/// An error of planning or running a query.
pub fn from_datafusion(error: impl Borrow<DataFusionError>) -> Error {
    in_words(error.borrow())
}

fn in_words(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => in_words(inner),
        DataFusionError::Shared(inner) => in_words(inner),
        DataFusionError::Collection(all) if !all.is_empty() => in_words(&all[0]),
        DataFusionError::External(inner) => from_external(inner.as_ref()),
        DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
            arrow::error::ArrowError::ExternalError(inner) => from_external(inner.as_ref()),
            inner => Error::failed(text(&inner.to_string())),
        },
        DataFusionError::SQL(error, _) => syntax(error),
        DataFusionError::SchemaError(error, _) => schema(error),
        DataFusionError::ResourcesExhausted(what) => Error::limit(text(what)),
        DataFusionError::NotImplemented(what) => not_supported(&text(what)),
        other => planning(&text(&other.message())),
    }
}

/// The error of a query for people, which names the limit where memory ran out.
pub(super) fn within(error: &DataFusionError, bounds: &QueryBounds) -> Error {
    match error.find_root() {
        // A query that is over gets no more memory, and operators report only that.
        DataFusionError::ResourcesExhausted(_) => bounds.passed().unwrap_or_else(|| bounds.too_much_memory()),
        _ => in_words(error),
    }
}

fn from_external(error: &(dyn std::error::Error + 'static)) -> Error {
    if let Some(error) = error.downcast_ref::<Error>() {
        error.clone()
    } else if let Some(error) = error.downcast_ref::<DataFusionError>() {
        in_words(error)
    } else {
        Error::failed(text(&error.to_string()))
    }
}

/// A message without the parts that are for DataFusion's developers only, and short enough for a gRPC status.
fn text(message: &str) -> String {
    let message = message.split("\n\nbacktrace:").next().unwrap_or(message).trim().trim_end_matches('.');
    match message.char_indices().nth(2000) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// An error of the planner.
fn planning(message: &str) -> Error {
    if message.starts_with("Projections require unique expression names") {
        let names: Vec<&str> =
            message.split("\" at position ").filter_map(|part| Some(part.split_once('"')?.1)).collect();
        let which = match names[..] {
            [one, other, ..] if one != other => format!(": {one} and {other}"),
            [one, ..] => format!(": {one}"),
            [] => String::new(),
        };
        return Error::failed(format!("two columns of the result would have the same name{which}"))
            .hint("rename one of them: … AS other_name");
    }
    if let Some((before, asked)) = message.split_once("No function matches the given name and argument types '") {
        return no_such_arguments(asked, reason(before));
    }
    if let Some((_, column)) = message.split_once("Column in SELECT must be in GROUP BY or an aggregate function")
        && let Some(column) = column.split('"').nth(1)
    {
        return Error::failed(format!("column {column} is neither in GROUP BY nor in an aggregate function"))
            .hint("GROUP BY ALL groups by every column that is in no aggregate function");
    }
    match message.strip_prefix("Invalid function '").and_then(|rest| rest.split_once('\'')) {
        Some((asked, meant)) => {
            no_function(asked, meant.trim_start_matches(".\nDid you mean ").trim_matches(['\'', '?']))
        }
        None => Error::failed(message.split(DEVELOPERS).next().unwrap_or(message).trim()),
    }
}

/// What DataFusion adds to errors that its developers do not expect.
const DEVELOPERS: &str = "\nThis issue was likely caused by a bug in DataFusion";

/// What a function says itself about arguments that it does not take.
fn reason(before: &str) -> Option<&str> {
    let (_, said) = before.split_once("coercion failed with: ")?;
    let said = said.strip_prefix("Error during planning: ").unwrap_or(said).trim_end().trim_end_matches('.');
    (!said.is_empty()).then_some(said)
}

/// The error for a function that does not take these arguments: `sum(Utf8View)'. …` and the ways in which it can be called, or
/// the `reason` that it gives.
fn no_such_arguments(asked: &str, reason: Option<&str>) -> Error {
    let (call, rest) = asked.split_once("'. ").unwrap_or((asked, ""));
    let call = call.replace("Utf8View", "text").replace("Utf8", "text");
    let ways = rest.split_once("Candidate functions:").map_or("", |(_, ways)| ways);
    let ways: Vec<&str> = ways.lines().map(str::trim).filter(|way| !way.is_empty()).collect();
    let error = Error::failed(format!("no function can be called as {call}"));
    if let Some(reason) = reason {
        return error.hint(reason);
    }
    if ways.is_empty() { error } else { error.hint(format!("available: {}", comma_separated(ways))) }
}

fn no_function(asked: &str, meant: &str) -> Error {
    let error = Error::failed(format!("there is no function '{asked}'"));
    match (function_replacements::replacement(asked), nearest(asked, [meant])) {
        (Some(replacement), _) => error.hint(replacement),
        (None, Some(near)) => error.hint(format!("did you mean {near}?")),
        (None, None) => error.hint("SHOW FUNCTIONS lists what there is"),
    }
}

fn not_supported(what: &str) -> Error {
    if what.starts_with("Physical plan does not support logical expression") {
        return Error::failed("not supported: a subquery that refers to the query around it in this way")
            .hint("write it as a join, or with a window function: row_number() OVER (PARTITION BY …)");
    }
    if what.starts_with("Unsupported ast node") {
        return Error::failed("not supported: the query has an expression of a kind that queries here do not have");
    }
    let error = Error::failed(format!("not supported: {what}"));
    match what.strip_prefix("Operator ").and_then(|rest| rest.split_whitespace().next()) {
        Some("DIV") => error.hint("a / b of whole numbers is a whole number"),
        _ => error,
    }
}

/// A syntax error: its line and column, and what the parser expected there.
fn syntax(error: &ParserError) -> Error {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        ParserError::RecursionLimitExceeded => {
            return Error::failed("the query is nested too deeply")
                .hint("WITH name AS (SELECT …) takes a query out of the brackets");
        }
    };
    let message = message.replace("found: EOF", "found: the end of the query");
    match message.rsplit_once(" at Line: ") {
        Some((what, position)) => {
            let position = position.replace(", Column: ", ", column ");
            Error::failed(format!("SQL syntax error at line {position}: {}", text(what)))
        }
        None => Error::failed(format!("SQL syntax error: {}", text(&message))),
    }
}

fn schema(error: &SchemaError) -> Error {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => no_column(field, valid_fields),
        SchemaError::AmbiguousReference { field } => {
            Error::failed(format!("column '{}' is in more than one of the tables", field.name))
                .hint(format!("say which: TABLE.{}", field.name))
        }
        SchemaError::DuplicateQualifiedField { name, .. } | SchemaError::DuplicateUnqualifiedField { name } => {
            Error::failed(format!("there are two columns '{name}' in one result")).hint(
                "rename one of them: … AS other_name. A CAST keeps the name of what it casts, so within a function it \
                 needs a name too: SELECT SUM(x) AS a, SUM(step) AS b FROM (SELECT *, CAST(step AS DOUBLE) AS x FROM …)",
            )
        }
    }
}

fn no_column(field: &Column, valid: &[Column]) -> Error {
    let names = || valid.iter().map(|column| column.name.as_str());
    let of = field.relation.as_ref().map(|table| format!(" in {table}")).unwrap_or_default();
    let error = Error::failed(format!("there is no column '{}'{of}", field.name));
    match nearest(&field.name, names()) {
        // The name is right, and the table before it is not.
        Some(near) if near == field.name => {
            let tables: Vec<String> = valid
                .iter()
                .filter(|column| column.name == near)
                .filter_map(|column| column.relation.as_ref().map(ToString::to_string))
                .collect();
            error.hint(format!("available in {}", comma_separated(tables.iter().map(String::as_str))))
        }
        Some(near) => error.hint(format!("did you mean {near}?")),
        None if valid.is_empty() => error,
        None => error.hint(format!("available: {}", comma_separated(names()))),
    }
}

/// The error for a run that the query names (`b.python.steps`) and that was not given to it.
pub(super) fn no_run(asked: &str, known: &[String]) -> Error {
    let others: Vec<&str> = known.iter().map(String::as_str).filter(|name| *name != CATALOG).collect();
    let error = Error::failed(format!("no run is called '{asked}' in this query"));
    match nearest(asked, others.iter().copied()) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error.hint(format!("name it with probe query --with {asked}=ENDPOINT")),
    }
}

/// The error for a table that does not exist.
pub(super) fn no_table(asked: &TableReference, tables: &[&'static Table]) -> Error {
    let relations = || tables.iter().copied().chain(views());
    let name = asked.table();
    let lower = name.to_lowercase();
    let file = name.contains('/')
        || name.contains('\\')
        || [".parquet", ".csv", ".json", ".arrow", ".ndjson"].iter().any(|end| lower.ends_with(end));
    if file {
        return Error::denied(format!("'{name}' is not a table, and queries can't read files")).hint(EVERY_TABLE);
    }
    let error = Error::failed(format!("there is no table '{asked}'"));
    if let Some(same) = relations().find(|table| table.name == lower) {
        return error.hint(format!("did you mean {}?", same.full_name()));
    }
    let full: Vec<String> = relations().map(|table| table.full_name()).collect();
    let near = nearest(&asked.to_string(), full.iter().map(String::as_str)).or_else(|| {
        let near = nearest(name, relations().map(|table| table.name))?;
        full.iter().find(|full| full.ends_with(&format!(".{near}"))).map(String::as_str)
    });
    match near {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error.hint(EVERY_TABLE),
    }
}

/// The hint where no name is near: there are too many names to list them all.
const EVERY_TABLE: &str = "SHOW TABLES lists what there is, and so does probe tables";

/// Shorthand for mapping.
pub(super) fn or_say<T>(result: std::result::Result<T, DataFusionError>) -> Result<T> {
    result.map_err(|error| from_datafusion(&error))
}
