//! `probe token`: the tokens for access over TCP.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use probe_collector::auth::{TokenFile, TokenScopes, self_signed_pin};
use probe_common::error::{Error, Result};
use probe_common::paths::ProbeDirectories;
use probe_proto::credentials::{CertificatePin, Credentials};

use super::report;
use super::status::CommandStatus;
use crate::output::{OutputFormat, rows};

/// Make, list and revoke tokens for this user's collectors
///
/// Every call over TCP carries a token; unix sockets need none. The collector's machine keeps a hash of each token in
/// $PROBE_HOME/tokens. The client keeps the token in a file of mode 0600. Changes take effect at once, also in running
/// collectors.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:
  probe token make laptop --scope query --tls-self-signed -o laptop.token
  probe serve --name gpt --listen 0.0.0.0:7777 --tls-self-signed
  probe node1:7777 query \"SELECT 1\" --token-file laptop.token     # on the laptop
  probe token revoke laptop"
)]
pub(super) struct Args {
    #[command(subcommand)]
    action: TokenAction,
}

#[derive(Debug, clap::Subcommand)]
enum TokenAction {
    Make(NewToken),
    List(ListTokens),
    Revoke(RevokeToken),
}

/// Make a token and the file that a client needs
#[derive(Debug, clap::Args)]
struct NewToken {
    /// Name of the token: probe.queries and probe.evals show it as token:NAME
    name: String,
    /// Permissions: ingest (agents), query (reading), eval (running code); none implies another
    #[arg(long, value_name = "SCOPE,…", value_parser = str::parse::<TokenScopes>, default_value = "query")]
    scope: TokenScopes,
    /// File to write for the client; - is standard output [default: NAME.token]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Pin of the collector's certificate, for that file [default: the pin of --tls-self-signed, if there is one]
    #[arg(long, value_name = "PIN", value_parser = str::parse::<CertificatePin>)]
    tls_pin: Option<CertificatePin>,
    /// Make that certificate if there is none yet, so that its pin is in the file
    #[arg(long, conflicts_with = "tls_pin")]
    tls_self_signed: bool,
}

/// List tokens with their names, scopes and times of creation
#[derive(Debug, clap::Args)]
struct ListTokens {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
}

/// Revoke tokens: new calls with them are refused, and current calls end
#[derive(Debug, clap::Args)]
struct RevokeToken {
    /// Names as in probe token list
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    let directories = ProbeDirectories::from_environment()?;
    let file = TokenFile::of(&directories);
    match args.action {
        TokenAction::Make(args) => make(&directories, &file, args),
        TokenAction::List(args) => list(&file, args.format),
        TokenAction::Revoke(args) => {
            for name in &args.names {
                file.revoke(name)?;
                report::note(format_args!("{name} is revoked"));
            }
            Ok(0)
        }
    }
}

fn make(directories: &ProbeDirectories, file: &TokenFile, args: NewToken) -> Result<CommandStatus> {
    let pin = match args.tls_pin {
        Some(pin) => Some(pin),
        None => self_signed_pin(directories, args.tls_self_signed)?,
    };
    let output = args.output.unwrap_or_else(|| format!("{}.token", args.name).into());
    if output == Path::new("-") {
        let token = file.make(&args.name, args.scope)?;
        io::stdout().write_all(Credentials::text(&token, pin.as_ref()).as_bytes())?;
        return Ok(0);
    }
    // The file is made first: a token whose file can't be written would be lost. An existing file is never overwritten.
    let failed = |error: io::Error| {
        let hint = if error.kind() == io::ErrorKind::AlreadyExists {
            "name another file with -o"
        } else {
            "-o FILE names another place"
        };
        Error::failed(output.display().to_string()).because(error).hint(hint)
    };
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&output);
    let mut client = opened.map_err(failed)?;
    let token = file.make(&args.name, args.scope).inspect_err(|_| drop(std::fs::remove_file(&output)))?;
    client.write_all(Credentials::text(&token, pin.as_ref()).as_bytes()).map_err(failed)?;
    client.sync_all().map_err(failed)?;
    report::note(format_args!("token {} may {}; the client's file is {}", args.name, args.scope, output.display()));
    Ok(0)
}

fn list(file: &TokenFile, format: OutputFormat) -> Result<CommandStatus> {
    let tokens = file.read()?;
    if tokens.is_empty() && format == OutputFormat::Table {
        report::note("there is no token");
        report::hint("probe token make NAME --scope query makes one");
        return Ok(0);
    }
    let columns = vec![
        ("name", rows::text(tokens.iter().map(|token| Some(&token.name)))),
        ("scopes", rows::text(tokens.iter().map(|token| Some(token.scopes.to_string())))),
        ("made", rows::coarse_times(tokens.iter().map(|token| token.made.as_second()))),
    ];
    rows::show(columns, format)?;
    Ok(0)
}
