//! Completion of Python names. The training process is asked: it looks up attributes in objects and runs no code, not even
//! that of a property. A key press does not wait for a late answer, which is there when the key is pressed again.

use std::time::{Duration, Instant};

use probe_client::Client;
use probe_collector::eval;
use probe_proto::v1::EvalCall;

use super::session::{ConsoleSession, PendingCompletion};

/// A completion that takes longer than this is cancelled: a key press must have a prompt effect.
const TIMEOUT: Duration = Duration::from_millis(50);
/// How long the snippet may take in the process, and how long its answer counts as current.
const DEADLINE: Duration = Duration::from_secs(2);

/// The byte offset at which the name at the end of `line` begins, and its completions.
pub(super) fn complete(session: &mut ConsoleSession, line: &str) -> (usize, Vec<String>) {
    let chain = &line[chain(line)..];
    let (object, stem) = chain.rsplit_once('.').unwrap_or(("", chain));
    let start = line.len() - stem.len();
    if chain.is_empty() || (object.is_empty() && chain.starts_with('.')) || stem.starts_with(|c: char| c.is_numeric()) {
        return (start, Vec::new());
    }
    (start, ask(session, chain).unwrap_or_default())
}

fn ask(session: &mut ConsoleSession, chain: &str) -> Option<Vec<String>> {
    // The same key again: an answer that was too late the first time may be there by now.
    let before = session.pending_completion.take();
    let mut pending = match before.filter(|pending| pending.chain == chain && pending.at.elapsed() < DEADLINE) {
        Some(pending) => pending,
        None => {
            let call = session.lookup(chain, DEADLINE);
            let names = session.link.begin(|client| printed(client, call))?;
            PendingCompletion { chain: chain.to_owned(), at: Instant::now(), names }
        }
    };
    match session.link.look_at(&mut pending.names, TIMEOUT) {
        Some(names) => names.ok()?,
        None => {
            session.pending_completion = Some(pending);
            None
        }
    }
}

/// The names that a snippet prints; None where it fails.
async fn printed(mut client: Client, call: EvalCall) -> Option<Vec<String>> {
    let events = client.eval(call).await.ok()?;
    let (printed, finished) = eval::printed(events).await.ok()?;
    finished?;
    let text = String::from_utf8(printed).ok()?;
    // Names from the process are not trusted: a name is letters, digits and underscores.
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    Some(text.lines().filter(is_name).map(str::to_owned).collect())
}

/// The byte offset at which the names, points and whole-number subscripts at the end of `line` begin: `model.layers[0].we`.
/// Anything else could be a call.
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
