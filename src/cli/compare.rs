//! `probe compare A [B]`: before and after.

use probe_client::Client;
use probe_client::endpoint::FoundEndpoint;
use probe_common::error::{Error, Result};

use super::connect::{self, ConnectOptions};
use super::report;
use super::status::{CommandStatus, INTERRUPTED};
use crate::compare::{self, ComparedRow, ComparedRun, ComparisonVerdict, LAST_STEPS, MIN_STEPS};
use crate::output::{OutputFormat, rows};
use crate::step_window::StepWindow;

/// Rows of modules that a table shows without --top.
const TOP: usize = 20;

/// Compare two runs, or two windows of one
///
/// Shows the time of a step and its parts in A and in B, then every module and stage, ordered by the change. Times are
/// medians over steps, in milliseconds a step. The value of a step is the mean over its ranks. low and high are a 95 %
/// interval of the change (bootstrap over steps). A change is outside noise if the interval does not contain zero,
/// which happens by chance for one row in twenty. Differences between two starts of one program are not part of that
/// noise.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe compare [OPTIONS] <A> <B>\n       probe compare [OPTIONS] [A] --steps <WINDOW> --against <WINDOW>",
    after_help = "Examples:
  probe compare gpt@1 gpt@2
  probe compare gpt@1 gpt@2 --steps 100..200
  probe compare gpt --steps 10..50 --against 60..100      # two windows of one run
  probe compare gpt@1 ./other/gpt@7 --steps 100.. --format csv > changes.csv"
)]
pub(super) struct Args {
    /// The baseline: an ENDPOINT, recorded or live
    #[arg(value_name = "A")]
    a: Option<String>,
    /// The run to compare with it [default: A, in another window]
    #[arg(value_name = "B")]
    b: Option<String>,
    /// Steps of A, and of B unless --against is given: 10..50 (both included), 100.., ..99 [default: the last 1000 of
    /// each]
    #[arg(long, value_name = "WINDOW")]
    steps: Option<StepWindow>,
    /// Steps of B
    #[arg(long, value_name = "WINDOW")]
    against: Option<StepWindow>,
    /// Number of modules to show; 0 means all [default: 20 in a table, otherwise all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args) -> Result<CommandStatus> {
    if args.b.is_none() && (args.steps.is_none() || args.against.is_none()) {
        let a = args.a.as_deref().unwrap_or("gpt");
        return Err(Error::usage("there is only one run in one window, and a comparison needs two")
            .hint(format!("probe compare {a} OTHER, or two windows of {a}: --steps 10..50 --against 60..100")));
    }
    args.format.check_stdout()?;
    connect::interruptible(INTERRUPTED, async {
        let (mut client_a, target_a) = connect::open(args.a.as_deref(), &args.connection).await?;
        let other = args.b.as_deref().or(args.a.as_deref());
        let (mut client_b, target_b) = connect::open(other, &args.connection).await?;
        let (a, name_a) = side(&mut client_a, &target_a, args.steps).await?;
        let (b, name_b) = side(&mut client_b, &target_b, args.against.or(args.steps)).await?;
        // Drawing steps takes time, and Ctrl-C must work meanwhile.
        let compared = tokio::task::spawn_blocking(move || (compare::compare(&a, &b), a, b)).await;
        let (compared, a, b) = compared.map_err(Error::caused)?;
        say("A", &name_a, &a);
        say("B", &name_b, &b);
        if a.clocks != b.clocks {
            report::note(format_args!(
                "stage times are by the {} clock in A and by the {} clock in B: they do not compare",
                a.clocks.join(" and "),
                b.clocks.join(" and ")
            ));
        }
        show(compared, args)
    })
}

async fn side(
    client: &mut Client,
    target: &FoundEndpoint,
    window: Option<StepWindow>,
) -> Result<(ComparedRun, String)> {
    let name = target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"));
    Ok((compare::read(client, &name, window).await?, name))
}

/// Prints what A or B stands for.
fn say(which: &str, name: &str, side: &ComparedRun) {
    let (first, last) =
        (side.steps.first().copied().unwrap_or_default(), side.steps.last().copied().unwrap_or_default());
    let steps = side.steps.len();
    let detailed = side.modules.values().map(|values| values.iter().flatten().count()).max().unwrap_or_default();
    let processes = if side.processes == 1 { "1 process".to_owned() } else { format!("{} processes", side.processes) };
    let mut left_out = match side.left_out {
        0 => String::new(),
        count => format!("; {count} more that not every process finished are left out"),
    };
    if side.untrained > 0 {
        left_out += &format!("; {} more that do not train are left out", side.untrained);
    }
    let limited = if steps as i64 == LAST_STEPS { ", the last ones" } else { "" };
    report::note(format_args!(
        "{which} is {name}: steps {first}..{last} ({steps} of {processes}{limited}, {detailed} with modules){left_out}"
    ));
    if let Some(why) = &side.processes_left_out {
        report::note(format_args!("{which}: {why}"));
    }
}

fn show(mut compared: Vec<ComparedRow>, args: &Args) -> Result<CommandStatus> {
    let outside = compared
        .iter()
        .filter(|row| matches!(row.verdict, ComparisonVerdict::Slower | ComparisonVerdict::Faster))
        .count();
    let judged = outside + compared.iter().filter(|row| row.verdict == ComparisonVerdict::WithinNoise).count();
    let parts = compared.iter().filter(|row| row.what.is_none()).count();
    let all = compared.len();
    match args.top.or((args.format == OutputFormat::Table).then_some(TOP)) {
        None | Some(0) => {}
        Some(top) => compared.truncate(parts + top),
    }
    let name = |row: &ComparedRow| match &row.what {
        Some((module, _)) => module.clone(),
        None => Some("(whole step)".to_owned()),
    };
    let integer = |count: usize| i64::try_from(count).ok();
    // People get a microsecond and a tenth of a percent, which is more than noise leaves; programs get all of it.
    let rounded = |value: f64, per_unit: f64| match args.format {
        OutputFormat::Table => (value * per_unit).round() / per_unit,
        _ => value,
    };
    let ms = |field: fn(&ComparedRow) -> Option<f64>| {
        rows::floats(compared.iter().map(|row| Some(rounded(field(row)?, 1000.0))))
    };
    let percent = |field: fn(&ComparedRow) -> Option<f64>| {
        rows::floats(compared.iter().map(|row| Some(rounded(field(row)?, 10.0))))
    };
    let verdict = |row: &ComparedRow| match row.verdict {
        ComparisonVerdict::TooFewSteps if args.format == OutputFormat::Table => {
            format!("too few steps: {}", row.steps_a.min(row.steps_b))
        }
        verdict => verdict.as_str().to_owned(),
    };
    let left_out = rows::show_what_fits(
        vec![
            ("module", rows::text(compared.iter().map(name))),
            ("stage", rows::text(compared.iter().map(|row| Some(&row.stage)))),
            ("a_ms", ms(|row| row.a_ms)),
            ("b_ms", ms(|row| row.b_ms)),
            ("change_ms", ms(|row| row.change_ms)),
            ("change_percent", percent(|row| row.change_percent)),
            ("low_percent", percent(|row| Some(row.interval_percent?.0))),
            ("high_percent", percent(|row| Some(row.interval_percent?.1))),
            ("steps_a", rows::integers(compared.iter().map(|row| integer(row.steps_a)))),
            ("steps_b", rows::integers(compared.iter().map(|row| integer(row.steps_b)))),
            ("verdict", rows::text(compared.iter().map(|row| Some(verdict(row))))),
        ],
        &["steps_a", "steps_b", "low_percent", "high_percent", "change_ms"],
        args.format,
    )?;
    report::left_out(&left_out);
    if all > compared.len() {
        report::note(format_args!("{} more modules changed less (--top 0 shows all of them)", all - compared.len()));
    }
    if judged > 0 {
        report::note(format_args!(
            "{outside} of {judged} rows are outside noise; about {} would be by chance alone",
            judged.div_ceil(20)
        ));
    } else {
        report::note(format_args!("nothing can be said about noise with fewer than {MIN_STEPS} steps"));
    }
    Ok(0)
}
