//! The command line: `probe [ENDPOINT] COMMAND …`, one file a command.
//!
//! A new command is a file here with its `Args` and its `run`, a variant of [`Command`] and an arm in [`dispatch`]. No
//! command names this module: what several of them need is in a file of its own (`status`, `amounts`, `connect`,
//! `report`).

mod amounts;
mod attach;
mod bench;
mod capture;
mod compare;
mod completions;
mod config;
mod connect;
mod console;
mod crash;
mod detach;
mod diagnose;
mod docs;
mod doctor;
mod endpoint_arg;
mod eval;
mod export;
mod flamegraph;
mod hang;
mod import;
mod input;
mod launch;
mod list;
mod listen;
mod log;
mod parameter;
mod profile;
mod progress_line;
mod query;
mod ranks;
mod remove;
mod report;
mod run;
mod runs;
mod serve;
mod signals;
mod stack;
mod status;
mod tables;
mod token;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use probe_common::error::{Error, Result};

use self::status::CommandStatus;

/// SQL and Python inside a live PyTorch training run.
#[derive(Debug, Parser)]
#[command(
    name = "probe",
    version,
    max_term_width = 100,
    override_usage = "probe [ENDPOINT] <COMMAND> [OPTIONS]",
    subcommand_required = true,
    after_help = endpoint_arg::ENDPOINT_HELP,
    after_long_help = endpoint_arg::ENDPOINT_LONG_HELP
)]
struct Probe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Serve(serve::Args),
    Attach(attach::Args),
    Detach(detach::Args),
    List(list::Args),
    Query(query::Args),
    Console(console::Args),
    Compare(compare::Args),
    Tables(tables::Args),
    Eval(eval::Args),
    Bench(bench::Args),
    Stack(stack::Args),
    Flamegraph(flamegraph::Args),
    Profile(profile::Args),
    Diagnose(diagnose::Args),
    Hang(hang::Args),
    Capture(capture::Args),
    Crash(crash::Args),
    Config(config::Args),
    Import(import::Args),
    Export(export::Args),
    Runs(runs::Args),
    Token(token::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    GenerateDocs(docs::Args),
}

/// The whole `probe` process.
pub fn main() -> ExitCode {
    log::to_stderr();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let status = match endpoint_arg::split(words, &Probe::command()).and_then(|split| parse_and_run(&split)) {
        Ok(status) => status,
        Err(error) => report::error(&error),
    };
    ExitCode::from(status)
}

fn parse_and_run(split: &endpoint_arg::SplitArguments) -> Result<CommandStatus> {
    let arguments = std::iter::once(OsString::from("probe")).chain(split.arguments.iter().cloned());
    match Probe::try_parse_from(arguments) {
        Ok(probe) => dispatch(probe.command, split.endpoint.as_deref()),
        Err(error) => {
            // clap writes help to stdout and complaints to stderr; a closed pipe is no reason to complain again.
            let _ = error.print();
            Ok(error.exit_code() as CommandStatus)
        }
    }
}

fn dispatch(command: Command, endpoint: Option<&str>) -> Result<CommandStatus> {
    let without = |name: &str| match endpoint {
        Some(endpoint) => Err(Error::usage(format!("probe {name} takes no ENDPOINT, but got '{endpoint}'"))
            .hint(format!("probe {name} --help"))),
        None => Ok(()),
    };
    match command {
        Command::Query(args) => query::run(args, endpoint),
        Command::Console(args) => console::run(&args, endpoint),
        Command::Eval(args) => eval::run(args, endpoint),
        Command::Bench(args) => bench::run(&args, endpoint),
        Command::Stack(args) => stack::run(args, endpoint),
        Command::Flamegraph(args) => flamegraph::run(args, endpoint),
        Command::Profile(args) => profile::run(&args, endpoint),
        Command::Export(args) => export::run(&args, endpoint),
        Command::Diagnose(args) => diagnose::run(&args, endpoint),
        Command::Hang(args) => hang::run(&args, endpoint),
        Command::Capture(args) => capture::run(&args, endpoint),
        Command::Crash(args) => crash::run(&args, endpoint),
        Command::Config(args) => config::run(args, endpoint),
        Command::Tables(args) => tables::run(args, endpoint),
        Command::Compare(args) => match endpoint {
            Some(endpoint) => {
                Err(Error::usage("give both runs after probe compare").hint(format!("probe compare {endpoint} OTHER")))
            }
            None => compare::run(&args),
        },
        Command::Run(args) => without("run").and_then(|()| run::run(args)),
        Command::Serve(args) => without("serve").and_then(|()| serve::run(args)),
        Command::Attach(args) => without("attach").and_then(|()| attach::run(args)),
        Command::Detach(args) => detach::run(&args, endpoint),
        Command::List(args) => without("list").and_then(|()| list::run(args)),
        Command::Import(args) => without("import").and_then(|()| import::run(&args)),
        Command::Runs(args) => without("runs").and_then(|()| runs::run(args)),
        Command::Token(args) => without("token").and_then(|()| token::run(args)),
        Command::Doctor(args) => without("doctor").and_then(|()| doctor::run(&args)),
        Command::Completions(args) => without("completions").and_then(|()| completions::run(args, Probe::command())),
        Command::GenerateDocs(args) => without("generate-docs").and_then(|()| docs::run(args, Probe::command())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Probe::command().debug_assert();
    }

    #[test]
    fn every_command_is_a_name_that_no_run_can_have() {
        for command in Probe::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(probe_proto::RESERVED_NAMES.contains(&command.get_name()), "{}", command.get_name());
        }
    }
}
