//! `approx_percentile_cont`, nearer to the values ([`quantile`]) and faster by group: DataFusion sorts and merges the few values of
//! each group in each batch; here values wait until a group has enough of them to make that worthwhile, and are sorted by their
//! bits. The digests are the same.

use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, FieldRef, Float64Type, Schema};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::functions_aggregate::approx_percentile_cont::ApproxPercentileCont;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, ColumnarValue, Documentation, EmitTo, GroupsAccumulator, Signature,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion_functions_aggregate_common::tdigest::TDigest;

use super::float_sort::FloatSorter;
use super::quantile;

/// Values of a group that wait before its digest takes them.
const MIN_VALUES: usize = 2048;

/// The most values of all groups that wait: 32 MB.
const MAX_BUFFER_BYTES: usize = 4 << 20;

/// The function `approx_percentile_cont`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ApproxPercentile(ApproxPercentileCont);

impl AggregateUDFImpl for ApproxPercentile {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn signature(&self) -> &Signature {
        self.0.signature()
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.0.return_type(arguments)
    }
    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.0.state_fields(arguments)
    }
    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(PercentileCall::of(&arguments)?.digest()?))
    }
    fn supports_within_group_clause(&self) -> bool {
        self.0.supports_within_group_clause()
    }
    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }
    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs<'_>) -> bool {
        let kind = arguments.expr_fields.first().map(|field| field.data_type());
        kind == Some(&DataType::Float64) && !arguments.is_distinct
    }
    fn create_groups_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(PercentileGroups::new(PercentileCall::of(&arguments)?)))
    }
}

/// The arguments from which DataFusion makes a digest.
#[derive(Clone)]
struct PercentileCall {
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
    /// The share of the values below the answer, from 0 to 1.
    share: f64,
}

impl PercentileCall {
    fn of(arguments: &AccumulatorArgs<'_>) -> Result<Self> {
        let share = share(arguments.exprs)?;
        let is_descending = arguments.order_bys.first().is_some_and(|order| order.options.descending);
        Ok(Self {
            share: if is_descending { 1.0 - share } else { share },
            return_field: Arc::clone(&arguments.return_field),
            schema: arguments.schema.clone(),
            ignore_nulls: arguments.ignore_nulls,
            order_bys: arguments.order_bys.to_vec(),
            is_reversed: arguments.is_reversed,
            name: arguments.name.to_owned(),
            exprs: arguments.exprs.to_vec(),
            expr_fields: arguments.expr_fields.to_vec(),
        })
    }

    fn digest(&self) -> Result<PercentileDigest> {
        let inner = ApproxPercentileCont::new().accumulator(AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: false,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })?;
        Ok(PercentileDigest { inner, share: self.share, returned: self.return_field.data_type().clone() })
    }
}

/// The second argument, which DataFusion's digest has checked or will check.
fn share(exprs: &[Arc<dyn PhysicalExpr>]) -> Result<f64> {
    let nothing = RecordBatch::new_empty(Arc::new(Schema::empty()));
    match exprs.get(1).map(|expr| expr.evaluate(&nothing)).transpose()? {
        Some(ColumnarValue::Scalar(share)) => match share.cast_to(&DataType::Float64)? {
            ScalarValue::Float64(Some(share)) => Ok(share),
            _ => plan_err!("approx_percentile_cont needs a percentile between 0 and 1"),
        },
        _ => plan_err!("the percentile of approx_percentile_cont must be a constant"),
    }
}

/// DataFusion's digest of values.
#[derive(Debug)]
struct PercentileDigest {
    inner: Box<dyn Accumulator>,
    share: f64,
    returned: DataType,
}

impl Accumulator for PercentileDigest {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
    fn evaluate(&mut self) -> Result<ScalarValue> {
        let digest = TDigest::from_scalar_state(&self.inner.state()?);
        ScalarValue::Float64(quantile::quantile_of(&digest, self.share)).cast_to(&self.returned)
    }
}

struct PercentileGroup {
    waiting: Vec<f64>,
    digest: PercentileDigest,
}

impl PercentileGroup {
    /// Gives the waiting values to the digest. It sorts what it gets, which takes little time where that is sorted already.
    fn digest(&mut self, sorter: &mut FloatSorter) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        sorter.sort(&mut self.waiting);
        let values = Float64Array::from(std::mem::take(&mut self.waiting));
        self.digest.update_batch(&[Arc::new(values) as ArrayRef])
    }
}

struct PercentileGroups {
    call: PercentileCall,
    groups: Vec<PercentileGroup>,
    /// Values of all groups that wait.
    waiting: usize,
    /// Bytes of the digests, about.
    bytes: usize,
    sorter: FloatSorter,
}

impl PercentileGroups {
    fn new(call: PercentileCall) -> Self {
        Self { call, groups: Vec::new(), waiting: 0, bytes: 0, sorter: FloatSorter::default() }
    }

    fn grow(&mut self, groups: usize) -> Result<()> {
        while self.groups.len() < groups {
            let digest = self.call.digest()?;
            self.bytes += digest.size() + size_of::<PercentileGroup>();
            self.groups.push(PercentileGroup { waiting: Vec::new(), digest });
        }
        Ok(())
    }

    /// Takes out the groups to emit, after their digests have taken all values.
    fn take(&mut self, which: EmitTo) -> Result<Vec<PercentileGroup>> {
        let mut taken = which.take_needed(&mut self.groups);
        for group in &mut taken {
            self.waiting -= group.waiting.len();
            group.digest(&mut self.sorter)?;
        }
        if self.groups.is_empty() {
            self.bytes = 0;
        }
        Ok(taken)
    }
}

impl GroupsAccumulator for PercentileGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        self.grow(groups)?;
        let values = values[0].as_primitive::<Float64Type>();
        let filter = filter.map(|filter| match filter.nulls() {
            Some(valid) => NullBuffer::new(filter.values() & valid.inner()),
            None => NullBuffer::new(filter.values().clone()),
        });
        let counts = NullBuffer::union(filter.as_ref(), values.nulls());
        for (row, (group, value)) in group_indices.iter().zip(values.values()).enumerate() {
            if counts.as_ref().is_some_and(|counts| counts.is_null(row)) {
                continue;
            }
            let group = &mut self.groups[*group];
            group.waiting.push(*value);
            self.waiting += 1;
            if group.waiting.len() >= MIN_VALUES {
                self.waiting -= group.waiting.len();
                group.digest(&mut self.sorter)?;
            }
        }
        if self.waiting > MAX_BUFFER_BYTES {
            self.groups.iter_mut().try_for_each(|group| group.digest(&mut self.sorter))?;
            self.waiting = 0;
        }
        Ok(())
    }

    fn evaluate(&mut self, which: EmitTo) -> Result<ArrayRef> {
        let groups = self.take(which)?;
        let values = groups.into_iter().map(|mut group| group.digest.evaluate());
        ScalarValue::iter_to_array(values.collect::<Result<Vec<_>>>()?)
    }

    fn state(&mut self, which: EmitTo) -> Result<Vec<ArrayRef>> {
        let mut columns: Vec<Vec<ScalarValue>> = Vec::new();
        for mut group in self.take(which)? {
            let state = group.digest.state()?;
            columns.resize_with(state.len(), Vec::new);
            columns.iter_mut().zip(state).for_each(|(column, value)| column.push(value));
        }
        columns.into_iter().map(ScalarValue::iter_to_array).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], groups: usize) -> Result<()> {
        self.grow(groups)?;
        for (row, group) in group_indices.iter().enumerate() {
            let state: Vec<ArrayRef> = states.iter().map(|state| state.slice(row, 1)).collect();
            self.groups[*group].digest.merge_batch(&state)?;
        }
        Ok(())
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let rows = values[0].len();
        let mut each = Self::new(self.call.clone());
        each.update_batch(values, &(0..rows).collect::<Vec<_>>(), filter, rows)?;
        each.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        self.bytes + self.waiting * size_of::<f64>() + self.sorter.bytes()
    }
}
