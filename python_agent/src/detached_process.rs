//! Starts a process that is no child of this one, so that the program never meets it: `os.wait()` waits for every child, and
//! handlers of SIGCHLD count them.
//!
//! A helper starts the process and ends. Its own end sends no signal, so waits of the program pass it over too. Both use this
//! process's memory until then, as those of posix_spawn do: to copy that of a training process would take long.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use pyo3::prelude::*;

/// What a helper needs (bytes): it makes a dozen system calls.
const STACK_BYTES: usize = 64 << 10;
/// The last number of a signal.
const LAST_SIGNAL: c_int = 64;

/// A command, what it finds in its environment, and where its standard error goes.
pub(crate) struct DetachedCommand<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    pub environment: &'a [(OsString, OsString)],
    pub log: File,
}

/// All that is needed between the clone and the exec, where nothing may be allocated.
struct ExecPlan {
    program: CString,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    null: RawFd,
    log: RawFd,
    stack_of_process: *mut c_void,
    error: AtomicI32,
}

impl ExecPlan {
    fn failed(&self) {
        self.error.store(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN), Ordering::Relaxed);
    }
}

/// Starts the command in a session of its own, in the root directory. It outlives this process and is never waited for.
///
/// # Errors
/// There is no such program, it may not be executed, or there is no room for another process.
pub(crate) fn start(command: &DetachedCommand<'_>) -> io::Result<()> {
    let mut words = vec![command.program.as_os_str().to_owned()];
    words.extend_from_slice(command.arguments);
    let words: Vec<CString> = words.iter().map(|word| c_string(word)).collect::<io::Result<_>>()?;
    let pairs: Vec<CString> = command.environment.iter().map(environment_entry).collect::<io::Result<_>>()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut stacks = [vec![0_u128; STACK_BYTES / 16], vec![0_u128; STACK_BYTES / 16]];
    let [of_helper, of_process] = stacks.each_mut().map(|stack| stack.as_mut_ptr_range().end.cast::<c_void>());
    let plan = ExecPlan {
        program: c_string(command.program.as_os_str())?,
        arguments: null_terminated(&words),
        environment: null_terminated(&pairs),
        null: null.as_raw_fd(),
        log: command.log.as_raw_fd(),
        stack_of_process: of_process,
        error: AtomicI32::new(0),
    };
    let data: *const ExecPlan = &raw const plan;
    // SAFETY: this thread stands still until the helper has ended, and the helper until the process has its own memory or has
    // ended; so the plan and both stacks live long enough, and nothing else writes to them. No signal arrives meanwhile, because
    // a handler would run in this process's memory.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let helper = libc::clone(run_helper, of_helper, flags, data.cast_mut().cast());
        if helper < 0 {
            plan.failed();
        } else {
            libc::waitpid(helper, ptr::null_mut(), libc::__WCLONE);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
    drop((stacks, null));
    match plan.error.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn c_string(word: &OsStr) -> io::Result<CString> {
    CString::new(word.as_bytes()).map_err(Into::into)
}

fn environment_entry((key, value): &(OsString, OsString)) -> io::Result<CString> {
    let mut both = key.clone();
    both.push("=");
    both.push(value);
    c_string(&both)
}

/// The addresses of texts as exec takes them: with a null at the end.
fn null_terminated(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// What the helper does.
extern "C" fn run_helper(data: *mut c_void) -> c_int {
    // SAFETY: the plan of `start`, which waits; see there.
    unsafe {
        let plan = &*data.cast::<ExecPlan>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if libc::clone(become_the_program, plan.stack_of_process, flags, data) < 0 {
            plan.failed();
        }
    }
    0
}

/// What the process does until it is the program.
extern "C" fn become_the_program(data: *mut c_void) -> c_int {
    // SAFETY: the plan of `start`, which waits; see there. Descriptors and signals are this process's own.
    unsafe {
        let plan = &*data.cast::<ExecPlan>();
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        // No handler of this process may run here once signals arrive again. What is ignored stays so, except for what
        // Python ignores by itself.
        for signal in 1..=LAST_SIGNAL {
            let is_known = libc::sigaction(signal, ptr::null(), &raw mut action) == 0;
            let is_of_python = [libc::SIGPIPE, libc::SIGXFSZ].contains(&signal);
            if is_known && (is_of_python || action.sa_sigaction != libc::SIG_IGN) {
                action = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
        libc::setsid();
        // Above the standard streams, in case the program has closed those; the copies are closed by exec.
        let null = libc::fcntl(plan.null, libc::F_DUPFD_CLOEXEC, 3);
        let log = libc::fcntl(plan.log, libc::F_DUPFD_CLOEXEC, 3);
        let are_open = null >= 0 && log >= 0 && libc::chdir(c"/".as_ptr()) == 0;
        if are_open && [(null, 0), (null, 1), (log, 2)].iter().all(|(from, to)| libc::dup2(*from, *to) >= 0) {
            close_the_rest();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::execve(plan.program.as_ptr(), plan.arguments.as_ptr(), plan.environment.as_ptr());
        }
        plan.failed();
    }
    127
}

/// Closes what the program opened without CLOEXEC: a reader of a pipe sees EOF only when every writer has closed it.
unsafe fn close_the_rest() {
    // SAFETY: numbers of this process's own table.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) == 0 {
            return;
        }
        // Before Linux 5.9.
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for descriptor in 3..limit.rlim_cur.min(1 << 16) {
            libc::close(descriptor as RawFd);
        }
    }
}

/// Starts a command whose standard error goes to the file `log`, which is emptied.
#[pyfunction]
fn start_detached(
    py: Python<'_>,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log: PathBuf,
) -> io::Result<()> {
    py.detach(|| {
        start(&DetachedCommand {
            program: &program,
            arguments: &arguments,
            environment: &environment,
            log: File::create(&log)?,
        })
    })
}

/// Names the calling thread for the operating system.
#[pyfunction]
fn name_thread(name: &str) -> PyResult<()> {
    let name = CString::new(name)?;
    // SAFETY: a text that ends in a zero byte; the kernel cuts it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    Ok(())
}

/// Adds this file's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(start_detached, module)?)?;
    module.add_function(wrap_pyfunction!(name_thread, module)?)
}
