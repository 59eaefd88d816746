//! The account of a crash as people and programs get it. Tests in tests/e2e make real crashes.

use crate::cli::support::{Home, check};

#[test]
fn pages_and_rows() {
    let home = Home::recorded();
    let run = |words: &[&str]| home.command(words.iter().copied()).env("TZ", "UTC").output().unwrap();
    check!(home, "crash", run(&["gpt", "crash"]));
    check!(home, "crash_json", run(&["gpt", "crash", "--format", "json"]));
}

#[test]
fn a_page_fits_the_terminal() {
    let home = Home::recorded();
    for width in [80, 120] {
        let page = home.on_terminal(width, "TZ=UTC NO_COLOR=1", "gpt crash");
        assert!(page.lines().all(|line| line.chars().count() <= width), "{page}");
        insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(format!("crash_at_{width}"), page);
        });
    }
}
