//! Error messages and exit statuses.

use crate::cli::support::{Home, check};

#[test]
fn wrong_words() {
    let home = Home::recorded();
    check!(home, "console_without_run", home.probe(["gtp"]));
    check!(home, "mistyped_command", home.probe(["qurey", "SELECT 1"]));
    check!(home, "mistyped_after_endpoint", home.probe(["gpt", "qurey", "SELECT 1"]));
    check!(home, "no_endpoint_wanted", home.probe(["gpt", "runs"]));
    check!(home, "detach_from_whom", home.probe(["detach"]));
    check!(home, "detach_from_two", home.probe(["gpt", "detach", "bert"]));
    check!(home, "mistyped_option", home.probe(["gpt", "query", "--fromat", "csv", "SELECT 1"]));
    check!(home, "nothing_to_run", home.probe(["gpt", "query"]));
    check!(home, "mistyped_table", home.probe(["tables", "python.torch_trcae"]));
    check!(home, "wrong_setting", home.probe(["gpt", "config", "detail=never"]));
    check!(home, "wrong_amount", home.probe(["gpt", "eval", "--timeout", "soon", "1"]));
}

#[test]
fn nobody_at_the_endpoint() {
    let home = Home::recorded();
    check!(home, "no_such_run", home.probe(["gtp", "query", "SELECT 1"]));
    check!(home, "no_such_number", home.probe(["gpt@7", "query", "SELECT 1"]));
    check!(home, "no_such_pid", home.probe(["4194305", "query", "SELECT 1"]));
    check!(home, "no_such_socket", home.probe(["unix:/no/such.sock", "query", "SELECT 1"]));
    check!(home, "no_run_directory", home.probe(["/usr", "query", "SELECT 1"]));
    check!(home, "no_token", home.probe(["127.0.0.1:9", "query", "SELECT 1"]));
    check!(home, "no_grammar", home.probe(["a b", "query", "SELECT 1"]));
    check!(home, "nothing_live", home.probe(["query", "SELECT 1"]));
    check!(home, "nothing_ever", Home::empty().probe(["query", "SELECT 1"]));
    check!(home, "eval_of_an_ended_run", home.probe(["gpt", "eval", "1"]));
    check!(home, "config_of_an_ended_run", home.probe(["gpt", "config"]));
    check!(home, "list_of_nothing", home.probe(["list", "--with-agent"]));
}

#[test]
fn a_port_that_nobody_listens_on_is_unreachable() {
    let home = Home::recorded();
    let token = home.path().join("token");
    std::fs::write(&token, "secret-of-the-test-of-thirty-two-letters\n").unwrap();
    let open = home.probe(["127.0.0.1:9", "query", "SELECT 1", "--token-file", token.to_str().unwrap()]);
    assert_eq!(open.status.code(), Some(4), "others can read it: {}", home.shown(&open));
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = home.probe([&free.to_string(), "query", "SELECT 1", "--token-file", token.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", home.shown(&output));
    let said = home.shown(&output);
    assert!(said.contains(&free.to_string()) && said.contains("refused") && said.contains("hint:"), "{said}");
    assert!(!said.contains("secret-of-the-test"), "{said}");
}

#[test]
fn wrong_sql() {
    let home = Home::recorded();
    for (sql, says) in [
        ("SELECT * FROM python.torch_trase", "torch_trace"),
        ("SELECT modul FROM python.torch_trace", "module"),
        ("SELEC 1", "SELEC"),
        ("CREATE TABLE x AS SELECT 1", "hint:"),
    ] {
        let output = home.probe(["gpt", "query", sql]);
        let said = home.shown(&output);
        assert!(matches!(output.status.code(), Some(1 | 4)), "{sql}: {said}");
        assert!(output.stdout.is_empty() && said.contains("error: ") && said.contains(says), "{sql}: {said}");
    }
}

#[test]
fn a_query_that_takes_too_long_reaches_its_limit() {
    let home = Home::recorded();
    let long = "SELECT COUNT(*) FROM python.torch_trace a, python.torch_trace b, python.torch_trace c, python.torch_trace d, \
                python.torch_trace e WHERE a.duration + b.duration + c.duration + d.duration + e.duration > 0.1";
    check!(home, "too_long", home.probe(["gpt", "query", long, "--timeout", "200ms"]));
}

#[test]
fn a_program_that_is_not_there_starts_nothing() {
    let home = Home::empty();
    check!(home, "run_not_found", home.probe(["run", "--", "no-such-program"]));
    check!(home, "run_not_executable", home.probe(["run", "--", "/etc/passwd"]));
    assert!(!home.directories().home.exists(), "no run is left behind");
}
