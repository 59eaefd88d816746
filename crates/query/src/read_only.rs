//! The parser of queries, which refuses every statement that would not only read.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use datafusion::common::DataFusionError;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement as Sql, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::Tokenizer;
use probe_common::error::{Error, Result};

use super::errors::from_datafusion;
use super::json::operators;
use super::text_complexity::{self, MAX_NESTING};
use super::{distinct_from, ignored_clauses, row_limits};

/// How deep expressions and subqueries may be nested: a bracket is up to three levels to the parser.
const DEPTH: usize = 3 * MAX_NESTING;

/// Parses the text of one query, and refuses any other text.
pub(super) fn parse(sql: &str) -> Result<Statement> {
    text_complexity::check(sql)?;
    let statements = statements(sql).map_err(|error| from_datafusion(&error))?;
    let mut statements = statements.into_iter();
    let mut statement = statements.next().ok_or_else(|| Error::failed("the query is empty"))?;
    if statements.len() > 0 {
        let count = statements.len() + 1;
        return Err(Error::failed(format!("there are {count} statements, and a query is one"))
            .hint("send them one after the other"));
    }
    if let Some(sql) = explained(&mut statement) {
        distinct_from::give_meaning(sql);
        operators::give_meaning(sql);
        row_limits::as_limits(sql);
    }
    check(&statement)?;
    Ok(statement)
}

/// The SQL of a statement, also where it is to be explained.
fn explained(statement: &mut Statement) -> Option<&mut Sql> {
    match statement {
        Statement::Explain(explain) => explained(&mut explain.statement),
        Statement::Statement(sql) => Some(sql),
        _ => None,
    }
}

fn statements(sql: &str) -> Result<VecDeque<Statement>, DataFusionError> {
    let dialect = GenericDialect {};
    let tokens = Tokenizer::new(&dialect, sql).tokenize_with_location().map_err(ParserError::from)?;
    let tokens = operators::as_divisions(distinct_from::join_words(tokens));
    DFParserBuilder::new(tokens).with_dialect(&dialect).with_recursion_limit(DEPTH).build()?.parse_statements()
}

/// Refuses every statement that does not only read.
fn check(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Explain(explain) => check(&explain.statement),
        Statement::Statement(sql) => check_sql(sql),
        other => Err(refused(&other.to_string())),
    }
}

fn check_sql(sql: &Sql) -> Result<()> {
    match sql {
        Sql::Query(query) => match query.visit(&mut WriteFinder) {
            ControlFlow::Break(what) => Err(refused(what)),
            ControlFlow::Continue(()) => ignored_clauses::check(sql),
        },
        Sql::Explain { statement, .. } => check_sql(statement),
        Sql::ExplainTable { .. }
        | Sql::ShowTables { .. }
        | Sql::ShowColumns { .. }
        | Sql::ShowVariable { .. }
        | Sql::ShowVariables { .. }
        | Sql::ShowFunctions { .. } => Ok(()),
        other => Err(refused(&other.to_string())),
    }
}

/// Finds the parts of a query that write.
struct WriteFinder;

impl Visitor for WriteFinder {
    type Break = &'static str;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        body(&query.body)
    }
}

fn body(expression: &SetExpr) -> ControlFlow<&'static str> {
    match expression {
        SetExpr::Insert(_) => ControlFlow::Break("INSERT"),
        SetExpr::Update(_) => ControlFlow::Break("UPDATE"),
        SetExpr::Delete(_) => ControlFlow::Break("DELETE"),
        SetExpr::Merge(_) => ControlFlow::Break("MERGE"),
        SetExpr::Select(select) if select.into.is_some() => ControlFlow::Break("SELECT INTO"),
        SetExpr::SetOperation { left, right, .. } => {
            body(left)?;
            body(right)
        }
        _ => ControlFlow::Continue(()),
    }
}

/// The refusal, naming what was refused: the words a statement begins with.
pub(super) fn refused(statement: &str) -> Error {
    const WORDS: &[&str] = &[
        "CREATE",
        "OR",
        "REPLACE",
        "EXTERNAL",
        "UNBOUNDED",
        "TEMPORARY",
        "TABLE",
        "VIEW",
        "SCHEMA",
        "DATABASE",
        "FUNCTION",
        "INDEX",
        "INSERT",
        "INTO",
        "SELECT",
        "DELETE",
        "TRUNCATE",
        "START",
        "TRANSACTION",
    ];
    let mut words = statement.split_whitespace();
    let mut what = words.next().unwrap_or("this").to_uppercase();
    if WORDS.contains(&what.as_str()) {
        for word in words.take_while(|word| WORDS.contains(word)) {
            what.push(' ');
            what.push_str(word);
        }
    }
    let hint = match what.as_str() {
        "COPY" => "probe query writes its result to standard output: probe query --format csv SQL > FILE",
        "SET" | "RESET" => "queries share no session; SHOW ALL lists what is in force",
        "CREATE VIEW" | "CREATE OR REPLACE VIEW" | "CREATE TABLE" => {
            "WITH name AS (SELECT …) SELECT … names a result within a query"
        }
        _ => "SELECT, EXPLAIN, SHOW TABLES, SHOW COLUMNS and DESCRIBE are allowed",
    };
    Error::denied(format!("{what} is not allowed: queries only read")).hint(hint)
}
