//! What a name of Python may become: the training process is asked, by a snippet beside training that looks and calls
//! nothing (a property is run by being looked at, as at any prompt). Who does not answer at once is not waited for.

use std::time::Duration;

use futures::StreamExt;
use probe_proto::v1::eval_event::Event;

use super::session::Session;
use crate::cli::eval::{self, At, Rank};
use crate::error::Error;

/// Longer than this nobody waits for a key to do something.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long the snippet may take there; it is cancelled when nobody waits for it.
const DEADLINE: Duration = Duration::from_secs(1);
const MAX_OUTPUT: u64 = 1 << 16;
/// Names that are shown of one object.
const NAMES: usize = 500;

/// Where the name begins that `line` ends with, and what it may become.
pub(super) fn complete(session: &mut Session, line: &str) -> (usize, Vec<String>) {
    let chain = &line[chain(line)..];
    let (object, stem) = chain.rsplit_once('.').unwrap_or(("", chain));
    let start = line.len() - stem.len();
    if chain.is_empty() || (object.is_empty() && chain.starts_with('.')) || stem.starts_with(|c: char| c.is_numeric()) {
        return (start, Vec::new());
    }
    (start, ask(session, object, stem).unwrap_or_default())
}

fn ask(session: &mut Session, object: &str, stem: &str) -> Option<Vec<String>> {
    let names = if object.is_empty() { "{*dir(), *dir(__builtins__)}".to_owned() } else { format!("dir({object})") };
    // What begins with an underscore is shown to who has begun so.
    let private = if stem.is_empty() { " and not name.startswith('_')" } else { "" };
    let code =
        format!("print('\\n'.join(sorted(name for name in {names} if name.startswith('{stem}'){private})[:{NAMES}]))");
    let rank = session.rank().filter(|rank| *rank != Rank::All);
    let call = eval::call(code, At::Now, rank, DEADLINE, MAX_OUTPUT);
    let printed = session.within(PATIENCE, async |client| {
        let mut events = client.eval(call).await?;
        let mut printed = Vec::new();
        while let Some(event) = events.next().await {
            match event?.event {
                Some(Event::Output(output)) => {
                    let output = output.output.unwrap_or_default();
                    if !output.stderr {
                        printed.extend_from_slice(&output.data);
                    }
                }
                Some(Event::Finished(_)) => return Ok(printed),
                _ => {}
            }
        }
        Err(Error::failed("the collector went away"))
    })?;
    let text = String::from_utf8(printed).ok()?;
    // What a process names its attributes is not ours to trust: a name is letters.
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    Some(text.lines().filter(is_name).map(str::to_owned).collect())
}

/// Where the names, points and whole-number subscripts begin that `line` ends with: `model.layers[0].we`. Anything else
/// could be a call.
fn chain(line: &str) -> usize {
    let mut start = line.len();
    while let Some(c) = line[..start].chars().next_back() {
        if c.is_alphanumeric() || c == '_' || c == '.' {
            start -= c.len_utf8();
            continue;
        }
        // A subscript belongs to a name before it, and a point follows it.
        let subscript = line[..start].strip_suffix(']').filter(|_| line[start..].starts_with('.'));
        let open = subscript.and_then(|inside| inside.rfind('[').map(|open| (open, &inside[open + 1..])));
        match open {
            Some((open, index)) if !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) => start = open,
            _ if c == ']' || c == ')' => return line.len(),
            _ => break,
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_names_is_told_from_a_call() {
        for (line, expected) in [
            ("print(model.la", "model.la"),
            ("model.layers[0].attn.", "model.layers[0].attn."),
            ("x = tr", "tr"),
            ("f(x).y", ""),
            ("d['a'].y", ""),
            ("", ""),
            ("a + ", ""),
        ] {
            assert_eq!(&line[chain(line)..], expected, "{line}");
        }
    }
}
