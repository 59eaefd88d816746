//! The table format on terminals (made by script(1)) of different widths.

use crate::cli::support::Home;

const WIDE: &str = "SELECT rank, module, stage, ts, AVG(duration) AS average_duration_seconds, MAX(duration) AS longest_duration_seconds \
                    FROM python.torch_trace WHERE rank = 0 AND step = 1 GROUP BY 1, 2, 3, 4 ORDER BY 2, 3";

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

fn line(sql: &str) -> String {
    format!("gpt query \"{sql}\"")
}

#[test]
fn a_wide_table_stays_readable() {
    let home = Home::recorded();
    let seen = home.on_terminal(80, "NO_COLOR=1", &line(WIDE));
    let seen = seen.split("\nprobe: ").next().unwrap();
    insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("wide_at_80", seen);
    });
    assert!(widest(seen) <= 80, "{seen}");
    let all = home.on_terminal(
        60,
        "NO_COLOR=1",
        &line("SELECT * FROM python.torch_trace WHERE rank = 0 AND step = 1 LIMIT 1"),
    );
    assert!(all.starts_with("─ row 1 ─") && all.contains("\ntotal_duration   "), "a value a line:\n{all}");
    let wide = home.on_terminal(250, "NO_COLOR=1", &line(WIDE));
    assert!(wide.lines().next().unwrap().contains("average_duration_seconds  longest_duration_seconds"), "{wide}");
}

#[test]
fn what_is_no_terminal_gets_every_column_on_one_line() {
    let home = Home::recorded();
    let piped =
        String::from_utf8(home.command(["gpt", "query", WIDE]).env("COLUMNS", "40").output().unwrap().stdout).unwrap();
    assert!(piped.lines().next().unwrap().contains("average_duration_seconds  longest_duration_seconds"), "{piped}");
    assert!(!piped.contains(['\x1b', '…']), "{piped}");
}

#[test]
fn a_terminal_gets_colour_thousands_and_a_count_and_a_pipe_does_not() {
    let home = Home::recorded();
    let sql = "SELECT 1234567 AS amount, 1234567 AS pid, NULL AS nothing";
    let seen = home.on_terminal(80, "", &line(sql));
    assert!(seen.contains("\x1b[1m") && seen.contains("1,234,567  ") && seen.contains("  1234567"), "{seen:?}");
    assert!(seen.contains("probe: 1 row in "), "{seen}");
    let plain = home.on_terminal(80, "NO_COLOR=1", &line(sql));
    assert!(!plain.contains('\x1b') && plain.contains("NULL"), "{plain:?}");
    let piped = home.probe(["gpt", "query", sql]);
    assert_eq!(String::from_utf8(piped.stdout).unwrap().lines().nth(2).unwrap(), "1234567  1234567  NULL");
    assert_eq!(piped.stderr, b"");
}

#[test]
fn sentences_of_tables_are_wrapped() {
    let home = Home::empty();
    let seen = home.on_terminal(80, "", "tables probe.evals");
    let table = seen.split("\nExamples:").next().unwrap();
    assert!(widest(table) <= 80 && table.contains("training_waited"), "{table}");
}

#[test]
fn a_list_leaves_out_what_a_narrow_terminal_has_no_room_for() {
    let home = Home::recorded();
    let narrow = home.on_terminal(80, "NO_COLOR=1", "runs");
    let table = narrow.split("probe: ").next().unwrap();
    assert!(widest(table) <= 80 && table.contains("gpt@1  ended  2026-01-01 00:00:00Z"), "{narrow}");
    assert!(!table.contains("ranks") && narrow.contains("probe: no room here for ranks"), "{narrow}");
    let wide = home.on_terminal(200, "NO_COLOR=1", "runs");
    assert!(wide.contains("ranks") && wide.contains("torchrun --nproc-per-node 2 train.py"), "{wide}");
    assert!(!wide.contains("no room"), "{wide}");
}
