//! Messages of the agent to the person who runs the program.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{Receiver, Sender, channel};

thread_local! {
    static WRITER: RefCell<Option<LineWriter>> = const { RefCell::new(None) };
}

/// Writes a line to standard error, with `probe:` before it.
pub(crate) fn say(message: &str) {
    let line = format!("probe: {message}\n");
    if !written_elsewhere(&line) {
        write_unlocked(&line);
    }
}

/// Writes to standard error without Rust's lock of it, which a forked child would find locked for ever.
fn write_unlocked(line: &str) {
    // SAFETY: the number is not closed here; where the program has closed it, the write fails.
    let mut stderr = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDERR_FILENO) });
    // A closed stderr is no reason to fail.
    let _ = stderr.write_all(line.as_bytes());
}

/// A thread that writes lines of another one, which has no standard error of the process.
#[derive(Debug)]
pub(crate) struct LineWriter {
    lines: Sender<String>,
    written: Receiver<()>,
}

impl LineWriter {
    /// Starts the thread. It ends when the thread that [takes](Self::serve_this_thread) it does.
    pub(crate) fn start() -> io::Result<Self> {
        let (lines, incoming) = channel::<String>();
        let (done, written) = channel();
        std::thread::Builder::new().name("probe-messages".into()).spawn(move || {
            for line in incoming {
                write_unlocked(&line);
                let _ = done.send(());
            }
        })?;
        Ok(Self { lines, written })
    }

    /// Makes it write what the calling thread says from now on, and where that panics.
    pub(crate) fn serve_this_thread(self) {
        static ONCE: Once = Once::new();
        WRITER.set(Some(self));
        ONCE.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                if !written_elsewhere(&format!("{panic}\n")) {
                    before(panic);
                }
            }));
        });
    }
}

/// Whether the calling thread has its lines written by another one, which has written this one then.
fn written_elsewhere(line: &str) -> bool {
    let written = WRITER.try_with(|writer| {
        let writer = writer.try_borrow().ok()?;
        let writer = writer.as_ref()?;
        writer.lines.send(line.to_owned()).ok()?;
        writer.written.recv().ok()
    });
    matches!(written, Ok(Some(())))
}
