//! Commands against a live collector. The collector here has the rows of the SQL tests and gives chosen answers about
//! snippets and settings, so that every possible answer is tested.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use probe_collector::server::flight;
use probe_proto::v1::control_server::{Control, ControlServer};
use probe_proto::v1::{self, At, Outcome, eval_event::Event};
use probe_query::QueryEngine;
use tokio::sync::{mpsc as channel, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use crate::cli::support::{Home, check};
use crate::sql::data;

/// The requests that the collector received, and its answers.
#[derive(Default)]
struct Script {
    events: Vec<v1::EvalEvent>,
    /// Whether the stream stays open after the events.
    hang: bool,
    refuse: Option<Status>,
    asked: Option<v1::EvalCall>,
    set: HashMap<String, String>,
}

#[derive(Clone)]
struct Answering {
    run: String,
    script: Arc<Mutex<Script>>,
    gone: mpsc::Sender<()>,
}

#[tonic::async_trait]
impl Control for Answering {
    async fn describe(&self, _: Request<v1::DescribeCall>) -> Result<Response<v1::Description>, Status> {
        let agent = |rank: i32, state: &str| v1::AgentInfo {
            host: "node-1".into(),
            pid: 100 + rank as u32,
            rank: Some(rank),
            world_size: Some(2),
            state: state.into(),
            step: 12_345,
            steps_per_second: if rank == 0 { 3.25 } else { 0.0 },
            command: "python train.py".into(),
        };
        let agents = vec![agent(1, "lost"), agent(0, "live"), agent(2, "ended")];
        Ok(Response::new(v1::Description { run: self.run.clone(), agents, ..Default::default() }))
    }

    type EvalStream = ReceiverStream<Result<v1::EvalEvent, Status>>;

    async fn eval(&self, call: Request<v1::EvalCall>) -> Result<Response<Self::EvalStream>, Status> {
        let (events, hang) = {
            let mut script = self.script.lock().unwrap();
            script.asked = Some(call.into_inner());
            if let Some(status) = script.refuse.clone() {
                return Err(status);
            }
            (script.events.clone(), script.hang)
        };
        let (send, receive) = channel::channel(100);
        let gone = self.gone.clone();
        tokio::spawn(async move {
            for event in events {
                send.send(Ok(event)).await.unwrap();
            }
            if hang {
                send.closed().await;
                gone.send(()).unwrap();
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn config(&self, call: Request<v1::ConfigCall>) -> Result<Response<v1::ConfigAnswer>, Status> {
        let mut script = self.script.lock().unwrap();
        script.set.extend(call.into_inner().values);
        let detail = script.set.get("detail").cloned().unwrap_or("every-step".into());
        let agent = |rank: i32| v1::AgentConfig {
            rank: Some(rank),
            pid: 100 + rank as u32,
            values: HashMap::from([("detail".to_owned(), detail.clone())]),
        };
        Ok(Response::new(v1::ConfigAnswer { agents: vec![agent(1), agent(0)] }))
    }

    type CaptureStream = ReceiverStream<Result<v1::CaptureEvent, Status>>;

    async fn capture(&self, _: Request<v1::CaptureCall>) -> Result<Response<Self::CaptureStream>, Status> {
        Err(Status::unimplemented("nobody trains here"))
    }

    type FinishStream = ReceiverStream<Result<v1::FinishProgress, Status>>;

    async fn finish(&self, _: Request<v1::FinishCall>) -> Result<Response<Self::FinishStream>, Status> {
        Err(Status::unimplemented("no launcher has started this one"))
    }

    async fn hang(&self, _: Request<v1::HangCall>) -> Result<Response<v1::HangAnswer>, Status> {
        Ok(Response::new(crate::cli::stacks::hang()))
    }

    async fn watch(&self, _: Request<v1::WatchCall>) -> Result<Response<v1::WatchAnswer>, Status> {
        Err(Status::unimplemented("nobody trains here"))
    }

    async fn stacks(&self, call: Request<v1::StacksCall>) -> Result<Response<v1::StacksAnswer>, Status> {
        Ok(Response::new(crate::cli::stacks::answer(&call.into_inner())))
    }
}

/// A live collector; it ends when this is dropped.
pub(crate) struct Live {
    pub(crate) home: Home,
    script: Arc<Mutex<Script>>,
    gone: mpsc::Receiver<()>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    pub(crate) fn start() -> Self {
        Self::named(Home::empty(), "gpt@1")
    }

    pub(crate) fn named(home: Home, run: &str) -> Self {
        Self::of(home, run, data::live())
    }

    /// A live collector with the rows of `engine`.
    pub(crate) fn of(home: Home, run: &str, engine: QueryEngine) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let directories = home.directories();
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&directories.runtime).unwrap();
        let socket: PathBuf = directories.socket_for(run);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let script = Arc::new(Mutex::new(Script::default()));
        let (gone_send, gone) = mpsc::channel();
        let control = Answering { run: run.to_owned(), script: Arc::clone(&script), gone: gone_send };
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap());
            let services = tonic::transport::Server::builder().add_service(ControlServer::new(control));
            let services = services.add_service(flight::service(Arc::new(engine), Arc::default()));
            tokio::select! {
                served = services.serve_with_incoming(incoming) => served.unwrap(),
                _ = stopped => {}
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let thread = std::thread::spawn(move || runtime.block_on(serve));
        Self { home, script, gone, stop: Some(stop), thread: Some(thread) }
    }

    fn answers(&self, events: impl IntoIterator<Item = Event>) {
        let events = events.into_iter().map(|event| v1::EvalEvent { event: Some(event) });
        self.script.lock().unwrap().events = events.collect();
    }

    fn asked(&self) -> v1::EvalCall {
        self.script.lock().unwrap().asked.clone().unwrap()
    }
}

impl Live {
    /// Stops the collector, and keeps its home.
    pub(crate) fn end(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end();
    }
}

fn output(rank: Option<i32>, stderr: bool, text: &str) -> Event {
    Event::Output(v1::RankOutput {
        rank,
        output: Some(v1::Output { stderr, data: text.to_owned().into_bytes().into() }),
    })
}

fn placed(at: At, ranks: &[i32]) -> Event {
    let step = if at == At::Step { 813 } else { -1 };
    Event::Placement(v1::Placement { at: at as i32, why: String::new(), step, ranks: ranks.to_vec() })
}

fn done(rank: Option<i32>, outcome: Outcome, error: &str) -> Event {
    let done = v1::Done { outcome: outcome as i32, error: error.into(), step: 813, ..Default::default() };
    Event::RankDone(v1::RankDone { rank, done: Some(done) })
}

fn finished(outcome: Outcome, error: &str, hint: &str) -> Event {
    Event::Finished(v1::Finished {
        outcome: outcome as i32,
        error: error.into(),
        hint: hint.into(),
        training_waited_s: 0.314,
    })
}

#[test]
fn a_live_run_answers_by_every_name_it_has() {
    let live = Live::start();
    let socket = live.home.directories().socket_for("gpt@1");
    let count = "SELECT COUNT(*) AS n FROM python.steps";
    let path = format!("unix:{}", socket.display());
    for endpoint in ["gpt", "gpt@1", &path, socket.to_str().unwrap()] {
        assert_eq!(live.home.stdout([endpoint, "query", count, "--format", "csv"]), "n\n8\n", "{endpoint}");
    }
    assert_eq!(live.home.stdout(["query", count, "--format", "csv"]), "n\n8\n", "the only live one");
    assert_eq!(live.home.stdout(["101", "query", count, "--format", "csv"]), "n\n4\n", "that process's rows alone");
    let pids = "SELECT DISTINCT pid, rank FROM python.steps";
    assert_eq!(live.home.stdout(["101", "query", pids, "--format", "ndjson"]), "{\"pid\":101,\"rank\":1}\n");
    check!(live.home, "no_such_run_but_a_live_one", live.home.probe(["gtp", "query", "SELECT 1"]));
    check!(live.home, "live_wrong_sql", live.home.probe(["query", "SELECT modul FROM python.torch_trace"]));
}

#[test]
fn several_live_runs_have_to_be_told_apart() {
    let one = Live::start();
    let home = Home::empty();
    std::os::unix::fs::symlink(one.home.directories().runtime, home.path().join("elsewhere")).unwrap();
    let mut command = one.home.command(["query", "SELECT 1"]);
    let listener = std::os::unix::net::UnixListener::bind(one.home.directories().socket_for("other@1")).unwrap();
    check!(one.home, "several_live", command.output().unwrap());
    drop(listener);
    let left = one.home.probe(["query", "SELECT 1 AS one", "--format", "csv"]);
    assert_eq!(left.stdout, b"one\n1\n", "a socket that nobody listens on is no live run");
}

#[test]
fn live_processes_are_listed() {
    let live = Live::start();
    check!(live.home, "list", live.home.probe(["list", "--with-agent"]));
    check!(live.home, "list_all_json", live.home.probe(["list", "--with-agent", "--all", "--format", "json"]));
}

#[test]
fn settings_are_shown_and_set() {
    let live = Live::start();
    check!(live.home, "config", live.home.probe(["gpt", "config"]));
    check!(live.home, "config_set", live.home.probe(["gpt", "config", "detail=off", "--format", "csv"]));
    let of_one = live.home.stdout(["101", "config", "detail", "--format", "csv"]);
    assert_eq!(of_one.lines().count(), 2, "{of_one}");
    let output = live.home.probe(["101", "config", "detail=off"]);
    assert_eq!(output.status.code(), Some(2), "{}", live.home.shown(&output));
}

#[test]
fn output_of_a_snippet_is_passed_on_as_it_is() {
    let live = Live::start();
    live.answers([
        placed(At::Now, &[0]),
        output(Some(0), false, "half a li"),
        output(Some(0), true, "warned\n"),
        output(Some(0), false, "ne, no end"),
        done(Some(0), Outcome::Ok, ""),
        finished(Outcome::Ok, "", ""),
    ]);
    check!(live.home, "eval", live.home.probe(["gpt", "eval", "--timeout", "2s", "--at", "now", "print(1)"]));
    let asked = live.asked();
    assert_eq!(
        (asked.code.as_str(), asked.at(), asked.timeout_s, asked.max_output),
        ("print(1)", At::Now, 2.0, 16 << 20)
    );
    assert_eq!((asked.pid, asked.rank, asked.all_ranks), (None, None, false));
    assert_eq!((asked.session.as_str(), asked.end_session), ("", false));
    live.home.stdout(["gpt", "eval", "--session", "mine", "x = 1"]);
    assert_eq!((live.asked().session.as_str(), live.asked().end_session), ("mine", false));
    live.home.stdout(["gpt", "eval", "--session", "mine", "--end-session"]);
    let asked = live.asked();
    assert_eq!((asked.code.as_str(), asked.session.as_str(), asked.end_session), ("", "mine", true));
    live.home.stdout(["101", "eval", "--rank", "1", "print(1)"]);
    assert_eq!((live.asked().pid, live.asked().rank), (Some(101), Some(1)));
    let output = live.home.probe_with_input(["gpt", "eval", "-"], "x = 1\nprint(x)\n");
    assert!(output.status.success());
    assert_eq!(live.asked().code, "x = 1\nprint(x)\n");
}

#[test]
fn frames_are_listed_by_a_snippet_and_one_is_asked_by_its_number() {
    let live = Live::start();
    live.answers([placed(At::Now, &[0]), done(Some(0), Outcome::Ok, ""), finished(Outcome::Ok, "", "")]);
    live.home.stdout(["gpt", "eval", "--frames"]);
    let asked = live.asked();
    assert!(asked.code.contains("probe_agent.eval.frames"), "{}", asked.code);
    assert_eq!((asked.at(), asked.frame), (At::Now, None));
    live.home.stdout(["gpt", "eval", "--frame", "2", "print(1)"]);
    assert_eq!((live.asked().code.as_str(), live.asked().frame), ("print(1)", Some(2)));
    for wrong in [["gpt", "eval", "--frames", "x"], ["gpt", "eval", "--frame", "-1"]] {
        assert_eq!(live.home.probe(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_one_should_know_meanwhile_is_said_beside_the_output() {
    let live = Live::start();
    let (text, hint) = ("rank 0 (pid 100) has not let go of the GIL".into(), "probe 100 stack".into());
    live.answers([
        Event::Notice(v1::Notice { text, hint }),
        placed(At::Now, &[0]),
        output(Some(0), false, "at last\n"),
        done(Some(0), Outcome::Ok, ""),
        finished(Outcome::Ok, "", ""),
    ]);
    check!(live.home, "eval_notice", live.home.probe(["gpt", "eval", "print(1)"]));
}

#[test]
fn several_ranks_are_labelled_and_where_it_ran_is_said() {
    let live = Live::start();
    live.answers([
        placed(At::Step, &[0, 1]),
        output(Some(0), false, "a\nb"),
        output(Some(1), false, "c\n"),
        output(Some(0), false, "b\nlast"),
        output(Some(1), true, "careful\n"),
        done(Some(0), Outcome::Ok, ""),
        done(Some(1), Outcome::Ok, ""),
        finished(Outcome::Ok, "", ""),
    ]);
    check!(live.home, "eval_all_ranks", live.home.probe(["gpt", "eval", "--rank", "all", "print(1)"]));
    assert!(live.asked().all_ranks);
}

#[test]
fn how_a_snippet_failed_is_an_exit_status() {
    let live = Live::start();
    let traceback = "Traceback (most recent call last):\n  File \"<eval>\", line 1, in <module>\nZeroDivisionError: division by zero\n";
    live.answers([
        placed(At::Now, &[0]),
        done(Some(0), Outcome::Error, traceback),
        finished(Outcome::Error, "ZeroDivisionError: division by zero", ""),
    ]);
    check!(live.home, "eval_raised", live.home.probe(["gpt", "eval", "1/0"]));
    live.answers([
        placed(At::Step, &[0, 1]),
        finished(
            Outcome::NoBoundary,
            "no step ended within 30 s; rank 1 is in barrier",
            "--at now runs it beside training",
        ),
    ]);
    check!(live.home, "eval_no_boundary", live.home.probe(["gpt", "eval", "1"]));
    live.answers([finished(Outcome::Timeout, "", "")]);
    check!(live.home, "eval_timeout", live.home.probe(["gpt", "eval", "1"]));
    live.answers([finished(Outcome::Refused, "this process runs no snippets (PROBE_EVAL=off)", "")]);
    check!(live.home, "eval_refused", live.home.probe(["gpt", "eval", "1"]));
    live.script.lock().unwrap().refuse =
        Some(probe_common::error::Error::denied("no snippets over TCP").hint("use the socket").into());
    check!(live.home, "eval_denied", live.home.probe(["gpt", "eval", "1"]));
    live.script.lock().unwrap().refuse = None;
    live.answers([output(Some(0), false, "begun\n")]);
    check!(live.home, "eval_collector_gone", live.home.probe(["gpt", "eval", "1"]));
}

#[test]
fn an_interrupt_ends_a_snippet_there_too() {
    let live = Live::start();
    live.answers([placed(At::Now, &[0]), output(Some(0), false, "begun\n")]);
    live.script.lock().unwrap().hang = true;
    let mut command = live.home.command(["gpt", "eval", "while True: pass"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its first line shows that it is running, and streamed.
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "begun\n");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    let (began, patience) = (Instant::now(), Duration::from_secs(60));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    live.gone.recv_timeout(patience).expect("the collector sees the stream dropped");
    assert!(began.elapsed() < patience);
}

#[test]
fn every_cap_of_an_answer_has_an_option_and_says_which_it_was() {
    let live = Live::start();
    let recorded = Home::recorded();
    let sql = "SELECT a.step FROM python.torch_trace a CROSS JOIN python.torch_trace b CROSS JOIN python.steps";
    for home in [&live.home, &recorded] {
        for (option, value, said) in [
            ("--max-rows", "10", "the answer has more than 10 rows"),
            ("--max-bytes", "16K", "the answer is larger than 16 KiB"),
        ] {
            let output = home.probe(["gpt", "query", "--format", "csv", option, value, sql]);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(5), "{errors}");
            assert!(errors.contains(said) && errors.contains("hint:") && errors.contains(option), "{errors}");
        }
        let output = home.probe([
            "gpt",
            "query",
            "--format",
            "csv",
            "--max-rows",
            "48",
            "--max-bytes",
            "1M",
            "SELECT step FROM python.torch_trace",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
