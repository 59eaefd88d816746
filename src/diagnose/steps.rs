//! The steps that are looked at: of `python.steps`, those that every process finished, without warming up and without
//! snippets of `probe eval`.
//!
//! Times are whole numbers of 2^-30 s. The agent records multiples of 2^-27 s, so nothing is rounded, and sums are exact to the
//! last bit.

use crate::shared_steps::SharedSteps;
use crate::unique_pids::UniquePids;
use probe_proto::step_part::StepPart;

/// A time in units of 2^-30 s.
pub(crate) type Ticks = i64;

pub(crate) const TICKS_IN_SECOND: f64 = (1_u64 << 30) as f64;

/// The fewest steps for which times are judged.
pub(crate) const MIN_STEPS: usize = 40;

/// The parts of a step. The last one is the time that the others do not account for (zero with our own agents), less the time by
/// which they exceed the step.
pub(crate) const PARTS: [&str; 9] = {
    let mut parts = ["unaccounted"; 9];
    let mut index = 0;
    while index < StepPart::ALL.len() {
        parts[index] = StepPart::ALL[index].as_str();
        index += 1;
    }
    parts
};
/// The index of waiting for other ranks and for the data that they send: the one part that is not a rank's own work.
pub(crate) const COMM: usize = StepPart::Comm as usize;
pub(crate) const UNACCOUNTED: usize = StepPart::ALL.len();

/// A process whose steps are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiagnosedProcess {
    pub(crate) host: String,
    /// The process id, unique among the hosts of the run: rules tell processes apart by it.
    pub(crate) pid: i64,
    pub(crate) rank: Option<i64>,
}

/// The steps that are looked at, by process.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiagnosedSteps {
    pub(crate) processes: Vec<DiagnosedProcess>,
    /// The numbers of the steps, ascending.
    pub(crate) numbers: Vec<i64>,
    /// The first and the last step that was read, those of the warm-up included.
    pub(crate) read: Option<(i64, i64)>,
    /// The recorded duration of each step, by process and step.
    pub(crate) durations: Vec<Vec<Ticks>>,
    /// The parts of each step, by process and step. The last one is what the others lack to the duration, or have beyond it.
    pub(crate) parts: Vec<Vec<[Ticks; 9]>>,
    /// The least time of a step in which a process's GPU has work, whatever the host does, by process; None without a GPU whose
    /// times are known.
    pub(crate) device_busy: Vec<Option<Ticks>>,
    /// Samples of all processes in a second; None where they are not known.
    pub(crate) samples_per_second: Option<f64>,
    /// Share of the time in which training's threads were ready and had no processor; None where it is not known.
    pub(crate) run_delay: Option<f64>,
    /// Captures that are looked at where an agent recorded no steps, as in imported traces; else 0.
    pub(crate) captures: usize,
    /// Steps that were left out because the process had not settled yet.
    pub(crate) warming_up: usize,
    /// Steps that were left out because only some processes finished them, or because they were captured or had a snippet.
    pub(crate) left_out: usize,
    /// Processes without a rank whose steps are not looked at.
    pub(crate) others: usize,
    /// The shared count of steps, where processes count them differently.
    pub(crate) shared: SharedSteps,
    /// Process ids that are unique among the hosts.
    pub(crate) pids: UniquePids,
}

pub(crate) fn ticks(seconds: f64) -> Ticks {
    (seconds * TICKS_IN_SECOND).round() as Ticks
}

pub(crate) fn seconds(ticks: Ticks) -> f64 {
    ticks as f64 / TICKS_IN_SECOND
}

/// The index of a part in `PARTS`, by its name.
pub(crate) fn part(name: &str) -> Option<usize> {
    PARTS[..UNACCOUNTED].iter().position(|part| *part == name)
}

/// A part of a step as sentences say it.
pub(crate) fn part_in_words(name: &str) -> &str {
    match name {
        "data" => "data loading",
        "comm" => "communication",
        "other" => "the loop's own code (other)",
        name => name,
    }
}

impl DiagnosedSteps {
    pub(crate) fn count(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn duration(&self, process: usize, step: usize) -> Ticks {
        self.durations[process][step]
    }

    /// The observed time of all steps in ticks: the mean over the processes of the sum of their durations.
    pub(crate) fn observed(&self) -> f64 {
        let sum: Ticks = (0..self.processes.len())
            .flat_map(|of| (0..self.count()).map(move |at| (of, at)))
            .map(|(of, at)| self.duration(of, at))
            .sum();
        sum as f64 / self.processes.len().max(1) as f64
    }

    /// The time of a step in which a process's GPU may have nothing to do: the most that the host could save.
    pub(crate) fn device_slack(&self, process: usize, step: usize) -> Option<Ticks> {
        let busy = self.device_busy.get(process).copied().flatten()?;
        Some((self.duration(process, step) - busy).max(0))
    }

    /// The least share of the steps in which a GPU has work, of the process where it has least; None where it is not known of all
    /// processes.
    pub(crate) fn device_busy_share(&self) -> Option<f64> {
        let share = |process: usize| {
            let whole: Ticks = (0..self.count()).map(|step| self.duration(process, step)).sum();
            let slack = (0..self.count()).map(|step| self.device_slack(process, step)).sum::<Option<Ticks>>()?;
            (whole > 0).then(|| 1.0 - slack as f64 / whole as f64)
        };
        (0..self.processes.len()).map(share).reduce(|one, other| Some(one?.min(other?))).flatten()
    }

    /// The index of the process with this rank; with None, of the process without a rank.
    pub(crate) fn process_of(&self, rank: Option<i64>) -> Option<usize> {
        self.processes.iter().position(|process| process.rank == rank)
    }
}
