//! `probe generate-docs DIR`: docs/cli.md and docs/tables.md, from the command line and the tables themselves.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use probe_common::error::{Error, Result};
use probe_proto::env;
use probe_proto::table::{IDENTITY, Table, TableSource};
use probe_query::relations;

use super::status::CommandStatus;
use super::tables::type_name;

/// Write the generated pages of the documentation
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(super) struct Args {
    /// Only say whether they are as they should be
    #[arg(long)]
    check: bool,
    /// Where they are
    directory: PathBuf,
}

const GENERATED: &str = "<!-- Written by `probe generate-docs docs`; change what it is made from. -->\n\n";

pub(super) fn run(args: Args, command: clap::Command) -> Result<CommandStatus> {
    for (name, text) in [("cli.md", command_line(command)), ("tables.md", all_tables())] {
        let path = args.directory.join(name);
        if !args.check {
            fs::write(&path, text).map_err(|error| Error::failed(path.display().to_string()).because(error))?;
        } else if fs::read_to_string(&path).ok() != Some(text) {
            return Err(Error::failed(format!("{} is stale", path.display()))
                .hint(format!("probe generate-docs {}", args.directory.display())));
        }
    }
    Ok(0)
}

/// docs/cli.md: every command's `--help`, and the environment.
fn command_line(command: clap::Command) -> String {
    let mut out = format!("{GENERATED}# Command line\n\n");
    let mut root = command.term_width(100).color(clap::ColorChoice::Never);
    root.build();
    let _ = write!(out, "```text\n{}\n```\n", clean(&root.render_long_help().to_string()));
    for command in root.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        let name = command.get_name().to_owned();
        let _ = write!(out, "\n## probe {name}\n\n```text\n{}\n```\n", clean(&command.render_long_help().to_string()));
        for inner in command.get_subcommands_mut().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
            let inner_name = inner.get_name().to_owned();
            let help = clean(&inner.render_long_help().to_string());
            let _ = write!(out, "\n### probe {name} {inner_name}\n\n```text\n{help}\n```\n");
        }
    }
    out.push_str("\n## Environment\n\n| variable | default | what it does |\n|---|---|---|\n");
    for variable in env::ALL {
        let default = if variable.default.is_empty() { "(unset)" } else { variable.default };
        let _ = writeln!(out, "| `{}` | {} | {} |", variable.name, cell(default), cell(variable.doc));
    }
    out
}

fn clean(help: &str) -> String {
    help.trim_end().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// docs/tables.md: every table with its columns and examples.
fn all_tables() -> String {
    let mut out = format!(
        "{GENERATED}# Tables\n\n`probe tables` and `probe tables NAME` print the same. NULL means not measured. Times are UTC.\n\n"
    );
    for table in relations() {
        let anchor = table.full_name().replace('.', "");
        let _ = writeln!(out, "- [`{}`](#{anchor}): {}", table.full_name(), table.doc);
    }
    out.push_str(
        "\n## Columns of every agent table\n\nEvery row of the `python` tables begins with these columns.\n\n",
    );
    columns(&mut out, IDENTITY);
    for table in relations() {
        one_table(&mut out, table);
    }
    out
}

fn one_table(out: &mut String, table: &Table) {
    let _ = write!(out, "\n## {}\n\n{}", table.full_name(), table.doc);
    if table.source == TableSource::Agent {
        out.push_str(" Its rows also have the [columns of every agent table](#columns-of-every-agent-table).");
    }
    out.push_str("\n\n");
    columns(out, table.columns);
    for example in table.examples {
        let _ = write!(out, "\n```sql\n{example}\n```\n");
    }
}

fn columns(out: &mut String, columns: &[probe_proto::table::Column]) {
    out.push_str("| column | type | unit | what it is |\n|---|---|---|---|\n");
    for column in columns {
        let null = if column.nullable { ", may be NULL" } else { "" };
        let _ = writeln!(
            out,
            "| `{}` | {}{null} | {} | {} |",
            column.name,
            type_name(column),
            column.unit,
            cell(column.doc)
        );
    }
}

/// Text within a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
