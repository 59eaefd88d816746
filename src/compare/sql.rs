//! The queries of a comparison.
//!
//! The unit is the step. Within one, ranks wait for each other and are no observations of their own: counting every
//! rank's step as one would make any difference look certain. So a step has one value, the mean over the processes that
//! ran it, and only steps that every process finished are taken, since a mean over others would be of another mixture.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type};
use futures::StreamExt;
use probe_client::{Client, QueryAnswer};
use probe_common::error::{Error, Result};

use super::side::{ComparedRun, LAST_STEPS, PARTS};
use crate::shared_steps::SharedSteps;
use crate::step_window::StepWindow;
use crate::why_no_step::why_no_step;

/// Steps that a side may have: their sums by module are held in memory.
const MAX_STEPS: usize = 10_000;

/// Reads one side: `window`, or the last [`LAST_STEPS`] steps.
///
/// # Errors
/// The query's; there is no step in the window, or too many.
pub async fn read(client: &mut Client, name: &str, window: Option<StepWindow>) -> Result<ComparedRun> {
    let shared = SharedSteps::read(client).await?;
    let mut side = steps(client, &shared, window).await?;
    side.processes_left_out = shared.left_out();
    let (Some(first), Some(last)) = (side.steps.first().copied(), side.steps.last().copied()) else {
        return Err(nothing(client, &shared, name, window).await?);
    };
    if side.steps.len() > MAX_STEPS {
        let count = side.steps.len();
        return Err(Error::limit(format!("{name} has {count} steps in that window; the limit is {MAX_STEPS}"))
            .hint(format!("choose fewer: --steps {}..{last}", last - MAX_STEPS as i64 + 1)));
    }
    side.modules = modules(client, &shared, StepWindow { first: Some(first), last: Some(last) }, &side.steps).await?;
    Ok(side)
}

/// A step of a side.
struct StepRow {
    step: i64,
    /// Processes that finished it.
    processes: i64,
    /// Whether it does more than call a model.
    trains: bool,
    /// Means over the processes, in the order of [`PARTS`].
    means: Vec<f64>,
}

/// `python.steps`, a row a step.
async fn steps(client: &mut Client, shared: &SharedSteps, window: Option<StepWindow>) -> Result<ComparedRun> {
    let condition = match window {
        Some(window) => window.condition(),
        None => format!("step > (SELECT MAX(step) FROM python.steps) - {LAST_STEPS}"),
    };
    let parts: Vec<String> = PARTS.iter().map(|(_, column)| format!("AVG({column})")).collect();
    let sql = format!(
        "SELECT step, COUNT(*) FILTER (WHERE captured IS NOT TRUE) AS processes, COUNT(*) FILTER (WHERE kind = 'call') AS calls, \
         MIN(clock) AS clock, MAX(clock) AS other_clock, {} \
         FROM python.steps WHERE {condition} GROUP BY step ORDER BY step",
        parts.iter().enumerate().map(|(index, part)| format!("{part} AS part_{index}")).collect::<Vec<_>>().join(", ")
    );
    let mut rows = Vec::new();
    let mut clocks = Vec::new();
    each(client.query(&shared.rewrite(&sql)).await?, |batch| {
        let [step, processes, calls] = [0, 1, 2].map(|index| batch.column(index).as_primitive::<Int64Type>());
        let means: Vec<_> =
            (0..PARTS.len()).map(|index| batch.column(5 + index).as_primitive::<Float64Type>()).collect();
        for row in 0..batch.num_rows() {
            rows.push(StepRow {
                step: step.value(row),
                processes: processes.value(row),
                trains: calls.value(row) == 0,
                means: means.iter().map(|mean| mean.value(row)).collect(),
            });
        }
        clocks.extend(
            [3, 4].iter().flat_map(|index| batch.column(*index).as_string::<i32>().iter().flatten().map(str::to_owned)),
        );
    })
    .await?;
    clocks.sort_unstable();
    clocks.dedup();
    let total = rows.len();
    // What a program infers before it trains takes another time than its training.
    if rows.iter().any(|row| row.trains) {
        rows.retain(|row| row.trains);
    }
    let trained = rows.len();
    let processes = rows.iter().map(|row| row.processes).max().unwrap_or_default();
    rows.retain(|row| row.processes == processes);
    Ok(ComparedRun {
        left_out: trained - rows.len(),
        untrained: total - trained,
        processes: usize::try_from(processes).unwrap_or_default(),
        parts: (0..PARTS.len()).map(|index| rows.iter().map(|row| row.means[index]).collect()).collect(),
        steps: rows.into_iter().map(|row| row.step).collect(),
        modules: BTreeMap::new(),
        clocks,
        processes_left_out: None,
    })
}

/// `python.torch_trace`: a module's time in a step is the sum of its calls, of which each has to be timed.
async fn modules(
    client: &mut Client,
    shared: &SharedSteps,
    window: StepWindow,
    steps: &[i64],
) -> Result<BTreeMap<super::side::ModuleStage, Vec<Option<f64>>>> {
    let sql = format!(
        "SELECT module, stage, step, CASE WHEN COUNT(seconds) = COUNT(*) THEN AVG(seconds) END AS seconds FROM ( \
           SELECT module, stage, step, host, pid, CASE WHEN COUNT(duration) = COUNT(*) THEN SUM(duration) END AS seconds \
           FROM python.torch_trace WHERE {} GROUP BY module, stage, step, host, pid \
         ) GROUP BY module, stage, step",
        window.condition()
    );
    let indexes: HashMap<i64, usize> = steps.iter().enumerate().map(|(index, step)| (*step, index)).collect();
    let mut found: BTreeMap<super::side::ModuleStage, Vec<Option<f64>>> = BTreeMap::new();
    each(client.query(&shared.rewrite(&sql)).await?, |batch| {
        let (module, stage) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        let (step, seconds) =
            (batch.column(2).as_primitive::<Int64Type>(), batch.column(3).as_primitive::<Float64Type>());
        for row in 0..batch.num_rows() {
            let Some(index) = indexes.get(&step.value(row)) else { continue };
            let key = (module.is_valid(row).then(|| module.value(row).to_owned()), stage.value(row).to_owned());
            let values = found.entry(key).or_insert_with(|| vec![None; steps.len()]);
            values[*index] = seconds.is_valid(row).then(|| seconds.value(row));
        }
    })
    .await?;
    Ok(found)
}

/// Why there is nothing to compare.
async fn nothing(client: &mut Client, shared: &SharedSteps, name: &str, window: Option<StepWindow>) -> Result<Error> {
    let mut range = None;
    let sql = "SELECT MIN(step) AS first, MAX(step) AS last FROM python.steps";
    each(client.query(&shared.rewrite(sql)).await?, |batch| {
        let end = |index: usize| batch.column(index).as_primitive::<Int64Type>().iter().flatten().next();
        range = range.or(end(0).zip(end(1)));
    })
    .await?;
    Ok(match (range, window) {
        (Some((first, last)), Some(window)) => Error::failed(format!("{name} has no step within {window}"))
            .hint(format!("the run has steps {first}..{last}")),
        _ => {
            let nothing = Error::failed(format!("{name} has no finished step to compare"));
            match why_no_step(client).await? {
                Some(why) => nothing.hint(why),
                None => nothing,
            }
        }
    })
}

async fn each(mut answer: QueryAnswer, mut visit: impl FnMut(&RecordBatch)) -> Result<()> {
    while let Some(batch) = answer.batches.next().await {
        visit(&batch?);
    }
    Ok(())
}
