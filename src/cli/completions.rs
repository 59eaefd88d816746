//! `probe completions SHELL`.

use clap_complete::Shell;
use probe_common::error::Result;

use super::status::CommandStatus;
use crate::output;

/// Print the completion script of a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe completions bash > ~/.local/share/bash-completion/completions/probe
  probe completions fish > ~/.config/fish/completions/probe.fish
  probe completions zsh  > ~/.zfunc/_probe")]
pub(super) struct Args {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(args: Args, mut command: clap::Command) -> Result<CommandStatus> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "probe", &mut script);
    output::unless_closed(std::io::Write::write_all(&mut std::io::stdout(), &script))?;
    Ok(0)
}
