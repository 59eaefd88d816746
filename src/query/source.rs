//! Segments as a source of rows for DataFusion: prunes when it is opened, not when it is planned, and makes only the
//! columns that are asked for.

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use datafusion::datasource::source::DataSource;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};

use super::prune::Pruner;
use crate::store::Segment;

/// Segments of one table, some of its columns.
#[derive(Clone)]
pub(super) struct SegmentSource {
    /// The table's.
    schema: SchemaRef,
    /// Of what comes out.
    projected: SchemaRef,
    /// The places in `schema` of the columns that come out.
    places: Vec<usize>,
    partitions: Vec<Vec<Arc<Segment>>>,
    /// Over `projected`; for pruning only, rows are filtered above.
    filters: Vec<Arc<dyn PhysicalExpr>>,
    fetch: Option<usize>,
    metrics: ExecutionPlanMetricsSet,
}

impl SegmentSource {
    /// One that reads in up to `partitions` parts.
    pub(super) fn new(
        schema: SchemaRef,
        segments: &[Arc<Segment>],
        projection: Option<&[usize]>,
        partitions: usize,
    ) -> Result<Self> {
        let places = projection.map_or_else(|| (0..schema.fields().len()).collect(), <[usize]>::to_vec);
        let projected = Arc::new(schema.project(&places)?);
        let mut parts = vec![Vec::new(); partitions.min(segments.len()).max(1)];
        let count = parts.len();
        for (number, segment) in segments.iter().enumerate() {
            parts[number % count].push(Arc::clone(segment));
        }
        let (filters, metrics) = (Vec::new(), ExecutionPlanMetricsSet::new());
        Ok(Self { schema, projected, places, partitions: parts, filters, fetch: None, metrics })
    }

    fn statistics<'a>(&self, segments: impl Iterator<Item = &'a Arc<Segment>> + Clone) -> Statistics {
        let rows = segments.clone().map(|segment| segment.rows).sum();
        let column_statistics = self.places.iter().map(|place| column_statistics(*place, segments.clone(), rows));
        Statistics {
            num_rows: Precision::Exact(rows),
            total_byte_size: Precision::Inexact(segments.clone().map(|segment| segment.bytes).sum()),
            column_statistics: column_statistics.collect(),
        }
    }
}

fn column_statistics<'a>(
    place: usize,
    segments: impl Iterator<Item = &'a Arc<Segment>>,
    rows: usize,
) -> ColumnStatistics {
    let mut bounds = None;
    let mut nulls = 0;
    let mut known = true;
    for segment in segments {
        let (range, more) = segment.range(place);
        nulls += more;
        bounds = match (bounds, range) {
            (None, range) => {
                known &= range.is_some() || more == segment.rows;
                range
            }
            (Some(bounds), None) => {
                known &= more == segment.rows;
                Some(bounds)
            }
            (Some((low, high)), Some((lower, higher))) => {
                Some((if lower < low { lower } else { low }, if higher > high { higher } else { high }))
            }
        };
    }
    let unknown = ColumnStatistics { null_count: Precision::Exact(nulls), ..ColumnStatistics::new_unknown() };
    match bounds {
        Some((low, high)) if known && nulls < rows => {
            ColumnStatistics { min_value: Precision::Exact(low), max_value: Precision::Exact(high), ..unknown }
        }
        _ => unknown,
    }
}

impl DataSource for SegmentSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut segments = self.partitions[partition].clone();
        let counter = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        counter("segments_total").add(segments.len());
        let mut pruner = Pruner::new(&self.filters, Arc::clone(&self.projected), Arc::clone(&self.schema));
        pruner.prune(&mut segments);
        segments.reverse();
        let scan = Scan {
            segments,
            pruner,
            current: None,
            places: self.places.clone(),
            projected: Arc::clone(&self.projected),
            batch_rows: context.session_config().batch_size().max(1),
            left: self.fetch.unwrap_or(usize::MAX),
            scanned: counter("segments_scanned"),
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        let batches = futures::stream::iter(scan);
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), batches)))
    }

    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments: usize = self.partitions.iter().map(Vec::len).sum();
        write!(f, "segments={segments}, partitions={}", self.partitions.len())?;
        if !self.filters.is_empty() {
            let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
            write!(f, ", prune=[{}]", filters.join(" AND "))?;
        }
        Ok(())
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(self.partitions.len())
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        EquivalenceProperties::new(Arc::clone(&self.projected))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let (statistics, partitions) = match partition {
            Some(partition) => (self.statistics(self.partitions[partition].iter()), 1),
            None => (self.statistics(self.partitions.iter().flatten()), self.partitions.len()),
        };
        let statistics = if self.filters.is_empty() { statistics } else { statistics.to_inexact() };
        Ok(Arc::new(statistics.with_fetch(self.fetch, 0, partitions)?))
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn DataSource>> {
        Some(Arc::new(Self { fetch, ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.metrics.clone()
    }

    fn try_swapping_with_projection(&self, _: &ProjectionExprs) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(None)
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        // No: rows are still to be filtered above. What is learned here is which segments can be skipped.
        let answers = vec![PushedDown::No; filters.len()];
        let mut with_filters = self.clone();
        with_filters.filters.extend(filters);
        let updated: Arc<dyn DataSource> = Arc::new(with_filters);
        Ok(FilterPushdownPropagation::with_parent_pushdown_result(answers).with_updated_node(updated))
    }

    /// For ORDER BY … LIMIT: the segments that come first in that order are read first, so that what the query has
    /// found by then rules the others out.
    fn try_pushdown_sort(&self, order: &[PhysicalSortExpr]) -> Result<SortOrderPushdownResult<Arc<dyn DataSource>>> {
        let first = order.first().and_then(|sort| Some((sort.expr.downcast_ref::<Column>()?.index(), sort.options)));
        let Some((column, SortOptions { descending, .. })) = first else {
            return Ok(SortOrderPushdownResult::Unsupported);
        };
        let place = self.places[column];
        let mut sorted = self.clone();
        for segments in &mut sorted.partitions {
            // A segment whose values are not known may have the first ones: it is read first.
            if descending {
                segments.sort_by_cached_key(|s| {
                    let high = s.range(place).0.map(|(_, high)| Bound(high));
                    (high.is_some(), Reverse(high))
                });
            } else {
                segments.sort_by_cached_key(|s| s.range(place).0.map(|(low, _)| Bound(low)));
            }
        }
        Ok(SortOrderPushdownResult::Inexact { inner: Arc::new(sorted) })
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in &self.filters {
            if visit(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }
}

impl fmt::Debug for SegmentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Default, f)
    }
}

/// A bound of a column, ordered: bounds of one column are of one type, which always compare.
#[derive(PartialEq, Eq)]
struct Bound(ScalarValue);

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}

/// One partition being read.
struct Scan {
    /// Not read yet, the next one last.
    segments: Vec<Arc<Segment>>,
    pruner: Pruner,
    current: Option<Position>,
    places: Vec<usize>,
    projected: SchemaRef,
    batch_rows: usize,
    /// Rows that may still be given.
    left: usize,
    scanned: Count,
    metrics: BaselineMetrics,
}

struct Position {
    segment: Arc<Segment>,
    batch: usize,
    row: usize,
}

impl Iterator for Scan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        while self.left > 0 {
            if self.current.is_none() {
                if self.pruner.has_news() {
                    self.pruner.prune(&mut self.segments);
                }
                self.current = Some(Position { segment: self.segments.pop()?, batch: 0, row: 0 });
                self.scanned.add(1);
            }
            let Some(position) = &mut self.current else { continue };
            let Some(batch) = position.segment.batches.get(position.batch) else {
                self.current = None;
                continue;
            };
            if position.row >= batch.rows {
                position.batch += 1;
                position.row = 0;
                continue;
            }
            let (offset, rows) = (position.row, (batch.rows - position.row).min(self.batch_rows).min(self.left));
            let made = position.segment.record_batch(batch, offset, rows, &self.places, &self.projected);
            position.row += rows;
            self.left -= rows;
            self.metrics.output_rows().add(rows);
            return Some(made.map_err(Into::into));
        }
        None
    }
}
