//! `probe [ENDPOINT] export`: a timeline for other viewers.

mod files;

use std::path::PathBuf;

use probe_client::Client;
use probe_client::endpoint::FoundEndpoint;
use probe_common::error::{Error, Result};
use probe_export::WrittenCounts;

use self::files::{FileFormat, UnfinishedDirectory, write_plan};
use super::connect::{ConnectOptions, with_client};
use super::ranks::RankSelection;
use super::report;
use super::status::CommandStatus;
use crate::export::{ExportChoice, ExportPlan, ExportRequest};
use crate::step_window::StepWindow;

/// Write a timeline for Perfetto, Chrome, HTA and TensorBoard
///
/// Draws steps, modules, collectives, spans, memory and events of all ranks on one time axis, and what was captured or imported:
/// operators, launches and what ran on devices, with arrows from launches to kernels, from forward to backward, and between
/// the ranks of a collective. Rows are read and written piece by piece, so memory does not grow with the file.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] export [OPTIONS] -o <FILE>\n       probe [ENDPOINT] export [OPTIONS] --per-rank <DIR>",
    after_help = "Examples:
  probe gpt export -o gpt.pftrace                         # open it at https://ui.perfetto.dev
  probe gpt@1 export --steps 100..110 --rank 0,3 -o slow.json.gz
  probe gpt export --steps 100..110 --per-rank traces/    # for HTA and TensorBoard"
)]
pub(super) struct Args {
    /// Steps to write: 10..50 (both included), 100.., ..99 [default: the newest 10; all of an imported trace]
    #[arg(long, value_name = "WINDOW")]
    steps: Option<StepWindow>,
    /// Ranks to write: 0,3 or all
    #[arg(long, value_name = "RANKS", default_value = "all")]
    rank: RankSelection,
    /// File to write, which appears when it is complete
    #[arg(short, long, value_name = "FILE", required_unless_present = "per_rank", conflicts_with = "per_rank")]
    output: Option<PathBuf>,
    /// Directory for one Chrome JSON per process, as HTA and TensorBoard's profiler plugin read them
    #[arg(long, value_name = "DIR", conflicts_with = "format")]
    per_rank: Option<PathBuf>,
    /// Format of FILE [default: by its name: .pftrace is perfetto, .json and .json.gz are chrome]
    #[arg(long, value_enum, hide_default_value = true)]
    format: Option<FileFormat>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    // Errors that can be found before anything is read.
    let shape = match &args.output {
        Some(path) => Some(files::check_file(path, args.format, args.force)?),
        None => None,
    };
    let directory = args.per_rank.as_deref().map(UnfinishedDirectory::create).transpose()?;
    let request = ExportRequest { steps: args.steps, ranks: args.rank.0.clone() };
    with_client(endpoint, &args.connection, async |mut client, target| {
        let name = name(target);
        let choice = ExportChoice::find(&mut client, &name, &request).await?;
        if choice.processes.iter().any(|process| process.is_relative) && choice.processes.len() > 1 {
            report::note(
                "the times of some traces are from an instant that is not known: between ranks they may not be aligned",
            );
        }
        if let Some(why) = &choice.not_shared {
            report::note(format_args!("{why}; they are chosen by their own numbers"));
        }
        match (&args.output, shape, directory) {
            (Some(path), Some(shape), _) => {
                let plan = ExportPlan::new(&mut client, &choice).await?;
                let operators = plan.operators;
                let about = format!("{{\"run\": {}}}", serde_json::json!(name));
                let written = write_plan(&mut client, plan, path, shape, &[("probe", about)]).await?;
                tell(&choice, written, &path.display().to_string());
                hint(&choice, operators, shape);
            }
            (_, _, Some(directory)) => per_rank(&mut client, &choice, &name, directory).await?,
            _ => return Err(Error::usage("no FILE to write to").hint("probe export -o FILE")),
        }
        Ok(0)
    })
}

fn name(target: &FoundEndpoint) -> String {
    target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"))
}

async fn per_rank(
    client: &mut Client,
    choice: &ExportChoice,
    name: &str,
    directory: UnfinishedDirectory,
) -> Result<()> {
    let without_rank = choice.processes.iter().filter(|process| process.rank.is_none()).count();
    if without_rank > 0 && choice.processes.len() > 1 {
        return Err(Error::failed(format!(
            "cannot write a file for each rank: the rank of {without_rank} of {} processes and captures of {name} is not known",
            choice.processes.len()
        ))
        .hint("name the ranks that are known (--rank), or write all into one file (-o FILE.json.gz)"));
    }
    let mut total = WrittenCounts::default();
    for index in 0..choice.processes.len() {
        let one = choice.of_process(index);
        let process = &one.processes[0];
        let plan = match ExportPlan::new(client, &one).await {
            Ok(plan) => plan,
            // The process had not begun by these steps, or has ended.
            Err(error) if choice.processes.len() > 1 => {
                report::note(format_args!("{}: {error}", process.name()));
                continue;
            }
            Err(error) => return Err(error),
        };
        let rank = process.rank.unwrap_or(index as i64);
        let world = process.world_size.map(|size| format!(", \"world_size\": {size}")).unwrap_or_default();
        let about = [
            ("distributedInfo", format!("{{\"rank\": {rank}{world}}}")),
            ("deviceProperties", "[]".to_owned()),
            ("probe", format!("{{\"run\": {}}}", serde_json::json!(name))),
        ];
        let base = plan.base / 1_000_000;
        let path = directory.file_path(&format!("rank{rank}"), index, base);
        let written = write_plan(client, plan, &path, FileFormat::ChromeGzip, &about).await?;
        total.slices += written.slices;
        total.arrows += written.arrows;
        total.values += written.values;
        total.instants += written.instants;
        total.left_out += written.left_out;
    }
    if total.slices == 0 {
        return Err(Error::failed(format!("no process of {name} has rows within these steps")));
    }
    let shown = directory.finish()?;
    tell(choice, total, &shown);
    report::hint(format_args!("HTA: TraceAnalysis(trace_dir=\"{shown}\"); TensorBoard: tensorboard --logdir {shown}"));
    Ok(())
}

fn tell(choice: &ExportChoice, written: WrittenCounts, to: &str) {
    let processes = match choice.processes.len() {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let steps = choice.steps.map_or_else(String::new, |steps| format!(", steps {steps}"));
    report::note(format_args!(
        "{processes}{steps}: {} slices, {} arrows, {} counter values and {} instants, written to {to}",
        written.slices, written.arrows, written.values, written.instants
    ));
    if written.left_out > 0 {
        report::note(format_args!(
            "{} slices are not drawn: more than 64 of their track overlap there",
            written.left_out
        ));
    }
}

fn hint(choice: &ExportChoice, operators: u64, shape: FileFormat) {
    if operators == 0 {
        report::note("no operators were captured in these steps: modules and collectives are drawn");
        if let Some((first, last)) = choice.captured {
            report::hint(format_args!("--steps {first}..{last} has the steps that were captured"));
        }
    }
    if shape == FileFormat::Perfetto {
        report::hint("https://ui.perfetto.dev opens it, and reads it in your browser");
    }
}
