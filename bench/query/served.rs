//! The rows in a collector of its own, brought by a connection a rank as agents do: for what clients ask there.

use super::process::ServeProcess;
use super::run::SyntheticRun;
use super::{Result, say};

/// Memory of the collector: more than any number of rows that is asked for takes.
const MEMORY: &str = "16G";

/// Prints the collector's socket when it has about `rows` rows, and ends it when standard input ends.
pub(crate) async fn hold(rows: usize) -> Result<()> {
    let served = ServeProcess::start("questions", &[("PROBE_MEMORY", MEMORY.to_owned())]).await?;
    let mut run = SyntheticRun::new();
    let sessions = run.send(&served.socket, rows).await?;
    say("served", &served.socket.to_string_lossy(), run.rows as f64);
    std::io::read_to_string(std::io::stdin())?;
    drop(sessions);
    served.stop()
}
