//! The collector of a launcher: a process of its own, so that nothing that befalls it befalls the command. The launcher
//! starts it, brings it back when it dies, and at the end tells it how the command ended.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe_client::Client;
use probe_client::endpoint::{Place, Target};
use probe_common::error::{Error, Result};
use probe_inspect::process_exit::End;
use probe_proto::env;
use probe_proto::v1::{FinishCall, FinishOutcome};
use probe_store::runs::{self, RunInfo, State};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::greeting::{Launch, Ready};
use crate::cli::report;
use crate::cli::status::Status;

/// A collector that gives no sign of life for so long is not waited for: it is stopped, or too busy to say one.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that has written the run may take to be gone.
const GONE: Duration = Duration::from_secs(5);
/// Between two looks at what another process does.
const LOOK: Duration = Duration::from_millis(10);
/// Between two looks at a run that another collector keeps.
const LOOK_AT_ANOTHER: Duration = Duration::from_secs(1);
/// One that died is brought back at once, and after this where that did not last; longer each time, up to a minute.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The collector's process, and the ones that take its place.
#[derive(Debug)]
pub(super) struct Collector {
    /// None while there is none that this process started.
    child: Option<Child>,
    /// Open for as long as this process lives, by which the collector sees that it does.
    _input: Option<ChildStdin>,
    /// What a collector is told to do beside its run's name.
    listening: Vec<OsString>,
    launch: Launch,
    run: String,
    endpoint: String,
    /// It was ended on purpose and is not restarted.
    is_over: bool,
    /// It has been told that the command has ended, and is to end too.
    is_finishing: bool,
}

impl Collector {
    /// Starts one for a new run called `name`. It says itself why it can't be one; it is [`Collector::ready`] later.
    pub(super) async fn start(name: &str, command: String, listening: Vec<OsString>) -> Result<Self> {
        let launch = Launch { command };
        let words = [OsString::from("--name"), name.into()];
        let (child, input) = spawn(words.into_iter().chain(listening.iter().cloned()), &launch, Stdio::piped()).await?;
        Ok(Self {
            child: Some(child),
            _input: input,
            listening,
            launch,
            run: String::new(),
            endpoint: String::new(),
            is_over: false,
            is_finishing: false,
        })
    }

    /// Waits until it listens; with what it ended where it does not. It has said why.
    pub(super) async fn ready(&mut self) -> Result<Option<Status>> {
        let Some(child) = &mut self.child else { return Err(Error::failed("there is no collector")) };
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        if let Ok(Ready { run, endpoint }) = serde_json::from_str(&line) {
            (self.run, self.endpoint) = (run, endpoint);
            return Ok(None);
        }
        let ended = child.wait().await?;
        match ended.code() {
            Some(status) if status > 0 => Ok(Some(status as Status)),
            _ => Err(Error::failed(format!("the collector {} before it listened", End::of(ended).how()))),
        }
    }

    /// The run with its number.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Where agents reach it.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Ends it, with what it has written; for a run that nothing comes of.
    pub(super) async fn end(mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = timeout(PATIENCE, child.wait()).await;
    }

    /// Sees to it that there is one, for as long as this is polled.
    pub(super) async fn watch(&mut self) -> Infallible {
        let mut pause = MIN_PAUSE;
        loop {
            if let Some(child) = &mut self.child {
                let began = Instant::now();
                let ended = child.wait().await;
                self.child = None;
                self.note_end(ended.ok());
                if began.elapsed() > MAX_PAUSE {
                    pause = MIN_PAUSE;
                }
            } else if self.is_over || self.has_ended() {
                self.is_over = true;
                std::future::pending::<()>().await;
            } else if runs::is_live(&self.run) {
                // An agent has brought one back.
                sleep(LOOK_AT_ANOTHER).await;
            } else {
                let words = [OsString::from("--resume"), OsString::from(&self.run)];
                let words = words.into_iter().chain(self.listening.iter().cloned());
                match spawn(words, &self.launch, Stdio::null()).await {
                    Ok((child, input)) => (self.child, self._input) = (Some(child), input),
                    Err(error) => _ = report::error(&error),
                }
                sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    /// Tells it that the command has ended, and waits until the run is written. None where it can't be told, or where
    /// it does not say any more what comes of it.
    pub(super) async fn finish(&mut self, call: FinishCall) -> Option<FinishOutcome> {
        if self.is_over {
            return None;
        }
        self.is_finishing = true;
        let (target, run) = (self.target(), self.run.clone());
        tokio::select! {
            biased;
            outcome = tell(&target, call) => {
                if outcome.is_some() {
                    let _ = timeout(GONE, async { while runs::is_live(&run) { sleep(LOOK).await } }).await;
                }
                outcome
            }
            never = self.watch() => match never {},
        }
    }

    /// Its process, where this one started it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    /// Whether it was ended while the command was running.
    pub(super) fn was_ended(&self) -> bool {
        self.is_over
    }

    fn target(&self) -> Target {
        let path = self.endpoint.strip_prefix("unix:").unwrap_or(&self.endpoint);
        Target { place: Place::Socket(PathBuf::from(path)), pid: None }
    }

    fn has_ended(&self) -> bool {
        let info = runs::resolve(&self.run).and_then(|directory| RunInfo::read(&directory));
        info.is_ok_and(|info| info.state == State::Ended)
    }

    fn note_end(&mut self, ended: Option<ExitStatus>) {
        let run = &self.run;
        match ended {
            Some(ended) if ended.success() => {
                self.is_over = true;
                if !self.is_finishing {
                    report::note(format_args!(
                        "run {run} was ended: the command continues, and is not recorded any more"
                    ));
                }
            }
            Some(ended) => {
                let how = End::of(ended).how();
                report::note(format_args!(
                    "the collector of run {run} {how}: the command continues, and another collector takes over"
                ));
            }
            None => {}
        }
    }
}

/// A collector that is told what to do by `words`. Its errors are said where ours are.
async fn spawn(
    words: impl Iterator<Item = OsString>,
    launch: &Launch,
    stdout: Stdio,
) -> Result<(Child, Option<ChildStdin>)> {
    let program = program()?;
    let mut command = Command::new(&program);
    command.arg("serve").args(words).arg("--launched");
    // The run's name is among the words, or has to be another one: this may be a run within a run.
    command.env_remove(env::PROBE_RUN);
    let started = command.stdin(Stdio::piped()).stdout(stdout).spawn();
    let not_started = |error| Error::failed(format!("{} could not be started", program.display())).because(error);
    let mut child = started.map_err(not_started)?;
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        let line = serde_json::to_string(launch).map_err(Error::caused)?;
        // One that has ended already says why, and its end is seen.
        let _ = input.write_all(format!("{line}\n").as_bytes()).await;
    }
    Ok((child, input))
}

/// This program. Where its file was replaced meanwhile (an upgrade), it is the one that runs here that is meant.
fn program() -> Result<PathBuf> {
    let path =
        std::env::current_exe().map_err(|error| Error::failed("the command does not find itself").because(error))?;
    Ok(if path.exists() { path } else { Path::new("/proc/self/exe").to_owned() })
}

/// Says it until it is heard, also to one that takes the place of one that died meanwhile.
async fn tell(target: &Target, call: FinishCall) -> Option<FinishOutcome> {
    let mut heard = Instant::now();
    while heard.elapsed() < PATIENCE {
        if let Some(outcome) = tell_once(target, call, &mut heard).await {
            return Some(outcome);
        }
        sleep(LOOK).await;
    }
    None
}

/// None where the connection breaks, or where nothing has been heard for too long.
async fn tell_once(target: &Target, call: FinishCall, heard: &mut Instant) -> Option<FinishOutcome> {
    let left = PATIENCE.saturating_sub(heard.elapsed());
    let told = async { Client::open(target, None).await?.finish(call).await };
    let mut progress = timeout(left, told).await.ok()?.ok()?;
    loop {
        let left = PATIENCE.saturating_sub(heard.elapsed());
        let said = timeout(left, progress.message()).await.ok()?.ok()??;
        *heard = Instant::now();
        if let Some(outcome) = said.outcome {
            return Some(outcome);
        }
    }
}
