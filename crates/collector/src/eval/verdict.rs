//! The outcome of a snippet over all of its processes.

use probe_proto::v1::{Done, Finished, Outcome};

use super::group::SnippetTarget;

/// The outcome over all processes: the first that is not OK, otherwise OK. A process that was only cancelled because another
/// failed comes after that other, and one that is not shown after those that are.
pub(super) fn verdict(results: &[(&SnippetTarget, &Done)]) -> Finished {
    let waited = results.iter().map(|(_, done)| done.training_waited_s).fold(0.0, f64::max);
    let wrong = results.iter().filter(|(_, done)| done.outcome() != Outcome::Ok);
    let first = wrong.min_by_key(|(target, done)| (done.outcome() == Outcome::Cancelled, !target.shown));
    let Some((target, done)) = first else {
        return Finished { outcome: Outcome::Ok as i32, training_waited_s: waited, ..Default::default() };
    };
    // The error of one of several processes names it; the traceback of the only one that is shown needs no heading.
    let mut error = if results.len() > 1 || !target.shown {
        format!("{}: {}", target.name(), done.error)
    } else {
        done.error.clone()
    };
    let outcome = match done.outcome() {
        Outcome::Unspecified => Outcome::Error,
        outcome => outcome,
    };
    let mut advice = hint(outcome).to_owned();
    if done.still_running {
        error +=
            "; it is still running, in a call that Python cannot interrupt, and no other snippet runs there meanwhile";
        advice = format!("probe {} stack shows where it is", target.pid);
    }
    if !done.hint.is_empty() {
        advice.clone_from(&done.hint);
    }
    Finished { outcome: outcome as i32, error, hint: advice, training_waited_s: waited }
}

/// What to do about an outcome; empty where the agent's own words say it.
pub(super) fn hint(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Timeout => "--timeout gives it longer",
        Outcome::NoBoundary => "--timeout waits longer for the step to end; --at now runs it beside training",
        Outcome::OutputLimit => "print less, or --max-output lets it print up to 64M",
        _ => "",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::{Agent, AgentDescription};
    use probe_store::ProcessIdentity;

    fn target(rank: i32, shown: bool) -> SnippetTarget {
        let text = || Arc::<str>::from("");
        let identity = ProcessIdentity {
            run: text(),
            host: text(),
            pid: 100 + rank,
            rank: Some(rank),
            local_rank: None,
            world_size: None,
            role: text(),
        };
        let agent = Arc::new(Agent::new(rank as u64, "i", Arc::new(identity), AgentDescription::default()));
        SnippetTarget { agent, rank: Some(rank), pid: 100 + rank, shown }
    }

    fn done(outcome: Outcome, waited: f64) -> Done {
        Done { outcome: outcome as i32, error: format!("{outcome:?}"), training_waited_s: waited, ..Default::default() }
    }

    #[test]
    fn the_cause_is_said_and_not_what_followed_from_it() {
        let (zero, one) = (target(0, true), target(1, false));
        let both = |a: Outcome, b: Outcome| verdict(&[(&zero, &done(a, 1.0)), (&one, &done(b, 2.0))]);
        let ok = both(Outcome::Ok, Outcome::Ok);
        assert_eq!((ok.outcome(), ok.training_waited_s, ok.error.as_str()), (Outcome::Ok, 2.0, ""));
        let muted = both(Outcome::Ok, Outcome::Error);
        assert_eq!((muted.outcome(), muted.error.as_str()), (Outcome::Error, "rank 1 (pid 101): Error"));
        assert_eq!(both(Outcome::Error, Outcome::Timeout).outcome(), Outcome::Error);
        assert_eq!(both(Outcome::Cancelled, Outcome::Error).outcome(), Outcome::Error);
        assert_eq!(both(Outcome::Cancelled, Outcome::Ok).outcome(), Outcome::Cancelled);
        let alone = verdict(&[(&zero, &done(Outcome::NoBoundary, 0.0))]);
        assert_eq!(alone.error, "NoBoundary");
        assert!(alone.hint.contains("--at now"));
        let runs_on = verdict(&[(&zero, &Done { still_running: true, ..done(Outcome::Timeout, 0.0) })]);
        assert!(runs_on.error.contains("still running") && runs_on.hint.contains("probe 100 stack"), "{runs_on:?}");
        let knows = verdict(&[(&zero, &Done { hint: "so".into(), ..done(Outcome::Timeout, 0.0) })]);
        assert_eq!(knows.hint, "so");
    }
}
