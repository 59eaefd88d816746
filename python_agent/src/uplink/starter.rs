//! The thread that starts the background thread, and wakes it. It ends with that one.
//!
//! Both share a table of descriptors that is not the process's. tokio wakes a runtime by writing to a descriptor, so only this
//! thread does that: in the table of the program's threads the number means another file.

use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::descriptors;
use crate::recording::analyser_checkpoint;
use crate::renewable::Renewable;
use crate::shared::set_problem;
use crate::terminal::LineWriter;

use super::buffer::CAPACITY;
use super::link::{Uplink, UplinkPhase};
use super::outbox::{self, Outbox};
use super::record_source::RingSource;
use super::thread;

/// How long a start waits at most until the background thread is there: it takes less than a millisecond, where there is a processor.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// The outbox that a stopped uplink left.
static PARKED: Renewable<Option<Outbox>> = Renewable::new(|| None);
/// Descriptors that tokio keeps beyond the life of its first runtime, in the table of that one. In each later table, that of a
/// forked child too, other files are put under these numbers.
static OF_TOKIO: OnceLock<Vec<RawFd>> = OnceLock::new();

/// Forgets in a forked child the rows that the parent has not sent.
pub(super) fn begin_anew() {
    PARKED.renew();
    outbox::begin_anew();
}

/// Starts the background thread for this process's recording.
pub fn start(link: Arc<Uplink>) -> io::Result<()> {
    with_signals_blocked(|| {
        let writer = LineWriter::start()?;
        let outbox = PARKED.lock().take().unwrap_or_else(|| Outbox::new(RingSource::default(), CAPACITY));
        let park = |outbox| *PARKED.lock() = Some(outbox);
        let (begins, has_begun) = sync_channel(1);
        let run = move || {
            run_separately(&link, writer, |link| {
                let _ = begins.send(());
                thread::run_uplink(link, outbox, park)
            });
        };
        std::thread::Builder::new().name("probe-wake".into()).spawn(run)?;
        // A fork before that would leave the child with half of what is made once in the life of a process.
        let _ = has_begun.recv_timeout(START_TIMEOUT);
        Ok(())
    })
}

/// Starts a background thread that sends what `outbox` drains, and gives it to `park` when it has ended. It has the descriptors of
/// the process.
pub fn spawn(link: Arc<Uplink>, outbox: Outbox, park: fn(Outbox)) -> io::Result<()> {
    with_signals_blocked(|| {
        let run = move || run(&link, || thread::run_uplink(&link, outbox, park));
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

/// Runs `body` with descriptors of its own. `writer` writes what it says, because it has no standard error of the process.
fn run_separately(link: &Uplink, writer: LineWriter, body: impl FnOnce(&Uplink) + Send) {
    let kept = analyser_checkpoint::descriptor();
    // Where the kernel refuses, the threads go on with the process's descriptors.
    let is_separate = descriptors::separate(kept).is_ok();
    if is_separate {
        match OF_TOKIO.get() {
            Some(numbers) => descriptors::open_sockets(numbers),
            None => note_what_tokio_keeps(kept),
        }
    }
    run(link, || {
        if is_separate {
            descriptors::mark_separate();
            writer.serve_this_thread();
        }
        body(link);
    });
}

/// Makes tokio open, in the calling thread's own table, what it keeps for the life of the process, and notes those numbers.
fn note_what_tokio_keeps(kept: Option<RawFd>) {
    drop(tokio::runtime::Builder::new_current_thread().enable_all().build());
    let numbers = descriptors::open_numbers().into_iter().filter(|number| Some(*number) != kept).collect();
    let _ = OF_TOKIO.set(numbers);
}

/// Runs `body` on a thread of its own, and wakes it when it is asked to.
fn run(link: &Uplink, body: impl FnOnce() + Send) {
    std::thread::scope(|threads| {
        let uplink = std::thread::Builder::new().name("probe-uplink".into()).spawn_scoped(threads, || {
            let _end = EndsPassingOn(link);
            body();
        });
        match uplink {
            Ok(_) => link.pass_on(),
            Err(error) => {
                set_problem(format!("sending ended: there is no thread for it: {error}"));
                link.set_phase(UplinkPhase::Ended);
            }
        }
    });
}

/// Ends the passing on when the background thread ends, also where that panics.
struct EndsPassingOn<'a>(&'a Uplink);

impl Drop for EndsPassingOn<'_> {
    fn drop(&mut self) {
        self.0.end_passing_on();
    }
}
