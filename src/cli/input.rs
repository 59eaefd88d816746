//! The text of SQL and snippets, from the argument, a file, or standard input.

use std::io::{IsTerminal, Read};
use std::path::Path;

use probe_common::error::{Error, Result};

/// The text itself. `-`, or nothing at all where standard input is no terminal, means standard input.
pub(super) fn text(argument: Option<&str>, file: Option<&Path>, what: &str, example: &str) -> Result<String> {
    let text = match (argument, file) {
        (_, Some(path)) if path != Path::new("-") => {
            std::fs::read_to_string(path).map_err(|error| Error::usage(path.display().to_string()).because(error))?
        }
        (Some(text), None) if text != "-" => text.to_owned(),
        (None, None) if std::io::stdin().is_terminal() => String::new(),
        _ => {
            let mut text = String::new();
            let read = std::io::stdin().lock().read_to_string(&mut text);
            read.map_err(|error| Error::usage("standard input").because(error))?;
            text
        }
    };
    if text.trim().is_empty() {
        return Err(Error::usage(format!("there is no {what} to run")).hint(example));
    }
    Ok(text)
}
