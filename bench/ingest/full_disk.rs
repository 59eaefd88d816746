//! What a collector's directory holds while one connection sends several times `PROBE_DISK` as fast as it can.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Result;
use super::ingest::send;
use super::process::ServeProcess;

/// `PROBE_DISK`, in bytes.
const BUDGET: u64 = 300_000_000;
/// Batches that are sent: about six times what fits.
const BATCHES: u64 = 20_000;
/// The share of the budget from which on the disk counts as full.
const FULL: f64 = 0.9;
/// The least share of the budget that rows in files may take then.
const LEAST_SHARE: f64 = 0.8;

/// Bytes of a run's directory at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct DirectoryBytes {
    files: u64,
    others: u64,
}

impl DirectoryBytes {
    fn all(self) -> u64 {
        self.files + self.others
    }
}

/// Rows in Parquet files, and everything else. A file that goes away meanwhile counts nothing.
fn bytes_in(directory: &Path) -> DirectoryBytes {
    let mut bytes = DirectoryBytes::default();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            let within = bytes_in(&path);
            bytes.files += within.files;
            bytes.others += within.others;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            bytes.files += metadata.len();
        } else {
            bytes.others += metadata.len();
        }
    }
    bytes
}

/// Looks into the directory every 20 ms until it is told to end.
fn watch(directory: PathBuf, done: Arc<AtomicBool>) -> JoinHandle<Vec<DirectoryBytes>> {
    std::thread::spawn(move || {
        let mut seen = Vec::new();
        while !done.load(Ordering::Relaxed) {
            seen.push(bytes_in(&directory));
            std::thread::sleep(Duration::from_millis(20));
        }
        seen
    })
}

/// Prints the most bytes that there were, and the least share of files once the disk was full.
pub(super) async fn full_disk() -> Result<()> {
    let served = ServeProcess::start("full", &[("PROBE_DISK", BUDGET.to_string())]).await?;
    let directory = probe_common::paths::home()?.join("runs/full@1");
    let done = Arc::new(AtomicBool::new(false));
    let watching = watch(directory, Arc::clone(&done));
    let rows = send(&served.socket, BATCHES).await;
    done.store(true, Ordering::Relaxed);
    let seen = watching.join().map_err(|_| "the watching thread panicked")?;
    let rows = rows?;
    served.stop()?;
    let most = seen.iter().map(|bytes| bytes.all()).max().unwrap_or(0);
    let full: Vec<&DirectoryBytes> =
        seen.iter().skip_while(|bytes| (bytes.all() as f64) < FULL * BUDGET as f64).collect();
    let least = full.iter().map(|bytes| bytes.files).min().map_or(f64::NAN, |least| least as f64 / BUDGET as f64);
    println!(
        "PROBE_DISK={} MB at {:.2} M rows/s: {:.1} MB on disk at most ({}), rows in files take {:.0} % of it at least once \
         it is full ({}; {} of {} looks)",
        BUDGET / 1_000_000,
        rows / 1e6,
        most as f64 / 1e6,
        super::verdict(most <= BUDGET),
        100.0 * least,
        super::verdict(least >= LEAST_SHARE),
        full.len(),
        seen.len()
    );
    Ok(())
}
