//! The argument of an aggregate that is a column or a constant, as most are.

use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};

/// The only argument of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlainArgument {
    /// A constant that is not NULL, as that of COUNT(*).
    Constant,
    /// The column of the input with this index.
    Column(usize),
}

impl PlainArgument {
    /// The argument of `aggregate`; None where it has several, or one of another kind.
    pub(super) fn of(aggregate: &AggregateFunctionExpr) -> Option<Self> {
        let [argument] = &aggregate.expressions()[..] else { return None };
        if let Some(column) = argument.downcast_ref::<Column>() {
            return Some(Self::Column(column.index()));
        }
        let is_value = argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null());
        is_value.then_some(Self::Constant)
    }
}

/// Whether an aggregate takes its rows in any order, and those with NULL like the others.
pub(super) fn is_unordered(aggregate: &AggregateFunctionExpr) -> bool {
    !aggregate.ignore_nulls() && aggregate.order_bys().is_empty()
}
