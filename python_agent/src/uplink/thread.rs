//! The background thread: drains recording ten times a second, connects again and again, and flushes at the end.
//!
//! All signals are blocked in it, so that Python's handlers run where Python expects them, and it never takes the GIL,
//! so that neither waits for the other. Draining and sending are two futures of one single-threaded runtime: a
//! collector that stalls stops only the sending, and rows that then have no room in the buffer are dropped and counted. Its
//! descriptors are its own, so that a program may close all of the process's; another thread writes what it says.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::address::CollectorAddress;
use crate::recording::exceptions;
use crate::shared::{self, set_problem};
use crate::terminal::say;

use super::connect::connect;
use super::link::{Uplink, UplinkPhase};
use super::outbox::Outbox;
use super::resolve::ResolvedAddresses;
use super::revive::Reviver;
use super::session::{self, ConnectionEnd};

/// Time between two drains of the rings.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two attempts to connect: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Time between two checks whether the program has ended without the process.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long rows are sent then.
const FLUSH: Duration = Duration::from_secs(2);

/// What the background thread does, from start to stop.
pub(super) fn run_uplink(link: &Uplink, mut outbox: Outbox, park: fn(Outbox)) {
    outbox.drained = false;
    outbox.last_report_sent = false;
    let outbox = RefCell::new(outbox);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(work(link, &outbox));
        Ok::<_, std::io::Error>(())
    }));
    let failed = match ran {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("a defect in the agent (see above)".to_owned()),
    };
    if let Some(why) = failed {
        shared::ENABLED.store(false, Ordering::Relaxed);
        set_problem(format!("sending ended: {why}"));
        say(&format!("sending ended: {why}; hint: training continues without being recorded; please report this"));
    }
    link.commands.close();
    let mut outbox = outbox.into_inner();
    outbox.source.set_holding(false);
    park(outbox);
    if !matches!(link.phase(), UplinkPhase::Refused(_)) {
        link.set_phase(UplinkPhase::Ended);
    }
}

async fn work(link: &Uplink, outbox: &RefCell<Outbox>) {
    let has_warned = Cell::new(false);
    tokio::select! {
        () = collect(link, outbox) => {}
        () = end_with_first_thread(link) => {}
        () = send(link, outbox, &has_warned) => {}
        () = async { sleep_until(link.stopping().await.deadline.into()).await } => {
            // On a busy machine the deadline may come before the attempt that was to be the last.
            if let UplinkPhase::Connecting(Some(why)) = link.phase()
                && !has_warned.get()
            {
                unreachable(link, &why, false);
            }
        }
    }
}

/// Ends the uplink when the process's first thread has ended, which is the end of a program that leaves by a return from it: of a
/// child, for one, that a thread has forked. The kernel ends a process with its last thread, so none of ours may stay. Never
/// returns.
async fn end_with_first_thread(link: &Uplink) {
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !first_thread_has_ended() {
        looks.tick().await;
    }
    if link.stop_requested().is_none() {
        link.request_stop(FLUSH, "exit");
    }
    std::future::pending().await
}

/// Whether the first thread has ended and the process has not. False where the kernel does not say.
fn first_thread_has_ended() -> bool {
    let Ok(stat) = std::fs::read("/proc/self/stat") else { return false };
    // A command's name is in brackets, and may contain some.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    state == Some(&b'Z')
}

/// Drains the recording until the end. Never returns: the sending ends the uplink.
async fn collect(link: &Uplink, outbox: &RefCell<Outbox>) {
    let mut ticks = interval(DRAIN_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stopping = link.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let mut outbox = outbox.borrow_mut();
                if outbox.source.is_due() || exceptions::are_awaited() {
                    outbox.collect(link.is_connected());
                }
                link.woken.notify_one();
            }
            _ = &mut stopping => break,
        }
    }
    {
        let mut outbox = outbox.borrow_mut();
        outbox.source.finish();
        outbox.collect(link.is_connected());
        outbox.drained = true;
    }
    link.woken.notify_one();
    std::future::pending().await
}

/// Connects and runs sessions, again and again. Returns when everything was sent at the end, or when that is not possible.
async fn send(link: &Uplink, outbox: &RefCell<Outbox>, has_warned: &Cell<bool>) {
    let begun = Instant::now();
    let mut sessions = 0;
    let mut delay = BACKOFF.0;
    let mut welcomed_before = false;
    let mut reviver = Reviver::default();
    let mut resolved = ResolvedAddresses::default();
    loop {
        let (why, pause) = match connect(&link.address, &link.settings, &mut resolved).await {
            Err(why) => (why, None),
            Ok(connected) => {
                sessions += 1;
                let (end, welcomed) = session::run(link, outbox, connected, sessions).await;
                if welcomed {
                    delay = BACKOFF.0;
                    welcomed_before = true;
                }
                match end {
                    ConnectionEnd::Finished => return,
                    ConnectionEnd::Lost(why) => (why, None),
                    ConnectionEnd::Refused(why, Some(pause)) => (why, Some(pause)),
                    ConnectionEnd::Refused(why, None) => return refused(link, &why),
                }
            }
        };
        if let UplinkPhase::Connected(run) = link.phase() {
            reviver.note_lost(run);
        }
        link.set_phase(UplinkPhase::Connecting(Some(why.clone())));
        let stop = link.stop_requested();
        let ending = stop.is_some();
        let patient = begun.elapsed() < link.settings.patience_s.0;
        if ending {
            // Little time is left: a collector that is just starting is asked again soon.
            delay = BACKOFF.0;
        }
        // Warn at the end only if no further attempt is possible: the collector of a short program may answer only then.
        let was_last = stop.is_some_and(|stop| Instant::now() + delay >= stop.deadline);
        if !has_warned.get() && (!patient || welcomed_before || was_last) {
            has_warned.set(true);
            unreachable(link, &why, welcomed_before);
        }
        if ending && !patient {
            return;
        }
        if !ending {
            reviver.restart_if_due(link.settings.revival.as_ref());
        }
        tokio::select! {
            () = sleep(pause.unwrap_or(delay)) => {}
            // A request to stop ends the pause: the last attempt is made at once.
            _ = link.stopping(), if !ending => {}
        }
        delay = (delay * 2).min(BACKOFF.1);
    }
}

fn unreachable(link: &Uplink, why: &str, before: bool) {
    let address = match &link.address {
        CollectorAddress::Unix(path) => format!("unix:{}", path.display()),
        CollectorAddress::Tcp(host) => host.clone(),
    };
    let what = if before { "lost the collector" } else { "no collector" };
    set_problem(format!("{what} at {address}: {why}"));
    let hint = &link.settings.hint;
    say(&format!("{what} at {address}: {why}; training continues, and the agent keeps trying; hint: {hint}"));
}

/// Switches recording off, because the collector will never accept this agent: training must not pay for it.
fn refused(link: &Uplink, why: &str) {
    shared::ENABLED.store(false, Ordering::Relaxed);
    set_problem(format!("the collector refused this agent: {why}"));
    say(&format!(
        "the collector refused this agent (version {}): {why}; training continues without being recorded; hint: install the same \
         version of probe on both sides",
        probe_proto::VERSION
    ));
    link.set_phase(UplinkPhase::Refused(why.to_owned()));
}
