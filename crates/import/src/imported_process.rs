//! The process that the rows of a file are of.

use probe_store::Identity;

/// A process as a file says it. Files say less than agents do: a host without a name is `unknown`, and a process without a
/// number is -1.
pub(crate) fn identity(
    run: &str,
    host: Option<&str>,
    pid: Option<i32>,
    rank: Option<i32>,
    world_size: Option<i32>,
) -> Identity {
    Identity {
        run: run.into(),
        host: host.unwrap_or("unknown").into(),
        pid: pid.unwrap_or(-1),
        rank,
        local_rank: None,
        world_size,
        role: "trainer".into(),
    }
}
