//! Whether the memory of a process may be read, and what to do where it may not.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use probe_common::error::{Error, Result};

/// The rule of the Yama module for tracing: 0 a user's own processes, 1 only descendants and tracers that a process names, 2
/// only by administrators, 3 never. None without Yama, which is as 0.
pub fn ptrace_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// Checks that the memory of a process may be read, by opening it: the kernel decides both in the same way.
///
/// # Errors
/// There is no such process, or it may not be read; the hint says what would allow it.
pub fn check(pid: i32) -> Result<()> {
    match fs::File::open(format!("/proc/{pid}/mem")) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(denied(pid)),
        Err(error) => Err(memory_not_opened(pid, error)),
        Ok(_) => Ok(()),
    }
}

/// The error of a process whose memory could not be opened, to be traced.
pub fn memory_not_opened(pid: i32, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::unreachable(format!("there is no process {pid}")),
        ErrorKind::PermissionDenied => denied_to_trace(pid),
        _ => Error::failed(format!("the memory of process {pid} can't be read")).because(error),
    }
}

/// The error that process `pid` may not be traced.
pub fn denied_to_trace(pid: i32) -> Error {
    let denied = denied(pid);
    let hint = denied.hint_text().unwrap_or_default().to_owned();
    Error::denied(format!("process {pid} may not be traced")).hint(hint)
}

fn denied(pid: i32) -> Error {
    let ours = nix::unistd::geteuid().as_raw();
    let theirs = fs::metadata(format!("/proc/{pid}")).map_or(ours, |process| process.uid());
    Error::denied(format!("the memory of process {pid} may not be read")).hint(advice(ours, theirs, ptrace_scope()))
}

/// What would allow reading a process, the smallest change first. A process that forbids it itself belongs to root in /proc.
pub fn advice(ours: u32, theirs: u32, scope: Option<u8>) -> String {
    if theirs != ours && ours != 0 && theirs != 0 {
        return format!("it belongs to uid {theirs}, and this is uid {ours}: ask as that user, or with sudo");
    }
    if theirs != ours && ours != 0 {
        return "it belongs to root, or forbids being read (PR_SET_DUMPABLE): ask with sudo".into();
    }
    match scope {
        Some(1) => "kernel.yama.ptrace_scope is 1: start training with probe run, or sudo sysctl kernel.yama.ptrace_scope=0"
            .into(),
        Some(2) => "kernel.yama.ptrace_scope is 2, so only root may trace: use sudo, or sudo sysctl kernel.yama.ptrace_scope=1 and start training with probe run".into(),
        Some(3..) => "kernel.yama.ptrace_scope is 3, so no process may trace another until the next boot".into(),
        _ if in_container() => {
            "in a container, add the capability: docker run --cap-add SYS_PTRACE, in Kubernetes securityContext.capabilities.add: [\"SYS_PTRACE\"]".into()
        }
        _ => "this needs the same user and no seccomp filter against process_vm_readv, or the capability CAP_SYS_PTRACE".into(),
    }
}

/// Whether this process seems to be in a container.
fn in_container() -> bool {
    Path::new("/.dockerenv").exists()
        || Path::new("/run/.containerenv").exists()
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_advice() {
        assert!(advice(1000, 1001, Some(1)).contains("uid 1001"));
        assert!(advice(1000, 0, Some(1)).contains("sudo"));
        assert!(advice(1000, 1000, Some(1)).contains("probe run"));
        assert!(advice(1000, 1000, Some(2)).contains("only root"));
        assert!(advice(0, 0, Some(3)).contains("no process may"));
        assert!(advice(1000, 1000, None).contains("SYS_PTRACE"));
    }

    #[test]
    fn our_own_memory_may_be_read_and_nobodys_is_not_there() {
        check(std::process::id() as i32).unwrap();
        let error = check(i32::MAX).unwrap_err();
        assert_eq!(error.to_string(), format!("there is no process {}", i32::MAX));
    }
}
