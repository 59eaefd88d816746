//! Has CPython 3.14 and later run a script, by the protocol that it has for debuggers (PEP 768, and "Remote debugging
//! attachment protocol" of its documentation): its runtime begins with a table of offsets; a path and two flags
//! are written, and the main thread executes that file when it next looks at its flags.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use probe_common::error::{Error, Result};

use super::interpreter::Interpreter;
use crate::stacks::permission::memory_not_opened;

const COOKIE: &[u8; 8] = b"xdebugpy";
/// The bit of a thread's `eval_breaker` that makes the thread look at its flags.
const PLEASE_STOP: u64 = 1 << 5;

/// Positions in `_Py_DebugOffsets` of 3.14, in words of 8 bytes. They do not change within a minor version.
const VERSION: u64 = 1;
const INTERPRETERS_HEAD: u64 = 5;
const THREADS_MAIN: u64 = 10;
const EVAL_BREAKER: u64 = 89;
const SUPPORT: u64 = 90;
const ENABLED: u64 = 91;
const PENDING_CALL: u64 = 92;
const SCRIPT_PATH: u64 = 93;
const SCRIPT_PATH_SIZE: u64 = 94;

/// Makes the interpreter execute the file at `script`, a path as the process sees it.
pub(super) fn execute(pid: i32, interpreter: &Interpreter, script: &str) -> Result<()> {
    if interpreter.version != Some((3, 14)) {
        return Err(Error::failed(format!(
            "this version of probe cannot attach to Python {}",
            interpreter.version_text()
        ))
        .hint("a newer version of probe may support it"));
    }
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
    let memory = memory.map_err(|error| memory_not_opened(pid, error))?;
    let failed =
        |error: io::Error| Error::failed(format!("the memory of process {pid} is not as expected")).because(error);
    match write(&memory, interpreter.runtime, script) {
        Ok(BootstrapAnswer::Done) => Ok(()),
        Ok(BootstrapAnswer::Refused(why, hint)) => Err(Error::failed(format!("process {pid}: {why}")).hint(hint)),
        Err(error) => Err(failed(error)),
    }
}

enum BootstrapAnswer {
    Done,
    Refused(&'static str, &'static str),
}

fn write(memory: &File, runtime: u64, script: &str) -> io::Result<BootstrapAnswer> {
    let word = |address: u64| -> io::Result<u64> {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let offset = |position: u64| word(runtime + 8 * position);
    if offset(0)?.to_ne_bytes() != *COOKIE || offset(VERSION)? >> 16 != 0x030e {
        return Ok(BootstrapAnswer::Refused(
            "its table of offsets is not that of Python 3.14",
            "a newer version of probe may support it",
        ));
    }
    let state = word(runtime + offset(INTERPRETERS_HEAD)?)?;
    let thread = word(state + offset(THREADS_MAIN)?)?;
    if state == 0 || thread == 0 {
        return Ok(BootstrapAnswer::Refused("its interpreter is just beginning or ending", "try again"));
    }
    let mut enabled = [0; 4];
    memory.read_exact_at(&mut enabled, state + offset(ENABLED)?)?;
    if enabled == [0; 4] {
        return Ok(BootstrapAnswer::Refused(
            "remote debugging is switched off in it",
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug did that: start it without, or with probe run",
        ));
    }
    let support = thread + offset(SUPPORT)?;
    if script.len() as u64 >= offset(SCRIPT_PATH_SIZE)? {
        return Ok(BootstrapAnswer::Refused(
            "the path of the script is too long",
            "name a shorter directory in PROBE_RUNTIME_DIR",
        ));
    }
    let mut path = script.as_bytes().to_vec();
    path.push(0);
    memory.write_all_at(&path, support + offset(SCRIPT_PATH)?)?;
    memory.write_all_at(&1_i32.to_ne_bytes(), support + offset(PENDING_CALL)?)?;
    // The process's threads set bits of it atomically, which is not possible from outside: as with sys.remote_exec itself, a
    // bit that is set in this very moment can get lost. Those that matter are set again.
    let breaker = thread + offset(EVAL_BREAKER)?;
    let flags = word(breaker)? | PLEASE_STOP;
    memory.write_all_at(&flags.to_ne_bytes(), breaker)?;
    Ok(BootstrapAnswer::Done)
}
