//! `+`, `-` and `*` of integers that fail where a result does not fit its type. DataFusion's own go on from the other end of the
//! range: 9223372036854775807 + 1 is negative there.
//!
//! A whole tree of these operators becomes one function of its leaves: as a function each, a chain of hundreds of them would
//! take minutes to plan, since the type of each is asked of all those in it.

use std::sync::Arc;

use arrow::compute::kernels::numeric::{add, mul, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::analyzer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;
use probe_common::error::Error;

/// Puts functions that check their results in the place of the operators. It needs the rule before it that gives both sides of
/// an operator one type.
#[derive(Debug)]
pub(super) struct CheckArithmetic;

impl AnalyzerRule for CheckArithmetic {
    fn name(&self) -> &str {
        "check_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let checked = plan.transform_up_with_subqueries(|node| {
            let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
            let checked = node.map_expressions(|expression| {
                if !expression.exists(|part| Ok(has_operator(part)))? {
                    return Ok(Transformed::no(expression));
                }
                let name = names.save(&expression);
                let checked = expression.transform_down(|part| Ok(in_place_of(part, &schema)))?;
                Ok(checked.update_data(|checked| name.restore(checked)))
            })?;
            if checked.transformed { checked.map_data(LogicalPlan::recompute_schema) } else { Ok(checked) }
        });
        Ok(checked?.data)
    }
}

fn has_operator(expression: &Expr) -> bool {
    match expression {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => is_checked(*op),
        Expr::Negative(value) => !matches!(**value, Expr::Literal(..)),
        _ => false,
    }
}

fn is_checked(operator: Operator) -> bool {
    matches!(operator, Operator::Plus | Operator::Minus | Operator::Multiply)
}

fn in_place_of(expression: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let kind = |side: &Expr| first_leaf(side).get_type(schema).ok().filter(DataType::is_integer);
    let kind = match &expression {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_checked(*op) => {
            kind(left).filter(|left| kind(right).as_ref() == Some(left))
        }
        Expr::Negative(value) if has_operator(&expression) => kind(value).filter(DataType::is_signed_integer),
        _ => None,
    };
    let Some(kind) = kind else { return Transformed::no(expression) };
    let (mut instructions, mut leaves) = (Vec::new(), Vec::new());
    flatten(expression, &mut instructions, &mut leaves);
    let signature = Signature::any(leaves.len(), Volatility::Immutable);
    let function = ScalarUDF::from(CheckedArithmetic { kind, instructions, signature });
    Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), leaves)))
}

/// The leaf on the left of a tree of operators. All parts of a tree of integers have its type.
fn first_leaf(mut expression: &Expr) -> &Expr {
    loop {
        expression = match expression {
            Expr::BinaryExpr(BinaryExpr { left, op, .. }) if is_checked(*op) => left,
            Expr::Negative(value) => value,
            leaf => return leaf,
        };
    }
}

/// Takes a tree of operators apart: its leaves in order, and what is done with them.
fn flatten(expression: Expr, instructions: &mut Vec<ArithmeticInstruction>, leaves: &mut Vec<Expr>) {
    match expression {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_checked(op) => {
            flatten(*left, instructions, leaves);
            flatten(*right, instructions, leaves);
            instructions.push(ArithmeticInstruction::Combine(op));
        }
        Expr::Negative(value) if !matches!(*value, Expr::Literal(..)) => {
            instructions.push(ArithmeticInstruction::Zero);
            flatten(*value, instructions, leaves);
            instructions.push(ArithmeticInstruction::Combine(Operator::Minus));
        }
        leaf => {
            instructions.push(ArithmeticInstruction::Leaf);
            leaves.push(leaf);
        }
    }
}

/// A part of the computation, which keeps its values on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ArithmeticInstruction {
    /// Puts the next argument on the stack.
    Leaf,
    Zero,
    /// Takes two values from the stack, and puts the result there.
    Combine(Operator),
}

/// A tree of operators as a function of its leaves.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedArithmetic {
    kind: DataType,
    instructions: Vec<ArithmeticInstruction>,
    signature: Signature,
}

impl ScalarUDFImpl for CheckedArithmetic {
    fn name(&self) -> &str {
        "checked_arithmetic"
    }
    fn display_name(&self, arguments: &[Expr]) -> Result<String> {
        self.written(arguments.iter().map(Expr::to_string))
    }
    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        // The optimizer computes an argument that several expressions share once, under an alias with the original name.
        self.written(arguments.iter().map(|argument| argument.schema_name().to_string()))
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.kind.clone())
    }
    fn evaluate_bounds(&self, _: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(&self.kind)
    }
    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.kind.clone(), nullable)))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let zero = ColumnarValue::Scalar(ScalarValue::new_zero(&self.kind)?);
        self.fold(arguments.args, zero, |left, operator, right| {
            let function = match operator {
                Operator::Plus => add,
                Operator::Minus => sub,
                _ => mul,
            };
            apply(&left, &right, function).map_err(|error| match error {
                DataFusionError::ArrowError(inner, _) if matches!(*inner, ArrowError::ArithmeticOverflow(_)) => {
                    let text = inner.to_string();
                    does_not_fit(text.rsplit_once("on: ").map_or(&*text, |(_, operation)| operation), &self.kind)
                }
                error => error,
            })
        })
    }
}

impl CheckedArithmetic {
    /// The expression as it was written.
    fn written(&self, arguments: impl Iterator<Item = String>) -> Result<String> {
        let whole = |text: String| (text, u8::MAX);
        let arguments = arguments.map(whole).collect();
        let written = self.fold(arguments, whole("0".to_owned()), |left, operator, right| {
            let side = |(text, binds): (String, u8), least| if binds < least { format!("({text})") } else { text };
            let binds = operator.precedence();
            Ok((format!("{} {operator} {}", side(left, binds), side(right, binds + 1)), binds))
        });
        written.map(|(text, _)| text)
    }

    fn fold<Value: Clone>(
        &self,
        arguments: Vec<Value>,
        zero: Value,
        mut combine: impl FnMut(Value, Operator, Value) -> Result<Value>,
    ) -> Result<Value> {
        let wrong = || DataFusionError::Internal("arithmetic has as many leaves as it needs".to_owned());
        let (mut arguments, mut values) = (arguments.into_iter(), Vec::new());
        for instruction in &self.instructions {
            let value = match instruction {
                ArithmeticInstruction::Leaf => arguments.next().ok_or_else(wrong)?,
                ArithmeticInstruction::Zero => zero.clone(),
                ArithmeticInstruction::Combine(operator) => {
                    let (right, left) = values.pop().zip(values.pop()).ok_or_else(wrong)?;
                    combine(left, *operator, right)?
                }
            };
            values.push(value);
        }
        values.pop().ok_or_else(wrong)
    }
}

/// The error of a result that is not among the values of an integer type.
pub(super) fn does_not_fit(result: &str, kind: &DataType) -> DataFusionError {
    let sql = match kind {
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INT",
        DataType::Int64 => "BIGINT",
        DataType::UInt8 => "TINYINT UNSIGNED",
        DataType::UInt16 => "SMALLINT UNSIGNED",
        DataType::UInt32 => "INT UNSIGNED",
        _ => "BIGINT UNSIGNED",
    };
    let error = Error::failed(format!("{result} does not fit the type {sql}"));
    DataFusionError::External(Box::new(
        error.hint("CAST(… AS DOUBLE) has a larger range, and CAST(… AS DECIMAL(38, 0)) keeps every digit"),
    ))
}
