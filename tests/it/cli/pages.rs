//! The generated pages match the code.

use crate::cli::support::Home;

#[test]
fn generated_pages_are_fresh() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");
    let output = Home::empty().probe(["generate-docs", "--check", docs]);
    assert!(
        output.status.success(),
        "{}\nrun: cargo run -- generate-docs docs",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_stale_page_is_found() {
    let home = Home::empty();
    let directory = home.path().to_str().unwrap();
    assert!(home.probe(["generate-docs", directory]).status.success());
    assert!(home.probe(["generate-docs", "--check", directory]).status.success());
    std::fs::write(home.path().join("tables.md"), "old").unwrap();
    let output = home.probe(["generate-docs", "--check", directory]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("tables.md is stale"));
}

#[test]
fn every_command_is_completed_and_documented() {
    let home = Home::empty();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md")).unwrap();
    let script = home.stdout(["completions", "bash"]);
    for command in ["run", "serve", "list", "query", "compare", "tables", "eval", "config", "runs", "completions"] {
        assert!(page.contains(&format!("## probe {command}\n")), "{command}");
        assert!(script.contains(&format!("probe,{command}")), "{command}");
        let help = home.stdout([command, "--help"]);
        assert!(help.contains("Usage: probe ") && help.contains("Examples:"), "{help}");
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(home.stdout(["completions", shell]).contains("probe"), "{shell}");
    }
}
