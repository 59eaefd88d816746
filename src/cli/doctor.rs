//! `probe doctor`: what works on this machine, what does not, and what to do about it.

mod checks;
mod python;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use probe_common::error::Result;

use self::checks::CheckResult;
use super::status::CommandStatus;
use crate::output::{self, OutputFormat, rows};

/// Check what works on this machine
///
/// Checks this machine in its current state, as the current user, and changes nothing. The exit status is 1 if
/// something that every run needs is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe doctor
  probe doctor --format json")]
pub(super) struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<CommandStatus> {
    let mut findings = checks::run_all();
    findings.extend(python::run_all());
    if args.format == OutputFormat::Table {
        output::unless_closed(write!(io::stdout(), "{}", page(&findings)))?;
    } else {
        let each = || findings.iter();
        let columns = vec![
            ("check", rows::text(each().map(|finding| Some(finding.check)))),
            ("state", rows::text(each().map(|finding| Some(finding.state.as_str())))),
            ("finding", rows::text(each().map(|finding| Some(&finding.what)))),
            ("remedy", rows::text(each().map(|finding| finding.remedy.as_ref()))),
        ];
        rows::show(columns, args.format)?;
    }
    Ok(u8::from(findings.iter().any(|finding| finding.needed && finding.state == checks::CheckState::Missing)))
}

fn page(findings: &[CheckResult]) -> String {
    let mut page = String::new();
    let widest = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let _ = writeln!(page, "{:<8} {:<widest$}  {}", finding.state.as_str(), finding.check, finding.what);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(page, "{:<8} {:<widest$}  hint: {remedy}", "", "");
        }
    }
    page
}
