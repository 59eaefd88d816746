//! Has a Python process that was started without us run a statement of ours: what `probe attach` and `probe detach` stand on.
//!
//! [`interpreter`] finds CPython in the process; [`inject`] (before 3.14) or [`remote_debugging`] (since) has it run the
//! statement on its main thread. All `unsafe` of it is in [`trace`], and what
//! depends on the processor in [`machine`].

use std::fs;
use std::path::Path;
use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_common::paths::named;

mod bootstrap;
mod image;
mod inject;
mod interpreter;
mod machine;
mod maps;
mod remote_debugging;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod threads;
mod trace;
mod tracer;

pub use bootstrap::{Desk, Report, Settings};
pub use interpreter::{Interpreter, Method};

use self::tracer::{traced, tracer};

/// A statement is on its way: it runs when the main thread comes to it.
#[derive(Debug, Default)]
pub struct Sent {
    /// How long a thread stood still for it; none where no thread had to.
    pub stopped: Option<(Duration, bool)>,
    injected: Option<inject::Injected>,
}

/// Has process `pid` run `statement`. It must not be able to fail, and what it names it names in `__main__`. `script`: a
/// file that may be written for it, which the process sees under the same path.
///
/// # Errors
/// It may not be done, or can't. The process is as it was.
pub fn send(pid: i32, interpreter: &Interpreter, statement: &str, script: &Path) -> Result<Sent> {
    match interpreter.method() {
        Method::RemoteDebugging => {
            fs::write(script, statement).map_err(|error| named(script, error))?;
            remote_debugging::execute(pid, interpreter, &script.to_string_lossy())?;
            Ok(Sent::default())
        }
        Method::Borrowing => {
            let injected = inject::inject(pid, interpreter.places()?, statement)?;
            Ok(Sent { stopped: Some((injected.stopped, injected.main)), injected: Some(injected) })
        }
    }
}

/// The statement has run: gives back what it took in the process.
pub fn finish(pid: i32, interpreter: &Interpreter, sent: &Sent) {
    if let (Some(injected), Ok(places)) = (&sent.injected, interpreter.places()) {
        inject::release(pid, places, injected);
    }
}

/// Whether [`send`] is made for this machine.
pub fn check_machine(interpreter: &Interpreter) -> Result<()> {
    if interpreter.method() == Method::RemoteDebugging { Ok(()) } else { interpreter.places().map(drop) }
}

/// Whether process `pid` may be traced, which the kernel is asked without doing it.
///
/// # Errors
/// There is no such process, it may not be traced, or somebody else traces it.
pub fn check(pid: i32) -> Result<()> {
    crate::stacks::permission::check(pid)?;
    if let Some(tracer) = tracer(pid) {
        return Err(traced(pid, tracer));
    }
    match state(pid) {
        Some('Z' | 'X') => Err(Error::unreachable(format!("process {pid} has ended"))),
        Some('T' | 't') => {
            Err(Error::failed(format!("process {pid} is stopped")).hint(format!("kill -CONT {pid} continues it")))
        }
        _ => Ok(()),
    }
}

fn state(pid: i32) -> Option<char> {
    crate::stacks::processes::tasks(pid).get(&u32::try_from(pid).ok()?).map(|task| task.state)
}
