//! Processes that say nothing about a snippet. Their agent takes it without the GIL and answers with it, so silence
//! means that no thread of the process gets the GIL, or that the process stands still.

use std::time::Duration;

use probe_proto::v1::{self, eval_event::Event};

use super::SnippetRun;
use super::patience::SILENCE_TIMEOUT;

/// A process whose agent has reported within this time is not stopped: agents report every half second, without the GIL.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);

impl SnippetRun {
    /// Tells the client, once, which targets have said nothing about the current attempt.
    pub(super) fn name_the_silent(&mut self) {
        self.named_at = None;
        let Some((_, notified)) = &self.attempt else { return };
        for (index, target) in self.group.targets.iter().enumerate() {
            if !notified[index] || self.heard[index] || self.done[index].is_some() {
                continue;
            }
            let seconds = SILENCE_TIMEOUT.as_secs();
            let text = if target.agent.state().reported.elapsed() < REPORTED_WITHIN {
                format!("{} has held the GIL for {seconds} s, so the snippet has not begun", target.name())
            } else {
                format!("{} has said nothing for {seconds} s: it may be stopped", target.name())
            };
            let hint = format!("probe {} stack shows where it is; Ctrl-C takes the snippet back", target.pid);
            self.feed.push(Event::Notice(v1::Notice { text, hint }));
        }
    }
}
