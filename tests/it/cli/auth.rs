//! Every door with every key, by the real binary: scopes × operations × transports. And no token is seen anywhere.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use hyper_util::rt::TokioIo;
use probe_proto::credentials::{CertificatePin, Credentials};
use probe_proto::v1::agent_client::AgentClient;
use probe_proto::v1::{AgentFrame, Hello, agent_frame};
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use crate::cli::support::Home;

/// A collector by itself, ended with the test.
struct Served {
    child: Child,
    address: String,
    pin: Option<CertificatePin>,
    /// All output of the collector, with everything that its libraries log.
    log: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(home: &Home, name: &str, more: &[&str]) -> Served {
    let log = home.path().join(format!("{name}.log"));
    let words = ["serve", "--name", name, "--listen", "127.0.0.1:0"];
    let mut command = home.command(words);
    command.args(more).env("RUST_LOG", "trace").env("PROBE_LOG", "trace");
    let child = command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let mut served = Served { child, address: String::new(), pin: None, log };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let said = std::fs::read(&served.log).unwrap();
        let said = String::from_utf8_lossy(&said);
        let run = said.lines().find(|line| line.starts_with("probe: run "));
        let address = run.and_then(|run| run.rsplit_once("127.0.0.1:")).map(|(_, port)| format!("127.0.0.1:{port}"));
        if let Some(address) = address.filter(|_| said.contains("train with")) {
            served.address = address;
            let pin = said.split_whitespace().find(|word| word.starts_with("sha256:"));
            served.pin = pin.map(|pin| pin.parse().unwrap());
            return served;
        }
        assert!(std::time::Instant::now() < deadline, "it does not begin: {said}");
        assert!(served.child.try_wait().unwrap().is_none(), "it has ended: {said}");
        std::thread::yield_now();
    }
}

/// Whether an agent with the token of this file is accepted.
fn ingest(address: &str, file: &Path, instance: &str) -> bool {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let credentials = Credentials::read(file).unwrap();
        let way = credentials.way(address, None).unwrap();
        let address = address.to_owned();
        let connector = tower::service_fn(move |_| {
            let (address, way) = (address.clone(), way.clone());
            async move { probe_proto::tcp::connect(&address, &way).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://collector").connect_with_connector(connector).await.unwrap();
        let hello = Hello {
            protocol: probe_proto::PROTOCOL,
            instance: instance.into(),
            host: "far".into(),
            pid: 1,
            ..Hello::default()
        };
        let frame = AgentFrame { frame: Some(agent_frame::Frame::Hello(hello)) };
        let mut request = Request::new(tokio_stream::iter([frame]));
        request.metadata_mut().insert("authorization", credentials.authorization().parse().unwrap());
        match AgentClient::new(channel).session(request).await {
            Ok(answer) => answer.into_inner().message().await.unwrap().is_some(),
            Err(status) => {
                assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
                false
            }
        }
    })
}

/// Operations, the scopes that they need, and their exit status where no process trains.
const OPERATIONS: &[(&[&str], &[&str], i32)] = &[
    (&["query", "SELECT COUNT(*) FROM python.steps"], &["query"], 0),
    (&["tables"], &["query"], 0),
    (&["config"], &["query"], 0),
    (&["config", "detail=off"], &["query", "eval"], 0),
    (&["hang"], &["query"], 3),
    (&["stack"], &["query"], 3),
    (&["stack", "--pause"], &["query", "eval"], 3),
    (&["eval", "1"], &["eval"], 3),
];

const SCOPES: &[&str] = &["ingest", "query", "eval", "ingest,query", "ingest,eval", "query,eval", "ingest,query,eval"];

#[test]
fn every_missing_permission_is_denied_and_no_token_is_seen_anywhere() {
    let home = Home::empty();
    let mut seen = Vec::new();
    let token = |name: &str, scopes: &str, seen: &mut Vec<u8>| {
        let file = home.path().join(name);
        let output = home.probe(["token", "make", name, "--scope", scopes, "-o", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", home.shown(&output));
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        seen.extend([output.stdout, output.stderr].concat());
        file
    };
    let first = token("first", "query", &mut seen);
    let plain = serve(&home, "plain", &["--allow-eval"]);
    let tls = serve(&home, "tls", &["--allow-eval", "--tls-self-signed"]);
    let pin = tls.pin.clone().unwrap();
    let mut secrets = vec![secret(&first)];
    for served in [&plain, &tls] {
        for scopes in SCOPES {
            let name = format!("{}-{}", scopes.replace(',', "-"), served.pin.is_some());
            let file = token(&name, scopes, &mut seen);
            // Made since there is a certificate: the file says its pin. The other collector has none.
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.contains(&pin.to_string()), "the pin is in the file");
            if served.pin.is_none() {
                std::fs::write(&file, text.lines().next().unwrap()).unwrap();
            }
            secrets.push(secret(&file));
            let may = |scope: &&str| scopes.split(',').any(|has| has == *scope);
            for (words, needs, done) in OPERATIONS {
                let words = [&[served.address.as_str()], *words, &["--token-file", file.to_str().unwrap()]].concat();
                // The logs of its libraries are checked too.
                let output = home.command(&words).env("RUST_LOG", "trace").output().unwrap();
                let expected = if needs.iter().all(may) { *done } else { 4 };
                assert_eq!(output.status.code(), Some(expected), "{words:?}: {}", home.shown(&output));
                assert!(expected != 4 || home.shown(&output).contains("hint: "), "{}", home.shown(&output));
                seen.extend([output.stdout, output.stderr].concat());
            }
            assert_eq!(ingest(&served.address, &file, &name), may(&"ingest"), "{scopes}");
        }
        // No token, an unknown one, and one that was revoked.
        let strange = home.path().join("strange");
        std::fs::write(&strange, Credentials::text(&"x".repeat(40), served.pin.as_ref())).unwrap();
        std::fs::set_permissions(&strange, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        secrets.push("x".repeat(40));
        let gone = token("gone", "ingest,query,eval", &mut seen);
        if served.pin.is_none() {
            let text = std::fs::read_to_string(&gone).unwrap();
            std::fs::write(&gone, text.lines().next().unwrap()).unwrap();
        }
        secrets.push(secret(&gone));
        seen.extend(home.stdout(["token", "list"]).into_bytes());
        let revoked = home.probe(["token", "revoke", "gone"]);
        assert!(revoked.status.success(), "{}", home.shown(&revoked));
        for file in [&strange, &gone] {
            for words in [["query", "SELECT 1"], ["eval", "1"]] {
                let words =
                    [&[served.address.as_str()], &words[..], &["--token-file", file.to_str().unwrap()]].concat();
                let output = home.command(&words).output().unwrap();
                assert_eq!(output.status.code(), Some(4), "{words:?}: {}", home.shown(&output));
                seen.extend([output.stdout, output.stderr].concat());
            }
            assert!(!ingest(&served.address, file, "strange"));
        }
        let without = home.probe([&served.address, "query", "SELECT 1"]);
        assert_eq!(without.status.code(), Some(4), "{}", home.shown(&without));
        std::fs::remove_file(&gone).unwrap();
    }
    pins(&home, &plain, &tls, &first);
    audited(&home);
    // Nowhere else than in the clients' own files: not in what was said or logged, nor in rows, nor in any file.
    for name in ["plain", "tls"] {
        for table in ["queries", "evals", "events", "agents"] {
            seen.extend(
                home.stdout([name, "query", &format!("SELECT * FROM probe.{table}"), "--format", "json"]).into_bytes(),
            );
        }
    }
    for served in [&plain, &tls] {
        for file in ["cmdline", "environ"] {
            seen.extend(std::fs::read(format!("/proc/{}/{file}", served.child.id())).unwrap());
        }
        let log = std::fs::read(&served.log).unwrap();
        assert!(log.len() > 1000, "there is a log to look into");
        seen.extend(log);
    }
    let mut directories = vec![home.directories().home, home.directories().runtime];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                seen.extend(std::fs::read(entry.path()).unwrap());
            }
        }
    }
    for secret in &secrets {
        // Also half of one would be too much.
        let half = &secret.as_bytes()[secret.len() - 24..];
        assert!(!seen.windows(half.len()).any(|window| window == half), "a token was seen: {secret}");
    }
}

/// A client and a collector that do not agree on TLS report that, and a token is sent only to the collector it is for.
fn pins(home: &Home, plain: &Served, tls: &Served, file: &Path) {
    let ask = |served: &Served, pin: &str, words: &[&str]| {
        let words = [&[served.address.as_str()], words, &["--token-file", file.to_str().unwrap()]].concat();
        let output = home.command(&words).env("PROBE_TLS_PIN", pin).output().unwrap();
        (output.status.code(), home.shown(&output))
    };
    let query = ["query", "SELECT 1"];
    let pin = tls.pin.as_ref().map(ToString::to_string).unwrap();
    assert_eq!(ask(tls, &pin, &query).0, Some(0));
    for words in [query, ["eval", "1"]] {
        let (status, said) = ask(tls, "", &words);
        assert!(status == Some(3) && said.contains("hint: if it uses TLS, its pin has to be"), "{said}");
    }
    let (status, said) = ask(plain, &pin, &query);
    assert!(status == Some(3) && said.contains("does not speak TLS"), "{said}");
    let other = format!("sha256:{}", "0".repeat(64));
    let (status, said) = ask(tls, &other, &query);
    assert!(status == Some(4) && said.contains("its certificate is not the expected one"), "{said}");
}

/// The random part of a token.
fn secret(file: &Path) -> String {
    let line = BufReader::new(std::fs::File::open(file).unwrap()).lines().next().unwrap().unwrap();
    line.strip_prefix("probe_").unwrap().to_owned()
}

fn audited(home: &Home) {
    for (name, tls) in [("plain", "false"), ("tls", "true")] {
        let csv = |sql: &str| home.stdout([name, "query", sql, "--format", "csv"]);
        let refused = csv(
            "SELECT asked_by, sql, peer LIKE 'tcp:127.0.0.1:%' AS far FROM probe.queries WHERE status = 'refused' GROUP BY ALL ORDER BY 1, 2",
        );
        for scopes in ["ingest", "eval", "ingest-eval"] {
            let row = format!("token:{scopes}-{tls},SELECT COUNT(*) FROM python.steps,true\n");
            assert!(refused.contains(&row), "{row} is not in\n{refused}");
        }
        // Of an unknown token only its use is recorded.
        assert!(refused.contains("unknown token,,true\n") && !refused.contains("SELECT 1"), "{refused}");
        assert!(!refused.contains("token:query"), "{refused}");
        let evals = csv(
            "SELECT asked_by, code, COUNT(*) AS n FROM probe.evals WHERE status = 'refused' AND error LIKE '%scopes%' GROUP BY ALL ORDER BY 1",
        );
        for scopes in ["ingest", "query", "ingest-query"] {
            assert!(evals.contains(&format!("token:{scopes}-{tls},1,1\n")), "{evals}");
        }
        let events = csv("SELECT message FROM probe.events WHERE kind = 'refused'");
        assert!(events.contains("may not send rows") && events.contains("may not change what is recorded"), "{events}");
    }
}
