//! `python.metrics`: numbers that the program logs.

use crate::table::{Text, Time};

crate::table! {
    python.metrics, Agent, "One row per number given to probe_agent.log, and for three that torch computes anyway: torch.clip_grad_norm_ (what torch.nn.utils.clip_grad_norm_ returned), torch.amp.skipped_step (1 where GradScaler skipped the step of an optimizer, because gradients were not finite) and, in one step of 16, torch.loss (the number in host memory that backward() began from).";
    sort: [step, ts];
    examples: [
        "SELECT step, rank, value FROM python.metrics WHERE name = 'loss' ORDER BY step DESC LIMIT 10",
        "SELECT m.step, m.value AS loss, s.duration FROM python.metrics m JOIN python.steps s USING (run, rank, step) WHERE m.name = 'loss' AND s.duration > 2 * (SELECT AVG(duration) FROM python.steps)",
    ];
    step: i64, "", "The step that it belongs to: the current one, or the one just finished when it was logged between an optimizer's step and the next batch or forward.";
    ts: Time, "", "When it was logged.";
    name: Text, "", "Its name, the first 127 bytes of it.";
    value: Option<f64>, "", "The number. NULL when it was not a number, or could not be read without waiting for a device.";
    reason: Option<Text>, "", "Why value is NULL: on a device (log loss.item() where waiting is wanted), not a number.";
}
