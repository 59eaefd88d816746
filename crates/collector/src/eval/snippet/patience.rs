//! How long a snippet waits for a word before it says who has said none.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

/// Who has said nothing for so long is named to whoever waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Until then; for ever where there is none.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
