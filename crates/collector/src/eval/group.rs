//! Chooses the processes of a snippet.

use std::collections::BTreeSet;
use std::sync::Arc;

use probe_common::error::{Error, Result};
use probe_proto::v1::EvalCall;

use crate::agent::Agent;

/// The hint where not all ranks can run a snippet together.
pub(super) const ALONE: &str = "--rank N runs it on one rank alone, which must not take part in collectives then";

/// A process that a snippet may run in.
#[derive(Debug, Clone)]
pub(super) struct SnippetTarget {
    pub agent: Arc<Agent>,
    pub rank: Option<i32>,
    pub pid: i32,
    /// Whether the target's output is shown. Beside training a snippet runs only in targets that are shown.
    pub shown: bool,
}

impl SnippetTarget {
    /// The name of the target in messages.
    pub(super) fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} (pid {})", self.pid),
            None => format!("process {}", self.pid),
        }
    }
}

/// The processes of a snippet that runs between two steps.
#[derive(Debug, Clone)]
pub(super) struct SnippetGroup {
    /// The processes, by rank. At least one is shown.
    pub targets: Vec<SnippetTarget>,
    /// Whether the targets have to run the snippet at the same step.
    pub together: bool,
    /// Ranks of the process group that are not connected here.
    pub missing: Vec<i32>,
}

/// Chooses among `live` agents of `run` by what was asked for.
///
/// A process group's ranks run a snippet between steps all together: one that ran it alone would fall out of step.
/// Asking a process by its pid chooses whose output is shown; only asking for a rank takes that rank alone.
pub(super) fn choose(live: &[Arc<Agent>], call: &EvalCall, run: &str) -> Result<SnippetGroup> {
    let (mut everyone, mut world) = (Vec::with_capacity(live.len()), None);
    for agent in live {
        let state = agent.state();
        world = world.max(state.identity.world_size);
        let (rank, pid) = (state.identity.rank, state.identity.pid);
        everyone.push(SnippetTarget { agent: Arc::clone(agent), rank, pid, shown: false });
    }
    everyone.sort_by_key(|target| (target.rank, target.agent.key));
    let names = || everyone.iter().map(SnippetTarget::name).collect::<Vec<_>>().join(", ");
    if everyone.is_empty() {
        return Err(Error::unreachable(format!("no training process is connected to {run}"))
            .hint("a process connects at its first module call, optimizer step or init_process_group; probe list shows who is there"));
    }
    if let Some(rank) = call.rank {
        let of_rank =
            everyone.iter().filter(|target| target.rank == Some(rank) && call.pid.is_none_or(|pid| target.is(pid)));
        return match &of_rank.collect::<Vec<_>>()[..] {
            [one] => Ok(SnippetGroup::alone((*one).clone())),
            [] => {
                Err(Error::usage(format!("there is no live rank {rank} in {run}"))
                    .hint(format!("available: {}", names())))
            }
            several => Err(ambiguous(&format!("rank {rank}"), several)),
        };
    }
    let asked = match call.pid {
        Some(pid) => Some(everyone.iter().position(|target| target.is(pid)).ok_or_else(|| {
            Error::unreachable(format!("process {pid} is not connected to {run}"))
                .hint(format!("available: {}", names()))
        })?),
        None => None,
    };
    if let Some(index) = asked
        && everyone[index].rank.is_none()
        && !call.all_ranks
    {
        return Ok(SnippetGroup::alone(everyone.swap_remove(index)));
    }
    let asked_key = asked.map(|index| everyone[index].agent.key);
    let (mut ranked, unranked): (Vec<SnippetTarget>, Vec<SnippetTarget>) =
        everyone.into_iter().partition(|target| target.rank.is_some());
    if ranked.is_empty() {
        return SnippetGroup::unrelated(unranked, call.all_ranks);
    }
    for pair in ranked.windows(2) {
        if pair[0].rank == pair[1].rank {
            return Err(ambiguous(&format!("rank {}", pair[0].rank.unwrap_or_default()), &[&pair[0], &pair[1]]));
        }
    }
    let shown = asked_key.unwrap_or(ranked[0].agent.key);
    for target in &mut ranked {
        target.shown = call.all_ranks || target.agent.key == shown;
    }
    let here: BTreeSet<i32> = ranked.iter().filter_map(|target| target.rank).collect();
    let missing = (0..world.unwrap_or_default()).filter(|rank| !here.contains(rank)).collect();
    let together = ranked.len() > 1;
    Ok(SnippetGroup { targets: ranked, together, missing })
}

impl SnippetTarget {
    fn is(&self, pid: u32) -> bool {
        u32::try_from(self.pid) == Ok(pid)
    }
}

impl SnippetGroup {
    fn alone(target: SnippetTarget) -> Self {
        Self { targets: vec![SnippetTarget { shown: true, ..target }], together: false, missing: Vec::new() }
    }

    /// Returns an error where a target runs no snippets that come over TCP. Processes check that themselves too.
    pub(super) fn check_over_tcp(&self) -> Result<()> {
        match self.targets.iter().find(|target| !target.agent.state().about.eval_over_tcp) {
            None => Ok(()),
            Some(target) => Err(Error::denied(format!("{} runs no snippets that come over TCP", target.name()))
                .hint("training has to be started with PROBE_EVAL=tcp")),
        }
    }

    /// Returns an error where a target does not say where it waits, so that it is not known whether all wait at the same step.
    pub(super) fn check_can_meet(&self) -> Result<()> {
        match self.targets.iter().find(|target| !target.agent.state().about.says_arrived) {
            None => Ok(()),
            Some(target) => {
                let what = "its agent is older than the collector and does not say where it waits";
                Err(Error::denied(format!(
                    "not run: a snippet between steps runs on all ranks, and {}: {what}",
                    target.name()
                ))
                .hint(format!("training has to be started with the wheel of the collector; {ALONE}")))
            }
        }
    }

    /// The group of processes that are in no process group.
    fn unrelated(mut targets: Vec<SnippetTarget>, all: bool) -> Result<Self> {
        if targets.len() > 1 && !all {
            let all: Vec<&SnippetTarget> = targets.iter().collect();
            return Err(ambiguous("the run", &all));
        }
        for target in &mut targets {
            target.shown = true;
        }
        Ok(Self { targets, together: false, missing: Vec::new() })
    }

    /// The ranks of the targets that `of` selects.
    pub(super) fn ranks(&self, of: impl Fn(&SnippetTarget) -> bool) -> Vec<i32> {
        self.targets.iter().filter(|target| of(target)).filter_map(|target| target.rank).collect()
    }
}

fn ambiguous(what: &str, targets: &[&SnippetTarget]) -> Error {
    let pids: Vec<String> = targets.iter().map(|target| target.pid.to_string()).collect();
    let hint = format!("say which one: probe {} eval …", pids.first().map_or("PID", String::as_str));
    Error::usage(format!("{what} is {} processes: {}", pids.len(), pids.join(", "))).hint(hint)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::agents::agents;
    use probe_common::error::ErrorKind;

    /// Pids with whether they are shown; whether they run together; ranks that are missing.
    type Chosen = (Vec<(i32, bool)>, bool, Vec<i32>);

    fn chosen(live: &[Arc<Agent>], call: EvalCall) -> Result<Chosen> {
        let group = choose(live, &call, "gpt@1")?;
        Ok((group.targets.iter().map(|t| (t.pid, t.shown)).collect(), group.together, group.missing))
    }

    #[test]
    fn ranks_run_together_and_the_first_is_shown() {
        let live = agents(&[Some(1), Some(0)], Some(2));
        let call = EvalCall::default;
        assert_eq!(chosen(&live, call()).unwrap(), (vec![(101, true), (100, false)], true, vec![]));
        let by_pid = EvalCall { pid: Some(100), ..call() };
        assert_eq!(chosen(&live, by_pid).unwrap(), (vec![(101, false), (100, true)], true, vec![]));
        let all = EvalCall { all_ranks: true, ..call() };
        assert_eq!(chosen(&live, all).unwrap(), (vec![(101, true), (100, true)], true, vec![]));
        let one = EvalCall { rank: Some(1), ..call() };
        assert_eq!(chosen(&live, one).unwrap(), (vec![(100, true)], false, vec![]));
    }

    #[test]
    fn ranks_that_are_not_here_are_known() {
        let live = agents(&[Some(1)], Some(4));
        assert_eq!(chosen(&live, EvalCall::default()).unwrap().2, [0, 2, 3]);
        assert_eq!(chosen(&live, EvalCall { rank: Some(1), ..Default::default() }).unwrap().2, [0; 0]);
    }

    #[test]
    fn processes_without_ranks_are_told_apart_by_pid() {
        let live = agents(&[None, None], None);
        let error = chosen(&live, EvalCall::default()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Usage, "the run is 2 processes: 100, 101"));
        assert_eq!(chosen(&live[..1], EvalCall::default()).unwrap().0, [(100, true)]);
        assert_eq!(chosen(&live, EvalCall { pid: Some(101), ..Default::default() }).unwrap().0, [(101, true)]);
        let all = EvalCall { all_ranks: true, ..Default::default() };
        assert_eq!(chosen(&live, all).unwrap(), (vec![(100, true), (101, true)], false, vec![]));
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        assert_eq!(chosen(&[], EvalCall::default()).unwrap_err().kind(), ErrorKind::Unreachable);
        let live = agents(&[Some(0)], Some(1));
        let error = chosen(&live, EvalCall { rank: Some(7), ..Default::default() }).unwrap_err();
        assert_eq!(error.hint_text(), Some("available: rank 0 (pid 100)"));
        let error = chosen(&live, EvalCall { pid: Some(7), ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let twins = agents(&[Some(0), Some(0)], Some(1));
        assert!(chosen(&twins, EvalCall::default()).unwrap_err().to_string().contains("rank 0 is 2 processes"));
    }
}
