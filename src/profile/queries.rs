//! The queries of a profile.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use probe_client::{Client, collect};
use probe_common::error::{Error, Result};

use crate::step_window::StepWindow;

/// What a row of a profile is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ProfileRows {
    /// Operators and named ranges, as in torch.profiler's key_averages()
    #[default]
    Operator,
    /// Kernels, copies and sets of devices
    Kernel,
    /// Modules and stages, by the operators in them
    Module,
    /// Lines of the program, by the operators that they called
    Line,
}

/// Which rows of captures count.
#[derive(Debug, Clone, Default)]
pub(crate) struct CaptureSelection {
    /// Steps; None for all.
    pub(crate) steps: Option<StepWindow>,
    /// Ranks; None for all.
    pub(crate) ranks: Option<Vec<i64>>,
}

impl CaptureSelection {
    /// The condition for these rows, in SQL.
    pub(crate) fn condition(&self) -> String {
        let steps = self.steps.map_or_else(|| "true".to_owned(), StepWindow::condition);
        let ranks = self.ranks.as_ref().map(|ranks| {
            let listed: Vec<String> = ranks.iter().map(i64::to_string).collect();
            format!(" AND rank IN ({})", listed.join(", "))
        });
        format!("{steps}{}", ranks.unwrap_or_default())
    }
}

/// A profile of captures.
pub(crate) struct Profile {
    /// Ranks, captures and steps in the profile.
    pub(crate) ranks: i64,
    pub(crate) captures: i64,
    pub(crate) steps: Option<(i64, i64)>,
    /// Own time of operators on the host, and of activities on devices (s).
    pub(crate) host: f64,
    pub(crate) device: f64,
    /// Mean of a step by category, and of the whole step, by the definition of python.step_categories (s).
    pub(crate) categories: Vec<(String, f64)>,
    /// The rows, those that take most first.
    pub(crate) rows: RecordBatch,
}

/// Asks for a profile of the run called `name`.
///
/// # Errors
/// Nothing was captured; or the queries'.
pub(crate) async fn ask(
    client: &mut Client,
    name: &str,
    selection: &CaptureSelection,
    by: ProfileRows,
) -> Result<Profile> {
    let condition = selection.condition();
    let head = whole(
        client,
        &format!(
            "SELECT COUNT(*) AS operators, COUNT(DISTINCT rank) AS ranks, COUNT(DISTINCT capture) AS captures, \
             MIN(step) AS first, MAX(step) AS last, SUM(self_duration) AS host FROM python.operators WHERE {condition}"
        ),
    )
    .await?;
    let devices = whole(
        client,
        &format!("SELECT COUNT(*) AS activities, SUM(duration) AS device FROM gpu.kernels WHERE kind <> 'sync' AND {condition}"),
    )
    .await?;
    let int = |batch: &RecordBatch, column: &str| number(batch, column).map(|value| value as i64);
    let activities = int(&devices, "activities").unwrap_or_default();
    if int(&head, "operators").unwrap_or_default() == 0 && activities == 0 {
        return Err(nothing(client, name, selection).await?);
    }
    if by == ProfileRows::Kernel && activities == 0 {
        return Err(Error::failed(format!("the captures of {name} have nothing that ran on a device"))
            .hint(format!("probe {name} profile shows what ran on the host")));
    }
    let rows = whole(client, &rows_of(by, &condition, activities > 0)).await?;
    Ok(Profile {
        ranks: int(&head, "ranks").unwrap_or_default(),
        captures: int(&head, "captures").unwrap_or_default(),
        steps: int(&head, "first").zip(int(&head, "last")),
        host: number(&head, "host").unwrap_or_default(),
        device: number(&devices, "device").unwrap_or_default(),
        categories: categories(client, &condition).await?,
        rows,
    })
}

/// The rows of a profile, in SQL.
fn rows_of(by: ProfileRows, condition: &str, with_devices: bool) -> String {
    let host = "COUNT(*) AS calls, SUM(self_duration) AS own, 100 * SUM(self_duration) / NULLIF(SUM(SUM(self_duration)) OVER (), 0) AS share, \
         SUM(duration) AS total, SUM(device_self_duration) AS device_own, \
         100 * SUM(device_self_duration) / NULLIF(SUM(SUM(device_self_duration)) OVER (), 0) AS device_share, SUM(device_duration) AS device_total";
    // Modules and lines enclose nothing of their own kind: totals would count operators within operators again.
    let own = "COUNT(*) AS operators, SUM(self_duration) AS own, 100 * SUM(self_duration) / NULLIF(SUM(SUM(self_duration)) OVER (), 0) AS share, \
         SUM(device_self_duration) AS device_own, \
         100 * SUM(device_self_duration) / NULLIF(SUM(SUM(device_self_duration)) OVER (), 0) AS device_share";
    let order = if with_devices { "device_own DESC NULLS LAST, own DESC" } else { "own DESC" };
    match by {
        ProfileRows::Operator => format!(
            "SELECT CASE WHEN name LIKE 'ProfilerStep#%' THEN 'ProfilerStep*' ELSE name END AS operator, {host} \
             FROM python.operators WHERE {condition} GROUP BY 1 ORDER BY {order}, operator"
        ),
        ProfileRows::Module => format!(
            "SELECT module, stage, {own} FROM python.operators WHERE {condition} GROUP BY module, stage ORDER BY {order}, module, stage"
        ),
        ProfileRows::Line => format!(
            "SELECT file, line, {own} FROM python.operators WHERE {condition} GROUP BY file, line ORDER BY {order}, file, line"
        ),
        ProfileRows::Kernel => format!(
            "SELECT name AS kernel, MIN(category) AS category, COUNT(*) AS calls, SUM(duration) AS total, \
             100 * SUM(duration) / NULLIF(SUM(SUM(duration)) OVER (), 0) AS share, AVG(duration) AS mean, MAX(duration) AS longest, \
             SUM(occupancy * duration) / NULLIF(SUM(CASE WHEN occupancy IS NOT NULL THEN duration END), 0) AS occupancy \
             FROM gpu.kernels WHERE kind <> 'sync' AND {condition} GROUP BY name ORDER BY total DESC, kernel"
        ),
    }
}

/// The mean time of a step by category, the largest first, and of the whole step.
async fn categories(client: &mut Client, condition: &str) -> Result<Vec<(String, f64)>> {
    const CATEGORIES: [&str; 8] =
        ["kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other"];
    let means: Vec<String> =
        CATEGORIES.iter().chain(&["total"]).map(|category| format!("AVG({category}) AS {category}")).collect();
    let sql = format!("SELECT {} FROM python.step_categories WHERE {condition}", means.join(", "));
    let batch = whole(client, &sql).await?;
    let mut found: Vec<(String, f64)> = CATEGORIES
        .iter()
        .filter_map(|category| Some(((*category).to_owned(), number(&batch, category)?)))
        .filter(|(_, seconds)| *seconds > 0.0)
        .collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.extend(number(&batch, "total").map(|total| ("total".to_owned(), total)));
    Ok(found)
}

/// The error where nothing was captured, with how to record it.
pub(crate) async fn nothing(client: &mut Client, name: &str, selection: &CaptureSelection) -> Result<Error> {
    let sql = "SELECT COUNT(*) AS captures, MIN(first_step) AS first, MAX(last_step) AS last FROM python.captures";
    let captures = whole(client, sql).await?;
    if number(&captures, "captures").unwrap_or_default() == 0.0 {
        return Ok(Error::failed(format!("no operator of {name} was captured")).hint(format!(
            "record some in a live run with probe {name} capture, or import a trace with probe import; \
             for modules: probe {name} query \"SELECT * FROM python.module_profile\""
        )));
    }
    let steps = number(&captures, "first").zip(number(&captures, "last"));
    let steps = steps.map_or_else(String::new, |(first, last)| format!(", of steps {first}..{last}"));
    let what = match (&selection.steps, &selection.ranks) {
        (None, None) => "have no operators".to_owned(),
        (Some(steps), None) => format!("have no operators within steps {steps}"),
        (None, Some(_)) => "have no operators of these ranks".to_owned(),
        (Some(steps), Some(_)) => format!("have no operators of these ranks within steps {steps}"),
    };
    Ok(Error::failed(format!("the captures of {name} {what}"))
        .hint(format!("probe {name} query \"SELECT * FROM python.captures\" lists them{steps}")))
}

async fn whole(client: &mut Client, sql: &str) -> Result<RecordBatch> {
    let (schema, batches) = collect(client.query(sql).await?).await?;
    concat_batches(&schema, batches.iter().map(|batch| batch.as_ref())).map_err(Error::caused)
}

/// A number of the first row.
fn number(batch: &RecordBatch, column: &str) -> Option<f64> {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{DataType, Float64Type};
    let values = arrow::compute::cast(batch.column_by_name(column)?, &DataType::Float64).ok()?;
    (!values.is_empty() && values.is_valid(0)).then(|| values.as_primitive::<Float64Type>().value(0))
}
