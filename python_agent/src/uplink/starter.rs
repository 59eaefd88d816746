//! The thread that starts the background thread, and wakes it.
//!
//! It has a table of descriptors of its own for as long as the process lives, which the threads that it starts share: tokio keeps
//! descriptors beyond the life of a runtime. tokio also wakes a runtime by writing to a descriptor, so only this thread does that:
//! in the table of the program's threads the number means another file.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::descriptors;
use crate::recording::keep;
use crate::shared::{lock, set_problem};
use crate::terminal::LineWriter;

use super::buffer::CAPACITY;
use super::link::{Link, Phase};
use super::outbox::Outbox;
use super::source::Recording;
use super::thread;

/// An uplink to start.
struct Start {
    link: Arc<Link>,
    outbox: Outbox,
    park: fn(Outbox),
    /// The thread that writes what the uplink says, because the uplink has no standard error.
    writer: LineWriter,
}

/// The outbox that a stopped uplink left.
static PARKED: Mutex<Option<Outbox>> = Mutex::new(None);
/// What the thread waits for; None until there is one.
static STARTS: Mutex<Option<Sender<Start>>> = Mutex::new(None);

/// Starts the background thread for this process's recording.
pub fn start(link: Arc<Link>) -> io::Result<()> {
    with_signals_blocked(|| {
        let writer = LineWriter::start()?;
        let mut starts = lock(&STARTS);
        let starts = match &mut *starts {
            Some(starts) => starts,
            none => none.insert(begin()?),
        };
        let outbox = lock(&PARKED).take().unwrap_or_else(|| Outbox::new(Recording::default(), CAPACITY));
        let park = |outbox| *lock(&PARKED) = Some(outbox);
        starts
            .send(Start { link, outbox, park, writer })
            .map_err(|_| io::Error::other("the thread that starts it has ended"))
    })
}

/// Starts a background thread that sends what `outbox` drains, and gives it to `park` when it has ended. It has the descriptors of
/// the process.
pub fn spawn(link: Arc<Link>, outbox: Outbox, park: fn(Outbox)) -> io::Result<()> {
    with_signals_blocked(|| {
        let run = move || run(&link, || thread::body(&link, outbox, park));
        std::thread::Builder::new().name("probe-wake".into()).spawn(run).map(drop)
    })
}

/// A new thread inherits the signal mask of the one that makes it.
fn with_signals_blocked<T>(make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let made = make();
    before.thread_set_mask()?;
    made
}

fn begin() -> io::Result<Sender<Start>> {
    let (sender, starts) = channel::<Start>();
    std::thread::Builder::new().name("probe-wake".into()).spawn(move || {
        // Where the kernel refuses, the threads go on with the process's descriptors.
        let is_separate = descriptors::separate(keep::descriptor()).is_ok();
        for Start { link, outbox, park, writer } in starts {
            run(&link, || {
                if is_separate {
                    descriptors::are_separate();
                    writer.serve_this_thread();
                }
                thread::body(&link, outbox, park);
            });
        }
    })?;
    Ok(sender)
}

/// Runs `body` on a thread of its own, and wakes it when it is asked to.
fn run(link: &Link, body: impl FnOnce() + Send) {
    std::thread::scope(|threads| {
        let uplink = std::thread::Builder::new().name("probe-uplink".into()).spawn_scoped(threads, || {
            let _end = EndsPassingOn(link);
            body();
        });
        match uplink {
            Ok(_) => link.pass_on(),
            Err(error) => {
                set_problem(format!("sending ended: there is no thread for it: {error}"));
                link.set_phase(Phase::Ended);
            }
        }
    });
}

/// Ends the passing on when the background thread ends, also where that panics.
struct EndsPassingOn<'a>(&'a Link);

impl Drop for EndsPassingOn<'_> {
    fn drop(&mut self) {
        self.0.end_passing_on();
    }
}
