//! The background thread: drains recording ten times a second, connects again and again, and flushes at the end.
//!
//! All signals are blocked in it, so that Python's handlers run where Python expects them, and it never takes the GIL,
//! so that neither waits for the other. Draining and sending are two futures of one single-threaded runtime: a
//! collector that stalls stops the sending alone, and what then has no room in the buffer is dropped and counted.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use probe_proto::table::Text;
use probe_proto::{MAX_STRING_BYTES, MAX_STRINGS};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::recording::exceptions;
use crate::shared::{self, lock};
use probe_trace::cut::cut;
use probe_trace::sink::Sink;

use super::buffer::{CAPACITY, SendBuffer};
use super::connect::{Address, connect};
use super::link::{Link, Phase, say, set_problem};
use super::resolve::Resolved;
use super::revive::Reviver;
use super::session::{self, End};
use super::source::{Recording, Source};
use super::status::{Pace, status_now};

/// Between two drains of the rings.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// What waits is put down without a collector as long as it is less than this (bytes).
const PUT_DOWN_ALONE: usize = 1 << 20;
/// Between two attempts to connect: from, to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Everything on its way out. It outlives a stop, so that a later start goes on with the same numbers and strings.
pub struct Outbox {
    /// Analysed rows, strings and drops.
    pub sink: Sink,
    /// What the collector has not acknowledged.
    pub buffer: SendBuffer,
    /// Steps per second.
    pub pace: Pace,
    /// Strings that accepted batches may use.
    pub strings_ready: usize,
    /// Exceptions that somebody may wait for: how many, and the batch that the last of them is in.
    pub awaited: Option<(u64, u64)>,
    /// Whether the report before Bye has been made.
    pub last_report_sent: bool,
    source: Box<dyn Source>,
    string_bytes: usize,
    strings_counted: usize,
    drained: bool,
}

impl Outbox {
    /// An empty one.
    pub fn new(source: impl Source, capacity: usize) -> Self {
        Self {
            sink: Sink::default(),
            buffer: SendBuffer::new(capacity),
            pace: Pace::default(),
            strings_ready: 0,
            awaited: None,
            last_report_sent: false,
            source: Box::new(source),
            string_bytes: 0,
            strings_counted: 0,
            drained: false,
        }
    }

    /// Whether the last drain has been made and all of it was acknowledged.
    pub fn is_done(&self) -> bool {
        self.drained && self.buffer.is_empty()
    }

    /// Whether all there will ever be has been drained, and somebody waits until the collector has it.
    pub fn is_waiting(&self) -> bool {
        self.drained && !self.buffer.is_empty() && !self.buffer.has_unsent()
    }

    /// Whether exceptions that somebody may wait for have all been sent, so that only the collector's word is missing.
    pub fn wants_word(&self) -> bool {
        self.awaited.is_some() && !self.buffer.has_unsent()
    }

    /// The collector has stored everything up to `seq`.
    pub fn acknowledge(&mut self, seq: u64) {
        self.buffer.acknowledge(seq);
        if let Some((count, _)) = self.awaited.take_if(|(_, last)| *last <= seq) {
            exceptions::stored(count);
        }
    }

    /// Recording to batches to buffer; what does not fit is counted. Everything is put down for the collector before any of
    /// it is sent, so that it finds what it has not got should this process die. Where there has been none for a while that
    /// would be much each time, and of use to nobody.
    fn collect(&mut self, connected: bool) {
        let holds = self.source.hold(connected || self.buffer.bytes() < PUT_DOWN_ALONE);
        crate::recording::set_buffer_bytes(self.buffer.bytes());
        self.source.drain(&mut self.sink);
        self.pace.note(Instant::now(), shared::STEP.load(Ordering::Relaxed));
        while let Some(text) = self.sink.strings.get(Text(self.strings_counted as u32)) {
            self.string_bytes += text.len();
            self.strings_counted += 1;
        }
        // A connection takes no more strings than this: rows that use new ones would end it.
        let too_many = self.strings_counted > MAX_STRINGS || self.string_bytes > MAX_STRING_BYTES;
        let names: Vec<&'static str> = self.sink.tables().map(table_name).collect();
        for batch in self.sink.take().into_iter().flat_map(cut) {
            let (table, rows) = (names[batch.table as usize], u64::from(batch.rows));
            if too_many {
                self.sink.unsent(table, "too many strings", rows);
            } else if self.buffer.push(batch) {
                self.strings_ready = self.strings_counted;
            } else {
                self.sink.unsent(table, "send buffer full", rows);
            }
        }
        if exceptions::are_awaited() && self.awaited.is_none() {
            self.awaited = Some((exceptions::taken(), self.buffer.last_seq()));
        }
        if holds {
            let status = status_now(&self.pace, self.buffer.last_sent(), &self.sink);
            self.source.keep(&self.sink, &self.buffer, status);
        }
    }
}

/// `schema.name`, once for every table of the program.
fn table_name(table: &'static probe_proto::table::Table) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let full = table.full_name();
    let mut names = lock(&NAMES);
    if let Some(known) = names.iter().find(|name| **name == full) {
        return known;
    }
    let name: &'static str = Box::leak(full.into_boxed_str());
    names.push(name);
    name
}

/// What a stopped uplink left.
static PARKED: Mutex<Option<Outbox>> = Mutex::new(None);

/// Starts the thread for this process's recording.
pub fn start(link: Arc<Link>) -> std::io::Result<()> {
    let outbox = lock(&PARKED).take().unwrap_or_else(|| Outbox::new(Recording::default(), CAPACITY));
    spawn(link, outbox, |outbox| *lock(&PARKED) = Some(outbox))
}

/// Starts a thread that sends what `outbox` drains, and gives it to `park` when it has ended.
pub fn spawn(link: Arc<Link>, outbox: Outbox, park: fn(Outbox)) -> std::io::Result<()> {
    // The new thread inherits the mask of the one that makes it.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = std::thread::Builder::new().name("probe-uplink".into()).spawn(move || body(&link, outbox, park));
    before.thread_set_mask()?;
    spawned.map(drop)
}

fn body(link: &Link, mut outbox: Outbox, park: fn(Outbox)) {
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
    outbox.source.hold(false);
    park(outbox);
    if !matches!(link.phase(), Phase::Refused(_)) {
        link.set_phase(Phase::Ended);
    }
}

async fn work(link: &Link, outbox: &RefCell<Outbox>) {
    tokio::select! {
        () = collect(link, outbox) => {}
        () = send(link, outbox) => {}
        () = async { sleep_until(link.stopping().await.deadline.into()).await } => {}
    }
}

/// Drains until the end, and then waits for the sending.
async fn collect(link: &Link, outbox: &RefCell<Outbox>) {
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
                link.wake.notify_one();
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
    link.wake.notify_one();
    std::future::pending().await
}

/// Connects and speaks, again and again. Ends when everything was sent at the end, or when that can't be.
async fn send(link: &Link, outbox: &RefCell<Outbox>) {
    let begun = Instant::now();
    let mut sessions = 0;
    let mut delay = BACKOFF.0;
    let mut said = false;
    let mut welcomed_before = false;
    let mut reviver = Reviver::default();
    let mut resolved = Resolved::default();
    loop {
        let (why, pause) = match connect(&link.settings, &mut resolved).await {
            Err(why) => (why, None),
            Ok(connected) => {
                sessions += 1;
                let (end, welcomed) = session::run(link, outbox, connected, sessions).await;
                if welcomed {
                    delay = BACKOFF.0;
                    welcomed_before = true;
                }
                match end {
                    End::Finished => return,
                    End::Lost(why) => (why, None),
                    End::Refused(why, Some(pause)) => (why, Some(pause)),
                    End::Refused(why, None) => return refused(link, &why),
                }
            }
        };
        if let Phase::Connected(run) = link.phase() {
            reviver.lost(run);
        }
        link.set_phase(Phase::Connecting(Some(why.clone())));
        let ending = link.stop_requested().is_some();
        let patient = begun.elapsed() < link.settings.patience;
        if !said && (ending || !patient || welcomed_before) {
            said = true;
            unreachable(link, &why, welcomed_before);
        }
        if ending && !patient {
            return;
        }
        if !ending {
            reviver.still_gone(link.settings.revival.as_ref());
        }
        tokio::select! {
            () = sleep(pause.unwrap_or(delay)) => {}
            // The last attempt is made at once.
            _ = link.stopping(), if !ending => {}
        }
        delay = (delay * 2).min(BACKOFF.1);
    }
}

fn unreachable(link: &Link, why: &str, before: bool) {
    let place = match &link.settings.address {
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Tcp(host) => host.clone(),
    };
    let what = if before { "lost the collector" } else { "no collector" };
    set_problem(format!("{what} at {place}: {why}"));
    let hint = &link.settings.hint;
    say(&format!("{what} at {place}: {why}; training continues, and the agent keeps trying; hint: {hint}"));
}

/// The collector will never take us: stop costing training anything.
fn refused(link: &Link, why: &str) {
    shared::ENABLED.store(false, Ordering::Relaxed);
    set_problem(format!("the collector refused this agent: {why}"));
    say(&format!(
        "the collector refused this agent (version {}): {why}; training continues without being recorded; hint: install the same \
         version of probe on both sides",
        probe_proto::VERSION
    ));
    link.set_phase(Phase::Refused(why.to_owned()));
}
