//! `python.checkpoints`: what the program saved, and how long that took.

use crate::table::{Text, Time};

crate::table! {
    python.checkpoints, Agent, "One row per torch.save, torch.distributed.checkpoint.save and safetensors.torch.save_file, whatever they save. A save that another save calls is part of that one.";
    sort: [step, ts];
    examples: [
        "SELECT step, rank, path, bytes / 1e6 AS mb, duration, bytes / 1e6 / duration AS mb_per_second FROM python.checkpoints ORDER BY step DESC LIMIT 10",
        "SELECT c.step, c.rank, c.path, c.duration, s.duration AS step_duration FROM python.checkpoints c JOIN python.steps s ON c.run = s.run AND c.host = s.host AND c.pid = s.pid AND c.step = s.step ORDER BY c.duration DESC LIMIT 10",
    ];
    step: i64, "", "Optimizer steps finished when it began: the step of python.steps whose checkpoint_time it is part of, where the training thread saved.";
    ts: Time, "", "When it began.";
    duration: f64, "s", "How long it took the thread that called it.";
    kind: Text, "", "torch.save, torch.distributed.checkpoint.save (its async_save calls it on a thread of its own) or safetensors.torch.save_file (what transformers and accelerate save models with; not seen where safetensors.torch is the first to import torch).";
    path: Option<Text>, "", "Last part of the path of the file or directory. NULL for a buffer, when the path is not known, and for a new path after 4,096 different ones.";
    bytes: Option<i64>, "B", "Bytes written to the file, or by this rank to the directory. NULL when that is not known: storage outside the local file system, or the program's own file object.";
    error: Option<Text>, "", "Class of the exception that ended the save. NULL when it succeeded.";
    thread: i64, "", "Operating-system id of the thread that called it.";
}
