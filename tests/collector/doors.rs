//! Who gets in: sockets of ours alone, TCP with a token, eval on the socket only.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use probe::collector::Collector;
use probe::error::{Error, Kind};
use probe::paths::Listen;
use probe::server::Token;
use probe_proto::v1::control_client::ControlClient;
use probe_proto::v1::{DescribeCall, EvalCall};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::support::{Bench, options, places, refused, unix};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn token_file(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("token");
    fs::write(&path, SECRET).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn loopback() -> Listen {
    Listen::Tcp("127.0.0.1:0".parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_directories_are_ours_alone_and_the_socket_goes_with_the_collector() {
    let bench = Bench::start().await;
    let socket = bench.socket();
    assert_eq!(bench.collector.endpoint(), format!("unix:{}", socket.display()));
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&bench.places.runtime), 0o700);
    assert_eq!(mode(&bench.places.runs().join("gpt@1")), 0o700);
    let left: Vec<_> = fs::read_dir(&bench.places.runtime).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the socket, the lock, and nothing that binding left: {left:?}");
    bench.collector.stop(None).await.unwrap();
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_name_is_refused_and_takes_nothing() {
    let bench = Bench::start().await;
    let error = refused(Collector::start_in(&bench.places, options("gpt")).await);
    assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Failed, "a run called 'gpt' is live"));
    assert!(error.hint_text().is_some());
    assert!(!bench.places.runs().join("gpt@2").exists());
    let other = Collector::start_in(&bench.places, options("bert")).await.unwrap();
    assert_eq!(other.run(), "bert@1");
    assert_eq!(refused(Collector::start_in(&bench.places, options("query")).await).kind(), Kind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_directory_that_others_can_reach_is_refused() {
    let (_dir, places) = places();
    fs::create_dir_all(&places.runtime).unwrap();
    fs::set_permissions(&places.runtime, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(refused(Collector::start_in(&places, options("gpt")).await).kind(), Kind::Denied);
    fs::remove_dir(&places.runtime).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &places.runtime).unwrap();
    assert_eq!(refused(Collector::start_in(&places, options("gpt")).await).kind(), Kind::Denied);
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
    let mut control = ControlClient::new(crate::support::channel(&path).await);
    assert_eq!(control.describe(DescribeCall {}).await.unwrap().into_inner().run, "gpt@1");

    let on = |path: &Path| {
        let mut options = options("other");
        options.listen = vec![unix(path)];
        options
    };
    let live = refused(Collector::start_in(&bench.places, on(&path)).await);
    assert!(live.to_string().contains("listening"), "{live}");
    assert!(!bench.places.socket_for("other@1").exists(), "what was bound before is gone");
    assert!(!bench.places.runs().join("other@1").exists(), "and its name is free");

    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    for taken in [&file, &link] {
        let error = refused(Collector::start_in(&bench.places, on(taken)).await);
        assert!(error.to_string().contains("no socket of ours"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");

    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(refused(Collector::start_in(&bench.places, on(&open.join("s"))).await).kind(), Kind::Denied);
    let long = dir.path().join("x".repeat(120));
    assert_eq!(refused(Collector::start_in(&bench.places, on(&long)).await).kind(), Kind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_needs_a_token_file_of_ours_alone_and_stays_on_this_machine() {
    let (dir, places) = places();
    let token = token_file(dir.path());
    let with = |listen: &str, token_file: Option<&Path>| {
        let mut options = options("gpt");
        options.listen = vec![Listen::Tcp(listen.parse::<SocketAddr>().unwrap())];
        options.token_file = token_file.map(Path::to_owned);
        options
    };
    let error = refused(Collector::start_in(&places, with("127.0.0.1:0", None)).await);
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.hint_text().unwrap().contains("--token-file"), "{error:?}");
    for beyond in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let error = refused(Collector::start_in(&places, with(beyond, Some(&token))).await);
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains("no TLS yet"), "{error}");
    }
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(Collector::start_in(&places, with("127.0.0.1:0", Some(&token))).await);
    assert_eq!(error.kind(), Kind::Denied);
    assert!(!places.runs().exists() || fs::read_dir(places.runs()).unwrap().count() == 0, "nothing was taken");
}

async fn describe(channel: Channel, authorization: Option<&str>) -> Result<String, Status> {
    let mut request = Request::new(DescribeCall {});
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value.parse().unwrap());
    }
    Ok(ControlClient::new(channel).describe(request).await?.into_inner().run)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_over_tcp_carries_the_token_and_eval_is_refused_all_the_same() {
    let (dir, _) = places();
    let token = token_file(dir.path());
    let bench = Bench::with(|options| {
        options.listen = vec![loopback()];
        options.token_file = Some(token.clone());
    })
    .await;
    let address = bench.collector.listening()[1].clone();
    assert!(bench.collector.endpoint().starts_with("unix:"), "agents of this machine need no token");
    let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();

    let right = Token::read(&token).unwrap().header();
    assert_eq!(describe(channel.clone(), Some(&right)).await.unwrap(), "gpt@1");
    let almost = format!("{}0", &right[..right.len() - 1]);
    for wrong in [None, Some("Bearer "), Some(SECRET), Some(almost.as_str())] {
        let error = Error::from(describe(channel.clone(), wrong).await.unwrap_err());
        assert_eq!(error.kind(), Kind::Denied, "{wrong:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("token")), "{error:?}");
        assert!(!format!("{error:?}").contains(SECRET));
    }
    // Without the token no service is reachable, agents' included.
    let stream = tokio_stream::iter([probe_proto::v1::AgentFrame::default()]);
    let mut agent = probe_proto::v1::agent_client::AgentClient::new(channel.clone());
    assert_eq!(Error::from(agent.session(stream).await.unwrap_err()).kind(), Kind::Denied);

    let mut request = Request::new(EvalCall { code: "1".into(), ..Default::default() });
    request.metadata_mut().insert("authorization", right.parse().unwrap());
    let error = Error::from(ControlClient::new(channel).eval(request).await.unwrap_err());
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("not allowed over TCP"), "{error}");
    let rows = bench.rows("SELECT asked_by = 'token' AND peer LIKE 'tcp:127.0.0.1:%', status FROM probe.evals").await;
    assert_eq!(rows, [["true", "refused"]]);
    // The socket is open to whoever can open it.
    assert_eq!(describe(crate::support::channel(&bench.socket()).await, None).await.unwrap(), "gpt@1");
}
