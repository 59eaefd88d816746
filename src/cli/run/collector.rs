//! The collector of a launcher: a process of its own, so that its failures do not reach the command. The launcher starts it,
//! starts it again when it dies, and at the end tells it how the command ended.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe_client::Client;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_common::error::{Error, Result};
use probe_inspect::process_exit::ProcessEnd;
use probe_proto::env;
use probe_proto::v1::{FinishCall, FinishOutcome};
use probe_store::runs::{self, RunInfo, RunState};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::greeting::{LaunchMessage, ReadyMessage};
use crate::cli::report;
use crate::cli::status::CommandStatus;

/// How long a collector is waited for that sends nothing: it is stopped, or too busy to answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a collector that has written the run may take to end.
const GONE: Duration = Duration::from_secs(5);
/// The interval of checks of what another process does.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The interval of checks of a run that another collector keeps.
const LOOK_AT_ANOTHER: Duration = Duration::from_secs(1);
/// The pause before a collector is started again that died soon after a start: longer each time, up to a minute.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The collector's process, and the ones that replace it.
#[derive(Debug)]
pub(super) struct CollectorProcess {
    /// None while no collector runs that this process started.
    child: Option<Child>,
    /// Open for as long as this process lives: its end tells the collector that the launcher is gone.
    _input: Option<ChildStdin>,
    /// Arguments of a collector beside its run's name.
    listening: Vec<OsString>,
    launch: LaunchMessage,
    run: String,
    endpoint: String,
    /// Whether the collector was ended on purpose, and is not restarted.
    is_over: bool,
    /// Whether the collector was told that the command has ended, and to end too.
    is_finishing: bool,
}

impl CollectorProcess {
    /// Starts a collector for a new run called `name`, or "name-2" where one of that name is live and `may_rename`.
    /// [`CollectorProcess::ready`] waits until it listens; it prints its own errors.
    pub(super) async fn start(
        (name, may_rename): (&str, bool),
        command: String,
        listening: Vec<OsString>,
    ) -> Result<Self> {
        let launch = LaunchMessage { command, may_rename };
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

    /// Waits until the collector listens. Where it ended instead, returns its exit status: it has printed why.
    pub(super) async fn ready(&mut self) -> Result<Option<CommandStatus>> {
        let Some(child) = &mut self.child else { return Err(Error::failed("there is no collector")) };
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        if let Ok(ReadyMessage { run, endpoint }) = serde_json::from_str(&line) {
            (self.run, self.endpoint) = (run, endpoint);
            return Ok(None);
        }
        let ended = child.wait().await?;
        match ended.code() {
            Some(status) if status > 0 => Ok(Some(status as CommandStatus)),
            _ => Err(Error::failed(format!("the collector {} before it listened", ProcessEnd::of(ended).in_words()))),
        }
    }

    /// The run with its number.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// The address at which agents reach the collector.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Ends the collector of a run whose command did not start.
    pub(super) async fn end(mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = timeout(TIMEOUT, child.wait()).await;
    }

    /// Keeps a collector running, for as long as this is polled.
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
                // An agent has started a collector.
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

    /// Tells the collector that the command has ended, and waits until the run is written. None where the collector can't be
    /// told, or stops answering before it reports the outcome.
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
                    let _ = timeout(GONE, async { while runs::is_live(&run) { sleep(LOOK_EVERY).await } }).await;
                }
                outcome
            }
            never = self.watch() => match never {},
        }
    }

    /// The process id of the collector, where this process started it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    /// Whether the collector was ended on purpose while the command was running.
    pub(super) fn was_ended(&self) -> bool {
        self.is_over
    }

    fn target(&self) -> FoundEndpoint {
        let path = self.endpoint.strip_prefix("unix:").unwrap_or(&self.endpoint);
        FoundEndpoint { location: RunLocation::Socket(PathBuf::from(path)), pid: None }
    }

    fn has_ended(&self) -> bool {
        let info = runs::resolve(&self.run).and_then(|directory| RunInfo::read(&directory));
        info.is_ok_and(|info| info.state == RunState::Ended)
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
                let how = ProcessEnd::of(ended).in_words();
                report::note(format_args!(
                    "the collector of run {run} {how}: the command continues, and another collector takes over"
                ));
            }
            None => {}
        }
    }
}

/// Starts a collector with the arguments `words`. It prints its errors on the standard error of this process.
async fn spawn(
    words: impl Iterator<Item = OsString>,
    launch: &LaunchMessage,
    stdout: Stdio,
) -> Result<(Child, Option<ChildStdin>)> {
    let program = program()?;
    let mut command = Command::new(&program);
    command.arg("serve").args(words).arg("--launched");
    // The variable would name the outer run where this is a run within a run: the name is among the words, or a new one.
    command.env_remove(env::PROBE_RUN);
    let started = command.stdin(Stdio::piped()).stdout(stdout).spawn();
    let not_started = |error| Error::failed(format!("{} could not be started", program.display())).because(error);
    let mut child = started.map_err(not_started)?;
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        let line = serde_json::to_string(launch).map_err(Error::caused)?;
        // A collector that has ended already says why, and its end is seen.
        let _ = input.write_all(format!("{line}\n").as_bytes()).await;
    }
    Ok((child, input))
}

/// The path of this program. Where its file was replaced meanwhile (an upgrade), the one that runs here is meant.
fn program() -> Result<PathBuf> {
    let path =
        std::env::current_exe().map_err(|error| Error::failed("cannot find the probe executable").because(error))?;
    Ok(if path.exists() { path } else { Path::new("/proc/self/exe").to_owned() })
}

/// Tells the collector that the command has ended until it answers; also one that replaces a collector that died meanwhile.
async fn tell(target: &FoundEndpoint, call: FinishCall) -> Option<FinishOutcome> {
    let mut heard = Instant::now();
    while heard.elapsed() < TIMEOUT {
        if let Some(outcome) = tell_once(target, call, &mut heard).await {
            return Some(outcome);
        }
        sleep(LOOK_EVERY).await;
    }
    None
}

/// Tells it once. None where the connection breaks, or where nothing was heard for [`TIMEOUT`].
async fn tell_once(target: &FoundEndpoint, call: FinishCall, heard: &mut Instant) -> Option<FinishOutcome> {
    let remaining = TIMEOUT.saturating_sub(heard.elapsed());
    let finish = async { Client::open(target, None).await?.finish(call).await };
    let mut progress = timeout(remaining, finish).await.ok()?.ok()?;
    loop {
        let remaining = TIMEOUT.saturating_sub(heard.elapsed());
        let message = timeout(remaining, progress.message()).await.ok()?.ok()??;
        *heard = Instant::now();
        if let Some(outcome) = message.outcome {
            return Some(outcome);
        }
    }
}
