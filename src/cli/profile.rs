//! `probe [ENDPOINT] profile`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, StringArray};
use arrow::datatypes::{DataType, Float64Type};
use probe_common::error::Result;

use super::connect::{ConnectOptions, with_client};
use super::ranks::RankSelection;
use super::report;
use super::status::CommandStatus;
use crate::output::{self, OutputFormat, rows};
use crate::profile::{self, CaptureSelection, Profile, ProfileRows};
use crate::step_window::StepWindow;

/// Rows of a table without --top.
const TOP: usize = 20;
/// Characters of a name that the page shows; the other formats have it whole.
const MAX_NAME: usize = 80;

/// Show which operators, kernels, modules or lines take the time
///
/// Shows captures (probe capture) and imported traces (probe import) of all ranks together: what a step spends its time on,
/// and the operators, kernels, modules or lines with the most time (on devices if anything ran there, otherwise on the host).
/// Own time excludes nested operators; totals include them. The figures are those of torch.profiler's key_averages(), which
/// counts nested operators of the same name once.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] profile [OPTIONS]",
    after_help = "Examples:
  probe gpt profile
  probe gpt profile --by kernel --top 50
  probe gpt@1 profile --by line --rank 0 --format csv > lines.csv"
)]
pub(super) struct Args {
    /// What a row is
    #[arg(long, value_enum, default_value_t)]
    by: ProfileRows,
    /// Number of rows; 0 means all [default: 20 in a table, otherwise all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Steps that count: 10..50 (both included), 100.., ..99 [default: all that were captured]
    #[arg(long, value_name = "WINDOW")]
    steps: Option<StepWindow>,
    /// Ranks that count: 0,3 or all
    #[arg(long, value_name = "RANKS", default_value = "all")]
    rank: RankSelection,
    /// Output format: a page to read, or rows
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    args.format.check_stdout()?;
    let selection = CaptureSelection { steps: args.steps, ranks: args.rank.0.clone() };
    with_client(endpoint, &args.connection, async |mut client, target| {
        let name = target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"));
        let profile = profile::ask(&mut client, &name, &selection, args.by).await?;
        show(&profile, &name, args)?;
        Ok(0)
    })
}

fn show(profile: &Profile, name: &str, args: &Args) -> Result<()> {
    let top = match args.top.or((args.format == OutputFormat::Table).then_some(TOP)) {
        None | Some(0) => usize::MAX,
        Some(top) => top,
    };
    let all = profile.rows.num_rows();
    let shown = profile.rows.slice(0, all.min(top));
    let schema = shown.schema();
    let fields = schema.fields().iter().zip(shown.columns());
    if args.format != OutputFormat::Table {
        return rows::show(
            fields.map(|(field, values)| (field.name().as_str(), values.clone())).collect(),
            args.format,
        );
    }
    if !output::unless_closed(io::stdout().write_all(heading(profile, name).as_bytes()))? {
        return Ok(());
    }
    // People get milliseconds.
    let columns: Vec<(String, ArrayRef)> = fields
        .filter(|(field, values)| {
            values.null_count() < values.len() || matches!(field.name().as_str(), "module" | "file")
        })
        .map(|(field, values)| readable(field.name(), values))
        .collect();
    let columns = columns.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
    let optional = ["device_total_ms", "total_ms", "longest_ms", "mean_ms", "category", "device_share_%", "share_%"];
    let left_out = rows::show_what_fits(columns, &optional, args.format)?;
    report::left_out(&left_out);
    if all > shown.num_rows() {
        report::note(format_args!("{} more take less (--top 0 shows all of them)", all - shown.num_rows()));
    }
    let modules = profile.rows.column_by_name("module");
    if modules.is_some_and(|modules| modules.null_count() == modules.len()) {
        report::note("the capture has no modules of its operators");
        report::hint("torch.profiler records it with with_stack=True");
    }
    let files = profile.rows.column_by_name("file");
    if files.is_some_and(|files| files.null_count() == files.len()) {
        report::note("the capture has no stacks, so lines are not known");
        report::hint("torch.profiler records them with with_stack=True");
    }
    Ok(())
}

/// The text above the rows.
fn heading(profile: &Profile, name: &str) -> String {
    let count = |count: i64, noun: &str| if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") };
    let mut out = format!("{name}: ");
    if profile.ranks > 0 {
        let _ = write!(out, "{}, ", count(profile.ranks, "rank"));
    }
    let _ = write!(out, "{}", count(profile.captures.max(1), "capture"));
    if let Some((first, last)) = profile.steps {
        let _ = write!(out, ", steps {first}..{last}");
    }
    let _ = write!(out, ": operators take {} ms on the host", ms(profile.host));
    if profile.device > 0.0 {
        let _ = write!(out, ", and what ran on devices {} ms", ms(profile.device));
    }
    out.push('\n');
    if let Some(((_, total), parts)) = profile.categories.split_last() {
        let percent = |seconds: f64| 100.0 * seconds / total;
        let parts: Vec<String> = parts
            .iter()
            .map(|(category, seconds)| format!("{category} {} ({:.0} %)", ms(*seconds), percent(*seconds)))
            .collect();
        let what = if profile.steps.is_some() { "a step" } else { "a capture" };
        let _ = writeln!(out, "{what} takes {} ms: {}", ms(*total), parts.join(", "));
    }
    out.push('\n');
    out
}

/// Milliseconds with three significant digits.
fn ms(seconds: f64) -> String {
    let ms = seconds * 1000.0;
    match ms.abs() {
        100.0.. => format!("{ms:.0}"),
        10.0..100.0 => format!("{ms:.1}"),
        1.0..10.0 => format!("{ms:.2}"),
        _ => format!("{ms:.3}"),
    }
}

/// A name cut to [`MAX_NAME`] characters: those of kernels may have kilobytes of templates.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Seconds as milliseconds to the microsecond, shares to a tenth of a percent, and files by what is at their end.
fn readable(name: &str, values: &ArrayRef) -> (String, ArrayRef) {
    let rounded = |factor: f64, digits: f64| -> ArrayRef {
        let round = |value: f64| (value * factor * digits).round() / digits;
        Arc::new(values.as_primitive::<Float64Type>().iter().map(|value| value.map(round)).collect::<Float64Array>())
    };
    match (name, values.data_type()) {
        ("share" | "device_share", DataType::Float64) => (format!("{name}_%"), rounded(1.0, 10.0)),
        ("occupancy", DataType::Float64) => ("occupancy_%".to_owned(), rounded(1.0, 10.0)),
        (_, DataType::Float64) => (format!("{name}_ms"), rounded(1000.0, 1000.0)),
        ("kernel" | "operator", DataType::Utf8) => {
            let texts = values.as_string::<i32>().iter().map(|text| text.map(shortened));
            (name.to_owned(), Arc::new(texts.collect::<StringArray>()))
        }
        ("module" | "stage" | "file", DataType::Utf8) => {
            let unknown = match name {
                "module" => "(no module known)",
                "file" => "(no line known)",
                _ => "",
            };
            let texts = values.as_string::<i32>().iter().map(|text| Some(text.unwrap_or(unknown)));
            (name.to_owned(), Arc::new(texts.collect::<StringArray>()))
        }
        _ => (name.to_owned(), values.clone()),
    }
}
