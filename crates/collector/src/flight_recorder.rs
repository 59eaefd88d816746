//! Asks PyTorch's Flight Recorder which collectives a process has begun and not finished: with shapes, types and the line that
//! asked, and for NCCL, which of them its device has begun. That works where the recorder is on (gloo and NCCL in torch 2.15 by
//! default, NCCL by `TORCH_FR_BUFFER_SIZE` before), and where the process gives its GIL.

use std::fmt::Write;
use std::sync::Arc;

use probe_common::user_code::is_user_code;
use probe_proto::v1::{At, EvalCall};
use serde::{Deserialize, Serialize};

use crate::eval::SnippetBroker;
use crate::server::peer::AuditedCaller;
use crate::truncate::truncate;

/// How long an answer may take (s): a process that keeps its GIL gives none.
const SECONDS: f64 = 2.0;
/// Longest answer (bytes).
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// Longest line about an operation (bytes).
const MAX_LINE_BYTES: usize = 512;

/// The snippet: prints a JSON object, and imports nothing of torch that is not imported already. To name the lines of stacks,
/// torch looks up `torch._inductor`, and that imports all of torch.compile. So the snippet asks for stacks only if the program has
/// imported it, as every program with an optimizer has.
const CODE: &str = r#"
def _recorded():
    import json, pickle, sys
    c10d = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    fr, nccl = getattr(c10d, "_dump_fr_trace", None), getattr(c10d, "_dump_nccl_trace", None)
    stacks = "_inductor" in vars(sys.modules["torch"])
    ways = [lambda: fr(True, stacks, True)] if fr else []
    ways += [lambda: nccl(True, stacks, True)] if nccl else []
    pending, groups, seen = [], {}, set()
    for way in ways:
        try:
            dump = pickle.loads(way())
        except Exception:
            continue
        for name, status in (dump.get("pg_status") or {}).items():
            groups[str(name)] = {key: int(status.get("last_%s_collective" % key, -1))
                                 for key in ("enqueued", "started", "completed")}
        for entry in dump.get("entries") or ():
            key = (entry.get("profiling_name"), entry.get("record_id"))
            if entry.get("retired") or entry.get("state") == "completed" or key in seen:
                continue
            seen.add(key)
            group = entry.get("process_group") or ("", "")
            pending.append({
                "operation": entry["profiling_name"],
                "group": group[0], "description": group[1],
                "seq": entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"],
                "state": entry["state"],
                "input_sizes": entry["input_sizes"], "input_dtypes": entry["input_dtypes"],
                "created_ns": entry["time_created_ns"],
                "frames": [[f["name"], f["filename"], f["line"]] for f in entry.get("frames") or ()][:64],
            })
    print(json.dumps({"pending": pending[:16], "groups": groups}))
_recorded()
"#;

/// The answer of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FlightRecording {
    /// The collectives that are not finished, oldest first.
    pending: Vec<UnfinishedCollective>,
    /// By group, the numbers that were last enqueued, begun and finished; -1 for none, or not known.
    groups: serde_json::Map<String, serde_json::Value>,
}

/// A collective that is not finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct UnfinishedCollective {
    operation: String,
    group: String,
    description: String,
    seq: i64,
    state: String,
    input_sizes: Vec<Vec<i64>>,
    input_dtypes: Vec<String>,
    created_ns: i64,
    /// The stack that asked, from the training script's own code on: function, file and line, innermost first.
    frames: Vec<(String, String, u32)>,
}

/// Asks a process; None where it does not answer, for whatever reason.
pub(super) async fn ask(broker: &Arc<SnippetBroker>, pid: u32, asked_by: &AuditedCaller) -> Option<FlightRecording> {
    let call = EvalCall {
        code: CODE.into(),
        at: At::Now.into(),
        timeout_s: SECONDS,
        max_output: MAX_ANSWER_BYTES,
        pid: Some(pid),
        ..EvalCall::default()
    };
    let printed = broker.printed(call, &asked_by.within("hang")).await.ok()?;
    understand(&printed)
}

fn understand(printed: &[u8]) -> Option<FlightRecording> {
    let mut recorded: FlightRecording = serde_json::from_slice(printed).ok()?;
    for operation in &mut recorded.pending {
        let own = operation.frames.iter().position(|(_, file, _)| is_user_code(file)).unwrap_or(0);
        operation.frames = operation.frames.split_off(own);
        operation.frames.truncate(1);
    }
    recorded.pending.sort_by_key(|operation| operation.created_ns);
    Some(recorded)
}

impl FlightRecording {
    /// The oldest operation as one line; empty if no operation is pending.
    pub(super) fn line(&self) -> String {
        let Some(oldest) = self.pending.first() else { return String::new() };
        let group = if oldest.description.is_empty() { &oldest.group } else { &oldest.description };
        let mut line = format!("{} {} of {group}, {}", oldest.operation, oldest.seq, oldest.state);
        for (sizes, kind) in oldest.input_sizes.iter().zip(&oldest.input_dtypes) {
            let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            let _ = write!(line, ", {kind} [{}]", sizes.join(", "));
        }
        if let Some((function, file, number)) = oldest.frames.first() {
            let _ = write!(line, ", from {function} {file}:{number}");
        }
        if let [_, more @ ..] = &self.pending[..]
            && !more.is_empty()
        {
            let _ = write!(line, " (and {} more)", more.len());
        }
        // The text comes from the process, and goes into a line of a terminal.
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        truncate(line, MAX_LINE_BYTES)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_pends_longest_is_told_with_its_own_line() {
        let entry = |seq: i64, created: i64| {
            serde_json::json!({
                "operation": "nccl:all_reduce", "group": "0", "description": "default_pg", "seq": seq,
                "state": "started", "input_sizes": [[4, 5]], "input_dtypes": ["Float"], "created_ns": created,
                "frames": [["all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 1],
                           ["train", "/home/me/train.py", 62], ["<module>", "/home/me/train.py", 90]],
            })
        };
        let printed = serde_json::json!({ "pending": [entry(8, 20), entry(7, 10)], "groups": {} }).to_string();
        let recorded = understand(printed.as_bytes()).unwrap();
        assert_eq!(
            recorded.line(),
            "nccl:all_reduce 7 of default_pg, started, Float [4, 5], from train /home/me/train.py:62 (and 1 more)"
        );
        assert_eq!(recorded.pending[0].frames.len(), 1);
        assert_eq!(understand(b"{}"), None);
        assert_eq!(understand(br#"{"pending": [], "groups": {}}"#).unwrap().line(), "");
    }
}
