//! Captures that the collector makes by itself when steps get slower (`capture_on=slow`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use probe_proto::v1::CaptureCall;

use super::capture::CaptureRunner;
use crate::events::{RunEvent, Severity};
use crate::server::peer::Caller;
use crate::shared::CollectorState;

/// Number of steps of such a capture.
const STEPS: u32 = 3;
/// Pause from one capture to the next, however often steps get slower.
const PAUSE: Duration = Duration::from_secs(3600);

/// Makes captures when the governor says that steps are slow.
#[derive(Debug)]
pub(crate) struct SlowStepCaptures {
    shared: Arc<CollectorState>,
    captures: Arc<CaptureRunner>,
    newest: Mutex<Option<Instant>>,
}

impl SlowStepCaptures {
    pub(crate) fn new(shared: Arc<CollectorState>, captures: Arc<CaptureRunner>) -> Self {
        Self { shared, captures, newest: Mutex::default() }
    }

    /// Begins a capture because steps have become slower, if the setting allows it and the last capture is long ago. A capture
    /// that can't be made (the program's own profiler runs) counts too, so that training isn't asked again and again. Call it
    /// within a tokio runtime.
    pub(crate) fn slower(&self) {
        if !self.shared.settings.captures_when_slow() {
            return;
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.is_some_and(|newest| newest.elapsed() < PAUSE) {
            return;
        }
        *newest = Some(Instant::now());
        let (shared, captures) = (Arc::clone(&self.shared), Arc::clone(&self.captures));
        tokio::spawn(async move {
            let call = CaptureCall { steps: STEPS, modules: true, ..CaptureCall::default() };
            match captures.ask(call, Caller::collector("slow steps")).await {
                // Dropping the events early would end the capture. Its outcome is noted where it is made.
                Ok(mut events) => while events.recv().await.is_some() {},
                Err(error) => {
                    let message = format!("steps are slow, and no capture was made of them: {error}");
                    shared.events.record(RunEvent::new("capture", Severity::Warning, message));
                }
            }
        });
    }
}
