//! How long a snippet waits for a process that says nothing before the client is told.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

/// A process that has said nothing for so long is named to the client.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until `at`; for ever where it is None.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
