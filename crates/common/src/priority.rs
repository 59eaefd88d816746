//! The priority of threads whose work may wait: queries, samples of stacks. Training and what takes in its rows come first.

/// Niceness of such a thread, on a scale from -20 to 19 where other threads have 0. Under full load it gets a third of their time,
/// which is enough for an answer while a training on the same processors takes all it can.
const BACKGROUND: i32 = 5;

/// Gives the calling thread the priority of background work.
pub fn lower_priority() {
    set_niceness(BACKGROUND);
}

/// Gives the calling thread a niceness. A thread may raise its own, and only a privileged one may lower it again.
pub fn set_niceness(niceness: i32) {
    // SAFETY: setpriority takes three integers and touches no memory of ours. On Linux 0 is the calling thread. Where it is
    // refused, the thread has the same priority as before.
    unsafe {
        nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, niceness);
    }
}
