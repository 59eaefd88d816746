//! Access: sockets of our own user, TCP with tokens and their scopes, and eval over TCP where three settings allow it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use probe_collector::auth::{TcpProtection, TokenFile};
use probe_collector::{Collector, CollectorOptions};
use probe_common::error::{Error, ErrorKind};
use probe_common::paths::ListenAddress;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::control_client::ControlClient;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{At, DescribeCall, Done, EvalCall, FinishCall, Hello, Outcome, StackMethod, StacksCall};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::collector::support::{Bench, FakeAgent, directories, options, refused, unix};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn loopback() -> ListenAddress {
    ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_directories_are_ours_alone_and_the_socket_goes_with_the_collector() {
    let bench = Bench::start().await;
    let socket = bench.socket();
    assert_eq!(bench.collector.endpoint(), format!("unix:{}", socket.display()));
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&bench.directories.runtime), 0o700);
    assert_eq!(mode(&bench.directories.runs().join("gpt@1")), 0o700);
    let left: Vec<_> = fs::read_dir(&bench.directories.runtime).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the socket, the lock, and nothing that binding left: {left:?}");
    bench.collector.stop(None).await.unwrap();
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_name_is_refused_and_takes_nothing() {
    let bench = Bench::start().await;
    let error = refused(Collector::start_in(&bench.directories, options("gpt")).await);
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Failed, "a run called 'gpt' is live"));
    assert!(error.hint_text().is_some());
    assert!(!bench.directories.runs().join("gpt@2").exists());
    let other = Collector::start_in(&bench.directories, options("bert")).await.unwrap();
    assert_eq!(other.run(), "bert@1");
    assert_eq!(refused(Collector::start_in(&bench.directories, options("query")).await).kind(), ErrorKind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_directory_that_others_can_reach_is_refused() {
    let (_dir, directories) = directories();
    fs::create_dir_all(&directories.runtime).unwrap();
    fs::set_permissions(&directories.runtime, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(refused(Collector::start_in(&directories, options("gpt")).await).kind(), ErrorKind::Denied);
    fs::remove_dir(&directories.runtime).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &directories.runtime).unwrap();
    assert_eq!(refused(Collector::start_in(&directories, options("gpt")).await).kind(), ErrorKind::Denied);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_socket_is_replaced_and_everything_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bench = Bench::with(|options| options.listen = vec![unix(&path)]).await;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(bench.collector.endpoint(), format!("unix:{}", path.display()), "what was asked for is what is told");
    assert_eq!(bench.collector.listening().len(), 2, "the run's own socket is there too");
    let mut control = ControlClient::new(crate::collector::support::channel(&path).await);
    assert_eq!(control.describe(DescribeCall {}).await.unwrap().into_inner().run, "gpt@1");

    let on = |path: &Path| {
        let mut options = options("other");
        options.listen = vec![unix(path)];
        options
    };
    let live = refused(Collector::start_in(&bench.directories, on(&path)).await);
    assert!(live.to_string().contains("listening"), "{live}");
    assert!(!bench.directories.socket_for("other@1").exists(), "what was bound before is gone");
    assert!(!bench.directories.runs().join("other@1").exists(), "and its name is free");

    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    for taken in [&file, &link] {
        let error = refused(Collector::start_in(&bench.directories, on(taken)).await);
        assert!(error.to_string().contains("not a socket of probe"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");

    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(refused(Collector::start_in(&bench.directories, on(&open.join("s"))).await).kind(), ErrorKind::Denied);
    let long = dir.path().join("x".repeat(120));
    assert_eq!(refused(Collector::start_in(&bench.directories, on(&long)).await).kind(), ErrorKind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_needs_a_token_and_beyond_this_machine_tls() {
    let (_dir, directories) = directories();
    let with = |listen: &str, protection: &TcpProtection| {
        let mut options = options("gpt");
        options.listen = vec![ListenAddress::Tcp(listen.parse::<SocketAddr>().unwrap())];
        options.protection = protection.clone();
        options
    };
    let beyond = ["0.0.0.0:0", "[::]:0"];
    let all = [TcpProtection::Loopback, TcpProtection::InsecureNoTls, TcpProtection::SelfSigned];
    for protection in &all {
        for listen in ["127.0.0.1:0"].iter().chain(&beyond) {
            let error = refused(Collector::start_in(&directories, with(listen, protection)).await);
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.hint_text().unwrap().contains("probe token make"), "{error:?}");
        }
    }
    TokenFile::of(&directories).make("a", "query".parse().unwrap()).unwrap();
    for listen in beyond {
        let error = refused(Collector::start_in(&directories, with(listen, &TcpProtection::Loopback)).await);
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.hint_text().unwrap().contains("--tls-self-signed"), "{error:?}");
    }
    fs::set_permissions(TokenFile::of(&directories).path(), fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(Collector::start_in(&directories, with("127.0.0.1:0", &TcpProtection::Loopback)).await);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        !directories.runs().exists() || fs::read_dir(directories.runs()).unwrap().count() == 0,
        "nothing was taken"
    );
    fs::set_permissions(TokenFile::of(&directories).path(), fs::Permissions::from_mode(0o600)).unwrap();
    for protection in &all {
        let collector = Collector::start_in(&directories, with("127.0.0.1:0", protection)).await.unwrap();
        assert_eq!(collector.pin().is_some(), *protection == TcpProtection::SelfSigned);
        collector.stop(None).await.unwrap();
    }
    for protection in &all[1..] {
        let collector = Collector::start_in(&directories, with("0.0.0.0:0", protection)).await.unwrap();
        collector.stop(None).await.unwrap();
    }
}

async fn describe(channel: Channel, authorization: Option<&str>) -> Result<String, Status> {
    Ok(ControlClient::new(channel).describe(request(DescribeCall {}, authorization)).await?.into_inner().run)
}

fn request<T>(message: T, authorization: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value.parse().unwrap());
    }
    request
}

/// A collector with a port, its channel, and the file of its tokens.
async fn on_tcp(change: impl FnOnce(&mut CollectorOptions)) -> (Bench, Channel, TokenFile) {
    let (dir, directories) = directories();
    let file = TokenFile::of(&directories);
    file.make("first", "query".parse().unwrap()).unwrap();
    let mut options = options("gpt");
    options.listen = vec![loopback()];
    change(&mut options);
    let collector = Collector::start_in(&directories, options).await.unwrap();
    let address = collector.listening()[1].clone();
    let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();
    (Bench { dir, directories, collector }, channel, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_over_tcp_carries_a_token_that_is_valid_now() {
    let (bench, channel, file) = on_tcp(|_| {}).await;
    assert!(bench.collector.endpoint().starts_with("unix:"), "agents of this machine need no token");
    let secret = file.make("laptop", "query".parse().unwrap()).unwrap();
    let right = format!("Bearer {secret}");
    assert_eq!(describe(channel.clone(), Some(&right)).await.unwrap(), "gpt@1", "made while the collector runs");
    let almost = format!("{}x", &right[..right.len() - 1]);
    for wrong in [None, Some("Bearer "), Some(secret.as_str()), Some(almost.as_str())] {
        let error = Error::from(describe(channel.clone(), wrong).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Denied, "{wrong:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("token")), "{error:?}");
        assert!(!format!("{error:?}").contains(&secret[6..20]));
    }
    // Without a token no service is reachable, agents' included.
    let stream = tokio_stream::iter([probe_proto::v1::AgentFrame::default()]);
    let mut agent = probe_proto::v1::agent_client::AgentClient::new(channel.clone());
    assert_eq!(Error::from(agent.session(stream).await.unwrap_err()).kind(), ErrorKind::Denied);
    file.revoke("laptop").unwrap();
    assert_eq!(Error::from(describe(channel, Some(&right)).await.unwrap_err()).kind(), ErrorKind::Denied);
    // The socket is open to the user that the kernel reports for the connection.
    assert_eq!(describe(crate::collector::support::channel(&bench.socket()).await, None).await.unwrap(), "gpt@1");
    let noted = "SELECT message LIKE 'no token at tcp:127.0.0.1:%', message LIKE '%attempts%' FROM probe.events WHERE kind = 'refused' ORDER BY ts";
    bench.until(noted, &[&["true", "false"], &["false", "true"], &["false", "true"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_is_revoked() {
    let (bench, channel, file) = on_tcp(|_| {}).await;
    let secret = file.make("agents", "ingest".parse().unwrap()).unwrap();
    let mut hello = crate::collector::support::hello("far");
    hello.pid = 4711;
    let mut agent = FakeAgent::over_with(channel, hello, Some(&format!("Bearer {secret}"))).await.unwrap();
    agent.send_steps(1, 0, 3).await;
    agent.acknowledged(1).await;
    file.revoke("agents").unwrap();
    let ended = agent.end().await;
    assert_eq!(Error::from(ended.clone()).kind(), ErrorKind::Denied, "{ended:?}");
    assert_eq!(ended.message(), "the token was revoked");
    bench.until("SELECT COUNT(*) FROM python.steps", &[&["3"]]).await;
    bench.until("SELECT state FROM probe.agents", &[&["lost"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stacks_are_read_of_no_process_on_an_agent_s_word() {
    let (bench, channel, file) = on_tcp(|_| {}).await;
    let token = format!("Bearer {}", file.make("agents", "ingest".parse().unwrap()).unwrap());
    let this = std::process::id();
    let hello = |instance: &str, pid: u32| {
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        Hello { pid, host, command, ..crate::collector::support::hello(instance) }
    };
    // Over TCP it says that it is this process, whose command line it knows; on the socket, that it is another one.
    let far = FakeAgent::over_with(channel, hello("far", this), Some(&token)).await.unwrap();
    let near = FakeAgent::connect(&bench.socket(), hello("near", 1)).await.unwrap();
    let mut control = bench.control().await;
    for (pid, says) in [
        (this, "it is connected over TCP, where nothing but its word says which process it is".to_owned()),
        (1, format!("it has number {this} here, and 1 where it runs")),
    ] {
        let call = StacksCall { pid: Some(pid), method: StackMethod::Memory as i32, ..StacksCall::default() };
        let answer = control.stacks(call).await.unwrap().into_inner();
        assert_eq!(answer.processes.iter().map(|process| &process.problem).collect::<Vec<_>>(), [&says]);
    }
    drop((far, near));
}

#[tokio::test(flavor = "multi_thread")]
async fn eval_over_tcp_needs_the_collector_the_token_and_the_process() {
    let call = || EvalCall { code: "secret_sauce()".into(), at: At::Now as i32, ..Default::default() };
    for (allow, scopes, process, says) in [
        (false, "eval", true, "this collector runs no snippets that come over TCP"),
        (true, "query,ingest", true, "token:me may not run code in the training process: its scopes are ingest,query"),
        (true, "eval", false, "process 7 runs no snippets that come over TCP"),
        (true, "eval", true, ""),
    ] {
        let (bench, channel, file) = on_tcp(|options| options.allow_eval = allow).await;
        let token = format!("Bearer {}", file.make("me", scopes.parse().unwrap()).unwrap());
        let mut hello = crate::collector::support::hello("here");
        hello.eval_over_tcp = process;
        let mut agent = FakeAgent::connect(&bench.socket(), hello).await.unwrap();
        let asked = ControlClient::new(channel).eval(request(call(), Some(&token))).await;
        if says.is_empty() {
            let mut events = asked.unwrap().into_inner();
            let Frame::EvalDecide(decide) = agent.next().await else { panic!("no snippet") };
            assert!(decide.over_tcp, "the process looks itself too");
            agent.reply(decide.id, Reply::Done(Done { outcome: Outcome::Ok as i32, ..Default::default() })).await;
            while events.message().await.unwrap().is_some() {}
        } else {
            let error = Error::from(asked.unwrap_err());
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Denied, says));
            assert!(error.hint_text().is_some(), "{error:?}");
        }
        let status = if says.is_empty() { "ok" } else { "refused" };
        let rows = "SELECT asked_by, peer LIKE 'tcp:127.0.0.1:%', status, code, COALESCE(error, '') FROM probe.evals";
        bench.until(rows, &[&["token:me", "true", status, "secret_sauce()", says]]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_ends_a_run_over_tcp() {
    let (bench, channel, file) = on_tcp(|_| {}).await;
    let token = format!("Bearer {}", file.make("me", "eval,ingest,query".parse().unwrap()).unwrap());
    let asked = ControlClient::new(channel.clone()).finish(request(FinishCall::default(), Some(&token))).await;
    assert_eq!(Error::from(asked.unwrap_err()).kind(), ErrorKind::Denied);
    assert_eq!(describe(channel, Some(&token)).await.unwrap(), "gpt@1");
    bench.until("SELECT COUNT(*) FROM probe.events WHERE kind = 'refused'", &[&["1"]]).await;
}
