//! Makes a Python process that was started without probe run a statement: `probe attach` and `probe detach` are made of it.
//!
//! [`interpreter`] finds CPython in the process; [`inject`] (before 3.14) or [`remote_debugging`] (since) makes it run the
//! statement on its main thread. All `unsafe` of it is in [`trace`], and what depends on the processor in [`machine`].

use std::fs;
use std::path::Path;
use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;

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

pub use bootstrap::{AttachSettings, AttachState, BootstrapReport, SharedDirectory};
pub use interpreter::{InjectionMethod, Interpreter};

use self::tracer::{traced, tracer};

/// A statement is on its way: it runs when the main thread comes to it.
#[derive(Debug, Default)]
pub struct SentStatement {
    /// How long a thread stood still for the statement, and whether it was the main one; None where no thread had to.
    pub stopped: Option<(Duration, bool)>,
    injected: Option<inject::InjectedStatement>,
}

/// Makes process `pid` run `statement`, which must not be able to fail, and whose names are in `__main__`. `script`: a file
/// that may be written for it, which the process sees under the same path.
///
/// # Errors
/// The process may not be traced, or can't run it. It is as it was.
pub fn send(pid: i32, interpreter: &Interpreter, statement: &str, script: &Path) -> Result<SentStatement> {
    match interpreter.method() {
        InjectionMethod::RemoteDebugging => {
            fs::write(script, statement).map_err(|error| io_error_at(script, error))?;
            remote_debugging::execute(pid, interpreter, &script.to_string_lossy())?;
            Ok(SentStatement::default())
        }
        InjectionMethod::Borrowing => {
            let injected = inject::inject(pid, interpreter.addresses()?, statement)?;
            Ok(SentStatement { stopped: Some((injected.stopped, injected.main)), injected: Some(injected) })
        }
    }
}

/// Frees the memory that a statement took in the process, once it has run.
pub fn finish(pid: i32, interpreter: &Interpreter, sent: &SentStatement) {
    if let (Some(injected), Ok(addresses)) = (&sent.injected, interpreter.addresses()) {
        inject::release(pid, addresses, injected);
    }
}

/// Checks that [`send`] works on this machine.
///
/// # Errors
/// It does not work for this interpreter.
pub fn check_machine(interpreter: &Interpreter) -> Result<()> {
    if interpreter.method() == InjectionMethod::RemoteDebugging { Ok(()) } else { interpreter.addresses().map(drop) }
}

/// Checks that process `pid` may be traced, without tracing it.
///
/// # Errors
/// There is no such process, it may not be traced, or another process traces it.
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
