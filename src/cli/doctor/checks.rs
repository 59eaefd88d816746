//! Checks of the system: directories to write to, other processes' memory, the devices' libraries.

use std::fs;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use probe_common::paths::ProbeDirectories;
use probe_inspect::stacks::{HAS_NATIVE, permission};

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckState {
    Ok,
    /// The check passes for some processes, or not for long.
    Limited,
    Missing,
    /// This machine has nothing that it would be for.
    None,
}

impl CheckState {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::None => "none",
        }
    }
}

/// The result of one check, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckResult {
    pub(super) check: &'static str,
    pub(super) state: CheckState,
    pub(super) what: String,
    pub(super) remedy: Option<String>,
    /// Whether every run needs it.
    pub(super) needed: bool,
}

impl CheckResult {
    pub(super) fn new(check: &'static str, state: CheckState, what: impl Into<String>) -> Self {
        Self { check, state, what: what.into(), remedy: None, needed: false }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    fn needed(mut self) -> Self {
        self.needed = true;
        self
    }
}

/// All checks but those of Python.
pub(super) fn run_all() -> Vec<CheckResult> {
    let directories = ProbeDirectories::from_environment();
    let mut findings = match &directories {
        Ok(directories) => vec![runs(directories), sockets(directories)],
        Err(error) => vec![CheckResult::new("run directories", CheckState::Missing, error.to_string()).needed()],
    };
    findings.push(stacks(permission::ptrace_scope(), nix::unistd::geteuid().is_root()));
    findings.push(native_frames());
    findings.push(shared_memory(disk_space("/dev/shm".as_ref())));
    findings.push(nvidia(fs::read_to_string("/proc/driver/nvidia/version").ok().as_deref()));
    findings.push(perf(fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok().as_deref()));
    findings
}

/// Bytes of the file system that a path is on: all, and those that are free for us.
fn disk_space(path: &Path) -> Option<(u64, u64)> {
    let file_system = statvfs(path).ok()?;
    let block = file_system.fragment_size();
    Some((file_system.blocks() * block, file_system.blocks_available() * block))
}

/// Free bytes below which a run may not end well.
const FEW_BYTES: u64 = 2 << 30;

fn runs(directories: &ProbeDirectories) -> CheckResult {
    const CHECK: &str = "run directories";
    let directory = directories.runs();
    // A missing directory is made in the nearest ancestor that exists.
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if let Err(error) = tempfile::tempfile_in(existing) {
        return CheckResult::new(
            CHECK,
            CheckState::Missing,
            format!("{} can't be written: {error}", existing.display()),
        )
        .remedy("PROBE_HOME=/another/place, on a disk of this machine")
        .needed();
    }
    let Some((_, free)) = disk_space(existing) else {
        return CheckResult::new(CHECK, CheckState::Ok, format!("{} can be written", directory.display())).needed();
    };
    let what = format!("{} can be written, {} free", directory.display(), gigabytes(free));
    match free < FEW_BYTES {
        true => CheckResult::new(CHECK, CheckState::Limited, what)
            .remedy("probe runs rm --older-than 7d, or PROBE_DISK=1G")
            .needed(),
        false => CheckResult::new(CHECK, CheckState::Ok, what).needed(),
    }
}

fn sockets(directories: &ProbeDirectories) -> CheckResult {
    const CHECK: &str = "sockets";
    match directories.sockets() {
        Err(error) => CheckResult::new(CHECK, CheckState::Missing, error.to_string())
            .remedy(error.hint_text().unwrap_or("PROBE_RUNTIME_DIR=/another/directory, of mode 0700"))
            .needed(),
        Ok(live) => {
            let directory = directories.runtime.display();
            let modes = if directories.runtime.exists() { "is this user's alone" } else { "is made when it is needed" };
            let what = format!("{directory} {modes}; live collectors: {}", live.len());
            CheckResult::new(CHECK, CheckState::Ok, what).needed()
        }
    }
}

fn stacks(scope: Option<u8>, root: bool) -> CheckResult {
    const CHECK: &str = "stacks";
    let advice = || permission::advice(1000, 1000, scope);
    match scope {
        _ if root && scope != Some(3) => CheckResult::new(CHECK, CheckState::Ok, "root may read all processes' memory"),
        None | Some(0) => {
            CheckResult::new(CHECK, CheckState::Ok, "all processes of this user can be read (no ptrace restriction)")
        }
        Some(1) => {
            let what = "processes below probe run and those with an agent can be read, others not (ptrace_scope 1)";
            CheckResult::new(CHECK, CheckState::Limited, what)
                .remedy("sudo sysctl kernel.yama.ptrace_scope=0 for the others")
        }
        Some(scope) => {
            let what =
                format!("no process can be read (ptrace_scope {scope}); agents are asked instead, which takes the GIL");
            CheckResult::new(CHECK, CheckState::Limited, what).remedy(advice())
        }
    }
}

fn native_frames() -> CheckResult {
    if HAS_NATIVE {
        return CheckResult::new("native frames", CheckState::Ok, "stack --native shows the frames of C and C++");
    }
    let there = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
        .iter()
        .any(|directory| Path::new(directory).join("libunwind-ptrace.so.0").exists());
    let library = if there { "libunwind is here" } else { "libunwind is not here either" };
    CheckResult::new(
        "native frames",
        CheckState::None,
        format!("stacks show Python frames only in this build; {library}"),
    )
    .remedy("build with --features native, or gdb -p PID -batch -ex 'thread apply all bt' shows C frames")
}

/// Docker's default size of /dev/shm.
const DOCKER_DEFAULT: u64 = 64 << 20;

fn shared_memory(room: Option<(u64, u64)>) -> CheckResult {
    const CHECK: &str = "/dev/shm";
    match room {
        None => CheckResult::new(CHECK, CheckState::Missing, "there is none: DataLoader workers and NCCL need it")
            .remedy("mount -t tmpfs tmpfs /dev/shm"),
        Some((all, free)) => {
            let what = format!("{} of {} free", gigabytes(free), gigabytes(all));
            if all <= DOCKER_DEFAULT {
                return CheckResult::new(
                    CHECK,
                    CheckState::Limited,
                    format!("{what}: DataLoader workers may die of SIGBUS"),
                )
                .remedy("docker run --shm-size=8g, or --ipc=host");
            }
            CheckResult::new(CHECK, CheckState::Ok, what)
        }
    }
}

fn nvidia(version: Option<&str>) -> CheckResult {
    const CHECK: &str = "NVIDIA driver";
    let Some(version) = version else {
        return CheckResult::new(CHECK, CheckState::None, "there is none: gpu columns are NULL");
    };
    let number =
        version.split_whitespace().find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .iter()
        .any(|directory| Path::new(directory).join("libnvidia-ml.so.1").exists());
    let what = format!("version {}", number.unwrap_or("unknown"));
    if library {
        return CheckResult::new(CHECK, CheckState::Ok, format!("{what}, with NVML"));
    }
    CheckResult::new(
        CHECK,
        CheckState::Limited,
        format!("{what}, and libnvidia-ml.so.1 is in none of the usual places"),
    )
    .remedy("in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility")
}

fn perf(paranoid: Option<&str>) -> CheckResult {
    const CHECK: &str = "perf events";
    match paranoid.and_then(|text| text.trim().parse::<i32>().ok()) {
        None => CheckResult::new(CHECK, CheckState::None, "this kernel has none"),
        Some(level) if level <= 2 => CheckResult::new(CHECK, CheckState::Ok, format!("perf_event_paranoid is {level}")),
        Some(level) => CheckResult::new(
            CHECK,
            CheckState::Limited,
            format!("perf_event_paranoid is {level}; probe itself does not use them"),
        )
        .remedy("sudo sysctl kernel.perf_event_paranoid=2"),
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_is_judged() {
        assert_eq!(stacks(None, false).state, CheckState::Ok);
        assert_eq!(stacks(Some(0), false).state, CheckState::Ok);
        let some = stacks(Some(1), false);
        assert!(some.state == CheckState::Limited && some.remedy.is_some_and(|hint| hint.contains("ptrace_scope=0")));
        assert_eq!(stacks(Some(2), false).state, CheckState::Limited);
        assert_eq!(stacks(Some(2), true).state, CheckState::Ok);
        assert_eq!(stacks(Some(3), true).state, CheckState::Limited);
    }

    #[test]
    fn dockers_shared_memory_is_little() {
        assert!(shared_memory(Some((64 << 20, 60 << 20))).remedy.is_some_and(|hint| hint.contains("--shm-size")));
        assert_eq!(shared_memory(Some((8 << 30, 8 << 30))).state, CheckState::Ok);
        assert_eq!(shared_memory(None).state, CheckState::Missing);
    }

    #[test]
    fn a_driver_is_known_by_its_version() {
        assert_eq!(nvidia(None).state, CheckState::None);
        let found =
            nvidia(Some("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30\nGCC version: 12\n"));
        assert!(found.what.starts_with("version 570.133.20"), "{}", found.what);
        assert_eq!(perf(Some("4\n")).state, CheckState::Limited);
        assert_eq!(perf(Some("2\n")).state, CheckState::Ok);
    }
}
