//! Stacks of operators with their own time, for flame graphs.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use futures::StreamExt;
use probe_client::Client;
use probe_common::error::{Error, Result};

use super::queries::{CaptureSelection, nothing};

/// What the width of a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum StackWeight {
    /// Time on the host, nanoseconds
    #[default]
    Host,
    /// Time on devices of what was launched, nanoseconds
    Device,
}

impl StackWeight {
    fn column(self) -> &'static str {
        match self {
            Self::Host => "self_duration",
            Self::Device => "device_self_duration",
        }
    }
}

/// Stacks, outermost first, and their own time in nanoseconds.
pub(crate) type FoldedStacks = BTreeMap<Vec<String>, u64>;

/// Reads the stacks of the run called `name`. With `by_rank` the outermost frame is the rank.
///
/// # Errors
/// Nothing was captured; or the query's.
pub(crate) async fn folded(
    client: &mut Client,
    name: &str,
    selection: &CaptureSelection,
    weight: StackWeight,
    by_rank: bool,
) -> Result<FoldedStacks> {
    // Rows of each thread come in order of time: the open operators are those of a smaller depth.
    let sql = format!(
        "SELECT host, pid, rank, capture, thread, depth, name, {} AS weight FROM python.operators WHERE {} \
         ORDER BY capture, host, pid, thread, ts, depth",
        weight.column(),
        selection.condition()
    );
    let mut answer = client.query(&sql).await?;
    let mut folder = StackFolder::default();
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        let kinds = [
            DataType::Utf8,
            DataType::Int64,
            DataType::Int64,
            DataType::Utf8,
            DataType::Int64,
            DataType::Int64,
            DataType::Utf8,
            DataType::Float64,
        ];
        let columns = batch.columns().iter().zip(&kinds).map(|(column, kind)| cast(column, kind));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(Error::caused)?;
        (0..batch.num_rows()).for_each(|row| folder.add(&columns, row, by_rank));
    }
    if folder.rows == 0 {
        return Err(nothing(client, name, selection).await?);
    }
    if folder.folded.is_empty() {
        return Err(Error::failed(format!("the captures of {name} have nothing that ran on a device"))
            .hint("--weight host draws the time on the host"));
    }
    Ok(folder.folded)
}

/// Folds rows of operators into stacks.
#[derive(Default)]
struct StackFolder {
    rows: u64,
    folded: FoldedStacks,
    thread: Option<(String, i64, String, i64)>,
    open: Vec<(i64, String)>,
}

impl StackFolder {
    fn add(&mut self, columns: &[ArrayRef], row: usize, by_rank: bool) {
        let text = |column: usize| columns[column].as_string::<i32>().value(row);
        let int = |column: usize| {
            columns[column].is_valid(row).then(|| columns[column].as_primitive::<Int64Type>().value(row))
        };
        self.rows += 1;
        let thread = (text(0).to_owned(), int(1).unwrap_or_default(), text(3).to_owned(), int(4).unwrap_or_default());
        if self.thread.as_ref() != Some(&thread) {
            self.open.clear();
            self.thread = Some(thread);
        }
        let depth = int(5).unwrap_or_default();
        while self.open.pop_if(|(open, _)| *open >= depth).is_some() {}
        let name = text(6);
        // All steps share one frame.
        let name = if name.starts_with("ProfilerStep#") { "ProfilerStep*" } else { name };
        self.open.push((depth, name.to_owned()));
        let weight = columns[7].is_valid(row).then(|| columns[7].as_primitive::<Float64Type>().value(row));
        let nanoseconds = (weight.unwrap_or_default().max(0.0) * 1e9).round() as u64;
        if nanoseconds == 0 {
            return;
        }
        let rank = by_rank.then(|| int(2).map_or_else(|| "no rank".to_owned(), |rank| format!("rank {rank}")));
        let stack = rank.into_iter().chain(self.open.iter().map(|(_, name)| name.clone())).collect();
        *self.folded.entry(stack).or_default() += nanoseconds;
    }
}
