//! Values that a client gives beside the text of a query, in which `$name`, `$1` or `?` stand for them. They are put
//! into the plan, and never into the text.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Statement as Sql, Value, ValueWithSpan, VisitMut, VisitorMut};
use probe_common::error::{Error, Result};

use super::names::{comma_separated, nearest};

/// Most values of one query.
const MAX_PARAMETERS: usize = 1000;

/// Values by their names. Names that are numbers are positions, as `$1` has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters(Vec<(String, ScalarValue)>);

impl Parameters {
    /// Parameters of these names and values. The names have no `$` before them.
    ///
    /// # Errors
    /// Two values have one name, or there are more than 1000 values.
    pub fn new(values: Vec<(String, ScalarValue)>) -> Result<Self> {
        if values.len() > MAX_PARAMETERS {
            return Err(Error::usage(format!("{} parameters are given; the limit is {MAX_PARAMETERS}", values.len())));
        }
        let twice =
            values.iter().enumerate().find(|(index, (name, _))| values[..*index].iter().any(|(n, _)| n == name));
        match twice {
            Some((_, (name, _))) => Err(Error::usage(format!("parameter '{name}' is given twice"))),
            None => Ok(Self(values)),
        }
    }

    /// Parameters from a batch of one row with a column for each value, as clients of Flight SQL send it.
    ///
    /// # Errors
    /// The batch does not have exactly one row; the errors of [`Parameters::new`].
    pub fn from_batch(batch: &RecordBatch) -> Result<Self> {
        if batch.num_rows() != 1 {
            let rows = batch.num_rows();
            return Err(Error::usage(format!("{rows} rows of parameters are given, and a query takes one")));
        }
        let schema = batch.schema();
        let each = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            let value = ScalarValue::try_from_array(column, 0).map_err(no_value)?;
            Ok((field.name().trim_start_matches('$').to_owned(), value))
        });
        Self::new(each.collect::<Result<_>>()?)
    }

    /// The values as a batch of one row; None where there are no values.
    ///
    /// # Errors
    /// No array can have one of the values.
    pub fn to_batch(&self) -> Result<Option<RecordBatch>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let columns = self.0.iter().map(|(_, value)| value.to_array().map_err(no_value)).collect::<Result<Vec<_>>>()?;
        let fields: Vec<Field> = self.0.iter().map(|(name, value)| Field::new(name, value.data_type(), true)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
        batch.map(Some).map_err(Error::caused)
    }

    /// The values as bytes (an Arrow IPC stream), for [`Parameters::decode`].
    ///
    /// # Errors
    /// The errors of [`Parameters::to_batch`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let Some(batch) = self.to_batch()? else { return Ok(Vec::new()) };
        let written = StreamWriter::try_new(Vec::new(), &batch.schema()).and_then(|mut stream| {
            stream.write(&batch)?;
            stream.into_inner()
        });
        written.map_err(Error::caused)
    }

    /// Values from bytes of [`Parameters::encode`].
    ///
    /// # Errors
    /// The bytes are not from [`Parameters::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let not_ours = || Error::usage("the parameters of this ticket cannot be read");
        let mut stream = StreamReader::try_new(Cursor::new(bytes), None).map_err(|_| not_ours())?;
        let batch = stream.next().and_then(std::result::Result::ok).ok_or_else(not_ours)?;
        Self::from_batch(&batch)
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values by the names that a statement has for them: `expected`.
    ///
    /// # Errors
    /// A value is missing, or the statement has no parameter of its name.
    pub(super) fn fit(&self, expected: &[String]) -> Result<Vec<(String, ScalarValue)>> {
        let given = || self.0.iter().map(|(name, _)| name.as_str());
        // Drivers that bind by position number the values, some from 0 and some from 1.
        let by_position =
            expected.iter().chain(given().map(str::to_owned).collect::<Vec<_>>().iter()).any(|n| is_number(n));
        if by_position && !self.is_empty() {
            if expected.len() != self.0.len() {
                let (takes, there) = (expected.len(), self.0.len());
                return Err(Error::failed(format!("the query has {takes} parameters, and {there} values are given")));
            }
            let mut ordered = expected.to_vec();
            // $2 may stand before $1 in the text.
            ordered.sort_by_key(|name| name.parse::<usize>().unwrap_or_default());
            return Ok(ordered.into_iter().zip(self.0.iter().map(|(_, value)| value.clone())).collect());
        }
        if let Some(missing) = expected.iter().find(|parameter| !given().any(|name| name == **parameter)) {
            return Err(Error::failed(format!("the query has a parameter ${missing}, and no value is given for it"))
                .hint(format!("give one: probe query --param {missing}=VALUE")));
        }
        if let Some(unknown) = given().find(|name| !expected.iter().any(|parameter| parameter == name)) {
            let error = Error::failed(format!("a value is given for ${unknown}, and the query has no such parameter"));
            let names = || expected.iter().map(String::as_str);
            return Err(match nearest(unknown, names()) {
                Some(near) => error.hint(format!("did you mean ${near}?")),
                None if expected.is_empty() => error.hint(format!("write ${unknown} in the query where it belongs")),
                None => error.hint(format!("the query has {}", comma_separated(names()))),
            });
        }
        Ok(self.0.clone())
    }
}

fn no_value(error: DataFusionError) -> Error {
    Error::usage(format!("a parameter's value is not supported: {}", error.strip_backtrace()))
}

fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The names of a statement's parameters, in the order in which they first stand in it. Parameters that are `?` get the
/// names 1, 2 and so on.
///
/// # Errors
/// `?` stands beside `$name`.
pub(super) fn parameter_names(statement: &mut Statement) -> Result<Vec<String>> {
    let mut collected = ParameterNames::default();
    visit(statement, &mut collected);
    if collected.question_marks > 0 && collected.question_marks < collected.names.len() {
        return Err(
            Error::failed("the query has parameters of two kinds").hint("write all of them as $name, or all as ?")
        );
    }
    Ok(collected.names)
}

/// The types that the values of the parameters `names` must have; Null where a type is not in `known`.
pub(super) fn schema(names: &[String], known: &HashMap<String, Option<DataType>>) -> Schema {
    let field = |name: &String| {
        let kind = known.get(&format!("${name}")).cloned().flatten().unwrap_or(DataType::Null);
        Field::new(name, kind, true)
    };
    Schema::new(names.iter().map(field).collect::<Vec<_>>())
}

fn visit(statement: &mut Statement, collected: &mut ParameterNames) {
    match statement {
        Statement::Explain(explain) => visit(&mut explain.statement, collected),
        Statement::Statement(sql) => {
            let _ = <Sql as VisitMut>::visit(sql, collected);
        }
        _ => {}
    }
}

/// Collects the names of a statement's parameters, and numbers those that are `?`.
#[derive(Default)]
struct ParameterNames {
    names: Vec<String>,
    question_marks: usize,
}

impl VisitorMut for ParameterNames {
    type Break = ();

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        if let Value::Placeholder(text) = &mut value.value {
            if text == "?" {
                self.question_marks += 1;
                *text = format!("${}", self.question_marks);
            }
            let name = text.trim_start_matches(['$', '?']).to_owned();
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
        ControlFlow::Continue(())
    }
}
