//! What a capture records, and in which processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use probe_common::error::{Error, Result};
use probe_proto::v1::{At, CaptureCall, CapturedProcess, EvalCall};
use probe_store::ProcessIdentity;

use crate::agent::Agent;

/// Most steps of one capture.
const MAX_STEPS: u32 = 1000;
/// How long a capture may take by default, and at most (seconds).
const DEFAULT_TIMEOUT: f64 = 120.0;
const MAX_TIMEOUT: f64 = 3600.0;
/// Bytes of a process's trace that become rows by default, and at most.
const DEFAULT_BYTES: u64 = 512 << 20;
const MAX_BYTES: u64 = 64 << 30;
/// Most output of a process about a capture (bytes).
const MAX_OUTPUT: u64 = 4 << 20;

/// A capture that is asked for.
#[derive(Debug, Clone)]
pub(super) struct CapturePlan {
    /// Name of the capture: `capture-1`.
    pub name: String,
    pub call: CaptureCall,
    /// The processes that are captured, by rank.
    pub processes: Vec<Arc<ProcessIdentity>>,
    /// Whether `processes` are all that are connected.
    is_everyone: bool,
    /// Where traces are written; nothing else is there.
    pub directory: PathBuf,
}

impl CapturePlan {
    /// Plans the capture `name` of what `call` asks for, in `live` processes.
    ///
    /// # Errors
    /// The call is not valid, or a process that it names is not connected.
    pub(super) fn new(name: String, mut call: CaptureCall, live: &[Arc<Agent>], directory: &Path) -> Result<Self> {
        if call.steps == 0 || call.steps > MAX_STEPS {
            return Err(Error::usage(format!("a capture has 1 to {MAX_STEPS} steps, not {}", call.steps)));
        }
        if call.history > MAX_STEPS {
            let what = format!("a memory history has at most {MAX_STEPS} steps, not {}", call.history);
            return Err(Error::usage(what));
        }
        if call.timeout_s == 0.0 {
            call.timeout_s = DEFAULT_TIMEOUT;
        }
        if !(call.timeout_s > 0.0 && call.timeout_s <= MAX_TIMEOUT) {
            return Err(Error::usage(format!("a capture may take at most {MAX_TIMEOUT} s, not {} s", call.timeout_s)));
        }
        if call.max_bytes == 0 {
            call.max_bytes = DEFAULT_BYTES;
        }
        if call.max_bytes > MAX_BYTES {
            return Err(Error::usage(format!("a capture may take at most {} GiB of a rank", MAX_BYTES >> 30)));
        }
        let mut everyone: Vec<Arc<ProcessIdentity>> =
            live.iter().map(|agent| Arc::clone(&agent.state().identity)).collect();
        everyone.sort_by_key(|process| (process.rank, process.pid));
        if everyone.is_empty() {
            return Err(Error::unreachable("no training process is connected to the run"));
        }
        let is_asked = |process: &ProcessIdentity| {
            let of_pid = call.pid.is_none_or(|pid| u32::try_from(process.pid) == Ok(pid));
            of_pid && (call.ranks.is_empty() || process.rank.is_some_and(|rank| call.ranks.contains(&rank)))
        };
        let there = || everyone.iter().map(|process| process_name(process)).collect::<Vec<_>>().join(", ");
        for rank in &call.ranks {
            if !everyone.iter().any(|process| process.rank == Some(*rank)) {
                return Err(
                    Error::usage(format!("there is no live rank {rank}")).hint(format!("available: {}", there()))
                );
            }
        }
        let processes: Vec<_> = everyone.iter().filter(|process| is_asked(process)).cloned().collect();
        if processes.is_empty() {
            return Err(Error::usage("the process that was asked for is not connected to the run")
                .hint(format!("available: {}", there())));
        }
        let is_everyone = processes.len() == everyone.len();
        Ok(Self { directory: directory.join(&name), name, call, processes, is_everyone })
    }

    /// The snippet that calls `function` of `probe_agent.capture` in the processes of the plan.
    pub(super) fn snippet(&self, function: &str, at: At) -> EvalCall {
        let call = &self.call;
        let options = [
            ("shapes", call.shapes),
            ("stacks", call.stacks),
            ("memory", call.memory),
            ("flops", call.flops),
            ("modules", call.modules),
        ];
        let options: Vec<&str> = options.iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| *name).collect();
        let processes: Vec<_> = self.processes.iter().map(|process| (&*process.host, process.pid)).collect();
        let settings = serde_json::json!({
            "capture": self.name,
            "processes": processes,
            "steps": call.steps,
            "with": options,
            "snapshot": call.snapshot,
            "history": call.history,
            "timeout_s": call.timeout_s,
            "max_bytes": call.max_bytes,
            "directory": self.directory,
        });
        // A string literal of JSON is one of Python too.
        let text = serde_json::Value::from(settings.to_string());
        let code = format!("__import__('probe_agent.capture', fromlist=['{function}']).{function}({text})");
        let mut eval = EvalCall {
            code,
            at: at.into(),
            timeout_s: call.timeout_s,
            max_output: MAX_OUTPUT,
            all_ranks: true,
            ..EvalCall::default()
        };
        if let ([one], false) = (&self.processes[..], self.is_everyone) {
            // The one process runs the snippet alone; the others go on meanwhile.
            (eval.all_ranks, eval.rank, eval.pid) = (false, one.rank, u32::try_from(one.pid).ok());
        }
        eval
    }

    /// The processes as messages to clients have them.
    pub(super) fn captured(&self) -> Vec<CapturedProcess> {
        let captured = |process: &Arc<ProcessIdentity>| CapturedProcess {
            rank: process.rank,
            pid: u32::try_from(process.pid).unwrap_or_default(),
            host: process.host.to_string(),
        };
        self.processes.iter().map(captured).collect()
    }
}

/// The name of one process's capture in the tables: `capture-1/rank0`.
pub(super) fn name_of(name: &str, process: &ProcessIdentity) -> String {
    match process.rank {
        Some(rank) => format!("{name}/rank{rank}"),
        None => format!("{name}/pid{}", process.pid),
    }
}

/// The name of a process in messages.
pub(super) fn process_name(process: &ProcessIdentity) -> String {
    match process.rank {
        Some(rank) => format!("rank {rank} (pid {})", process.pid),
        None => format!("process {}", process.pid),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::agents::agents;
    use probe_common::error::ErrorKind;

    fn plan(live: &[Arc<Agent>], call: CaptureCall) -> Result<CapturePlan> {
        CapturePlan::new("capture-1".into(), call, live, Path::new("/run/captures"))
    }

    #[test]
    fn what_is_asked_for_is_bounded() {
        let live = agents(&[Some(0)], Some(1));
        for call in [
            CaptureCall::default(),
            CaptureCall { steps: MAX_STEPS + 1, ..CaptureCall::default() },
            CaptureCall { steps: 1, timeout_s: f64::NAN, ..CaptureCall::default() },
            CaptureCall { steps: 1, timeout_s: MAX_TIMEOUT + 1.0, ..CaptureCall::default() },
            CaptureCall { steps: 1, max_bytes: MAX_BYTES + 1, ..CaptureCall::default() },
            CaptureCall { steps: 1, history: MAX_STEPS + 1, ..CaptureCall::default() },
            CaptureCall { steps: 1, ranks: vec![1], ..CaptureCall::default() },
            CaptureCall { steps: 1, pid: Some(7), ..CaptureCall::default() },
        ] {
            assert_eq!(plan(&live, call).unwrap_err().kind(), ErrorKind::Usage);
        }
        let call = CaptureCall { steps: 1, ..CaptureCall::default() };
        assert_eq!(plan(&[], call.clone()).unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(plan(&live, call).unwrap().call.max_bytes, DEFAULT_BYTES);
    }

    #[test]
    fn one_of_several_ranks_is_asked_alone_and_some_of_them_with_all() {
        let live = agents(&[Some(1), Some(0), Some(2)], Some(3));
        let chosen = |ranks: &[i32]| {
            let call = CaptureCall { steps: 1, ranks: ranks.to_vec(), ..CaptureCall::default() };
            let plan = plan(&live, call).unwrap();
            let eval = plan.snippet("arm", At::Step);
            (plan.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), eval.all_ranks, eval.rank)
        };
        assert_eq!(chosen(&[]), (vec![101, 100, 102], true, None));
        assert_eq!(chosen(&[0, 2]), (vec![101, 102], true, None));
        assert_eq!(chosen(&[2]), (vec![102], false, Some(2)));
    }

    #[test]
    fn a_snippet_names_its_processes_whatever_the_directory_is_called() {
        let call = CaptureCall { steps: 3, modules: true, shapes: true, ..CaptureCall::default() };
        let plan =
            CapturePlan::new("capture-1".into(), call, &agents(&[Some(0)], Some(1)), Path::new("/a 'b\" c\\")).unwrap();
        let code = plan.snippet("check", At::Now).code;
        let text = code.strip_prefix("__import__('probe_agent.capture', fromlist=['check']).check(").unwrap();
        let text: String = serde_json::from_str(text.strip_suffix(')').unwrap()).unwrap();
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(settings["directory"], "/a 'b\" c\\/capture-1");
        assert_eq!(settings["processes"], serde_json::json!([["h", 100]]));
        assert_eq!(settings["with"], serde_json::json!(["shapes", "modules"]));
    }
}
