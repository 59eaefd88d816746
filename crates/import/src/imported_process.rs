//! The process that the rows of a file belong to.

use probe_store::ProcessIdentity;

/// The identity of a process, as a file has it. Files have less of it than agents: a host without a name is `unknown`, and a
/// process without a number is -1.
pub(crate) fn identity(
    run: &str,
    host: Option<&str>,
    pid: Option<i32>,
    rank: Option<i32>,
    world_size: Option<i32>,
) -> ProcessIdentity {
    ProcessIdentity {
        run: run.into(),
        host: host.unwrap_or("unknown").into(),
        pid: pid.unwrap_or(-1),
        rank,
        local_rank: None,
        world_size,
        role: "trainer".into(),
    }
}
