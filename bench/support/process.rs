//! A collector in a process of its own, and what it takes of the machine as the kernel counts it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Result;

/// A `probe serve`, which is killed on drop.
pub(crate) struct ServeProcess {
    child: Child,
    pub(crate) socket: PathBuf,
}

/// What a process uses, and has used at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessUsage {
    /// Resident memory now and at most, in MiB.
    pub(crate) resident: f64,
    pub(crate) most_resident: f64,
    pub(crate) threads: usize,
    pub(crate) files: usize,
    /// Seconds of processor time since it began.
    pub(crate) cpu: f64,
}

impl ServeProcess {
    /// Starts a collector for the first run called `name`; `environment` is added to this process's.
    pub(crate) async fn start(name: &str, environment: &[(&str, String)]) -> Result<Self> {
        Self::serve(name, &["--name", name], environment).await
    }

    /// Starts a collector that resumes the first run called `name`, whose collector was killed.
    pub(crate) async fn resume(name: &str, environment: &[(&str, String)]) -> Result<Self> {
        Self::serve(name, &["--resume", &format!("{name}@1")], environment).await
    }

    async fn serve(name: &str, arguments: &[&str], environment: &[(&str, String)]) -> Result<Self> {
        let child = Command::new(probe()?)
            .arg("serve")
            .args(arguments)
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .stderr(Stdio::null())
            .spawn()?;
        let socket = probe_common::paths::runtime_dir()?.join(format!("{name}@1.sock"));
        let served = Self { child, socket };
        for _ in 0..1000 {
            if tokio::net::UnixStream::connect(&served.socket).await.is_ok() {
                return Ok(served);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("no collector answers at {}", served.socket.display()).into())
    }

    pub(crate) fn usage(&self) -> Result<ProcessUsage> {
        usage(self.child.id())
    }

    /// Ends the collector by SIGTERM, and waits until it has written its rows.
    pub(crate) fn stop(mut self) -> Result<()> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The `probe` that was built with this benchmark.
pub(crate) fn probe() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("probe"))
}

/// What the process uses now, and has used at most.
pub(crate) fn usage(pid: u32) -> Result<ProcessUsage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The fields behind the name, which may have blanks: utime and stime are the 12th and 13th.
    let times = stat.rsplit(") ").next().ok_or("no times")?.split(' ').skip(11).take(2);
    let ticks: f64 = times.map(str::parse::<f64>).sum::<std::result::Result<_, _>>()?;
    Ok(ProcessUsage {
        resident: field("VmRSS:")? / 1024.0,
        most_resident: field("VmHWM:")? / 1024.0,
        threads: field("Threads:")? as usize,
        files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        // USER_HZ is 100 on every architecture that this runs on.
        cpu: ticks / 100.0,
    })
}
