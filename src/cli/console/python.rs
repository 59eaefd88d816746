//! The end of a snippet, as a Python prompt finds it: brackets and quotes are closed, and a block is followed by an
//! empty line. Prompts of pasted sessions (`>>> `, `... `) are taken off.

/// The beginning of a line of Python where lines are SQL.
pub(super) const PROMPT: &str = ">>>";
const CONTINUED: &str = "...";

/// The first snippet of `text` and the byte offset of the rest; None where more text has to come first. `whole` says that no
/// more will.
pub(super) fn first_snippet(text: &str, whole: bool) -> Option<(String, usize)> {
    let mut code = String::new();
    let mut end = 0;
    // Whether lines say themselves that they belong to the one before.
    let mut prompted = false;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']);
        let state = SnippetContinuation::of(&code);
        if end > 0 && !state.open {
            let continued = bare.starts_with(CONTINUED);
            let ends = bare.trim().is_empty() || bare.starts_with(PROMPT) || (prompted && !continued);
            if !continued && (ends || !state.block) {
                // The empty line that ends a block is a part of it.
                let after = if bare.trim().is_empty() { end + line.len() } else { end };
                return Some((code, after));
            }
        }
        prompted |= end > 0 && bare.starts_with(CONTINUED);
        if end > 0 {
            code.push('\n');
        }
        code.push_str(without_prompt(bare, end == 0));
        end += line.len();
    }
    let state = SnippetContinuation::of(&code);
    // A line end at the very end is an empty line where it was typed at a prompt: the cursor stands on it.
    let ended = !state.open && (!state.block || (code.contains('\n') && text.ends_with('\n')));
    (whole || ended).then_some((code, end))
}

fn without_prompt(line: &str, first: bool) -> &str {
    let prompts: &[&str] = if first { &[PROMPT] } else { &[CONTINUED, PROMPT] };
    match prompts.iter().find_map(|prompt| line.strip_prefix(prompt)) {
        Some(rest) => rest.strip_prefix(' ').unwrap_or(rest),
        None => line,
    }
}

/// What a snippet still needs.
struct SnippetContinuation {
    /// A bracket, a quote of three or a line that goes on: the next line belongs to it, whatever it is.
    open: bool,
    /// A line that ends with a colon, or a decorator: more lines may come.
    block: bool,
}

impl SnippetContinuation {
    fn of(code: &str) -> Self {
        let mut depth = 0_usize;
        let mut block = code.trim_start().starts_with('@');
        let mut last = ' ';
        let mut offset = 0;
        while let Some(next) = code[offset..].chars().next() {
            let rest = &code[offset..];
            offset += next.len_utf8();
            match next {
                '\'' | '"' => match string(rest, next) {
                    Some(length) => offset += length - 1,
                    None => return Self { open: true, block },
                },
                '#' => {
                    offset += rest.find('\n').map_or(rest.len(), |newline| newline) - 1;
                    continue;
                }
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                '\n' if last == ':' && depth == 0 => block = true,
                _ => {}
            }
            if !next.is_whitespace() || next == '\n' {
                last = next;
            }
        }
        Self { open: depth > 0 || code.ends_with('\\'), block: block || (last == ':' && depth == 0) }
    }
}

/// The length of the string at the beginning of `text`, None where it is not closed. One of single quotes ends with its
/// line, closed or not: that is an error which Python tells better.
fn string(text: &str, quote: char) -> Option<usize> {
    let three = quote.to_string().repeat(3);
    let (delimiter, long) = if text.starts_with(&three) { (three, true) } else { (quote.to_string(), false) };
    let mut offset = delimiter.len();
    while let Some(next) = text[offset..].chars().next() {
        if text[offset..].starts_with(&delimiter) {
            return Some(offset + delimiter.len());
        }
        if next == '\n' && !long {
            return Some(offset);
        }
        offset += next.len_utf8();
        if next == '\\' {
            offset += text[offset..].chars().next().map_or(0, char::len_utf8);
        }
    }
    (!long).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_one_snippet() {
        for line in
            ["x", "f('(', \"[\")", "x = {1: [2]}  # (", "if x: y", "'unclosed", "s = 'it\\'s ('", "d = {'a': 1}"]
        {
            assert_eq!(first_snippet(line, false), Some((line.to_owned(), line.len())), "{line}");
        }
        assert_eq!(first_snippet("x\ny", false), Some(("x".into(), 2)));
    }

    #[test]
    fn more_has_to_come() {
        for line in ["f(", "x = [1,", "'''a", "x = \\", "for i in x:", "for i in x:  # all", "@decorator", "if a:\n  b"]
        {
            assert_eq!(first_snippet(line, false), None, "{line}");
            assert!(first_snippet(line, true).is_some(), "{line}");
        }
        assert_eq!(first_snippet("if a:\n  b\n\nc", false), Some(("if a:\n  b".into(), 11)));
        assert_eq!(first_snippet("f(\n1)", false), Some(("f(\n1)".into(), 5)));
        assert_eq!(first_snippet("f('''\n\n''')", false).unwrap().0, "f('''\n\n''')");
        assert_eq!(first_snippet("while x:\n  a = {\n\n  }\n\n", false).unwrap().0, "while x:\n  a = {\n\n  }");
    }
}
