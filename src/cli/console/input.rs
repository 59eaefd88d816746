//! Splits input into pieces that are performed one after the other: a statement of SQL, a snippet, a command. The same
//! rules hold for a line at the prompt and for a file on standard input.

use super::python;

/// The language of a line whose beginning does not say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InputLanguage {
    #[default]
    Sql,
    Python,
}

/// One statement, snippet or command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConsoleInput {
    /// A statement without its `;`.
    Sql(String),
    /// A snippet without its prompts.
    Python(String),
    /// A line from its backslash on, and the SQL that stands before it on the same line (empty where none does).
    Command { line: String, sql: String },
}

/// The first piece of `text` and the byte offset of the rest; None where the first piece has not ended yet. `whole` says that
/// no more text follows: the end of the text then ends the piece.
pub(super) fn next(text: &str, mode: InputLanguage, whole: bool) -> Option<(ConsoleInput, usize)> {
    let begin = text.len() - text.trim_start().len();
    // Indentation is Python's.
    let line = text[..begin].rfind('\n').map_or(0, |newline| newline + 1);
    let first = &text[begin..];
    if first.is_empty() {
        return None;
    }
    if first.starts_with('\\') {
        let end = first.find('\n').unwrap_or(first.len());
        let piece = ConsoleInput::Command { line: first[..end].trim_end().to_owned(), sql: String::new() };
        return Some((piece, begin + end));
    }
    if first.starts_with(python::PROMPT) {
        return python::first_snippet(first, whole).map(|(code, end)| (ConsoleInput::Python(code), begin + end));
    }
    match mode {
        InputLanguage::Python => {
            python::first_snippet(&text[line..], whole).map(|(code, end)| (ConsoleInput::Python(code), line + end))
        }
        InputLanguage::Sql => sql(first, whole).map(|(piece, end)| (piece, begin + end)),
    }
}

/// Whether Enter ends the input.
pub(super) fn is_whole(mut text: &str, mut mode: InputLanguage) -> bool {
    while let Some((piece, end)) = next(text, mode, false) {
        text = &text[end..];
        if let ConsoleInput::Command { line, .. } = piece {
            mode = match line.as_str() {
                r"\py" => InputLanguage::Python,
                r"\sql" => InputLanguage::Sql,
                _ => mode,
            };
        }
    }
    text.trim().is_empty() || matches!(text.trim(), "exit" | "quit" | "help")
}

/// A statement up to its `;`, or up to a backslash, which no SQL has outside of quotes.
fn sql(text: &str, whole: bool) -> Option<(ConsoleInput, usize)> {
    for (offset, c) in UnquotedCharacters::of(text) {
        match c {
            ';' => {
                let statement = text[..offset].trim().to_owned();
                return Some((ConsoleInput::Sql(statement), offset + 1));
            }
            '\\' => {
                let end = text[offset..].find('\n').map_or(text.len(), |newline| offset + newline);
                let (line, sql) = (text[offset..end].trim_end().to_owned(), text[..offset].trim().to_owned());
                return Some((ConsoleInput::Command { line, sql }, end));
            }
            _ => {}
        }
    }
    whole.then(|| (ConsoleInput::Sql(text.trim().to_owned()), text.len()))
}

/// The characters of SQL that are in no quotes and no comment, with their byte offsets.
pub(super) struct UnquotedCharacters<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> UnquotedCharacters<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, offset: 0 }
    }

    /// Skips to behind the next `end`, or to the end of the text.
    fn skip_to(&mut self, end: &str) {
        self.offset =
            self.text[self.offset..].find(end).map_or(self.text.len(), |found| self.offset + found + end.len());
    }
}

impl Iterator for UnquotedCharacters<'_> {
    type Item = (usize, char);

    fn next(&mut self) -> Option<(usize, char)> {
        loop {
            let rest = &self.text[self.offset..];
            let next = rest.chars().next()?;
            let offset = self.offset;
            self.offset += next.len_utf8();
            match next {
                // A doubled quote ends one text and begins the next.
                '\'' => self.skip_to("'"),
                '"' => self.skip_to("\""),
                '-' if rest.starts_with("--") => self.skip_to("\n"),
                '/' if rest.starts_with("/*") => {
                    self.offset += 1;
                    self.skip_to("*/");
                }
                next => return Some((offset, next)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut text: &str, mode: InputLanguage) -> Vec<ConsoleInput> {
        let mut pieces = Vec::new();
        while let Some((piece, end)) = next(text, mode, true) {
            pieces.push(piece);
            text = &text[end..];
        }
        pieces
    }

    fn sql(text: &str) -> ConsoleInput {
        ConsoleInput::Sql(text.into())
    }

    fn python(text: &str) -> ConsoleInput {
        ConsoleInput::Python(text.into())
    }

    fn command(line: &str, sql: &str) -> ConsoleInput {
        ConsoleInput::Command { line: line.into(), sql: sql.into() }
    }

    #[test]
    fn statements_end_where_a_semicolon_does_not_belong_to_something_else() {
        assert_eq!(
            all("SELECT 1;\n SELECT ';', \"a;b\" -- ;\n, /* ; */ 2 ; ", InputLanguage::Sql),
            [sql("SELECT 1"), sql("SELECT ';', \"a;b\" -- ;\n, /* ; */ 2")]
        );
        assert_eq!(all("SELECT 'it''s;'", InputLanguage::Sql), [sql("SELECT 'it''s;'")]);
        for text in ["SELECT 1", "SELECT ';", "SELECT 1; SELECT 2", "-- ;", "SELECT /* ; "] {
            assert!(!is_whole(text, InputLanguage::Sql), "{text}");
        }
        for text in ["", "SELECT 1;", "SELECT 1; ", "\\d", "SELECT 1 \\watch 2", "quit", "SELECT 1;\n>>> x"] {
            assert!(is_whole(text, InputLanguage::Sql), "{text}");
        }
    }

    #[test]
    fn commands_are_lines_and_may_follow_sql() {
        assert_eq!(
            all("\\d python.steps\nSELECT 1\n  \\watch 2\n\\q", InputLanguage::Sql),
            [command("\\d python.steps", ""), command("\\watch 2", "SELECT 1"), command("\\q", "")]
        );
        assert_eq!(all("SELECT '\\d';", InputLanguage::Sql), [sql("SELECT '\\d'")]);
    }

    #[test]
    fn python_is_known_by_its_prompt_or_by_the_mode() {
        let typed = ">>> for i in x:\n...     print(i)\n>>> y\nSELECT 1;";
        assert_eq!(all(typed, InputLanguage::Sql), [python("for i in x:\n    print(i)"), python("y"), sql("SELECT 1")]);
        assert_eq!(
            all("for i in x:\n  y\n\nz = (1,\n2)\n\\sql", InputLanguage::Python),
            [python("for i in x:\n  y"), python("z = (1,\n2)"), command("\\sql", "")]
        );
        assert!(!is_whole(">>> for i in x:", InputLanguage::Sql) && !is_whole("f(", InputLanguage::Python));
        assert!(is_whole(">>> for i in x:\n  y\n", InputLanguage::Sql) && is_whole("f(1)", InputLanguage::Python));
        assert!(is_whole("\\py\nf(1)", InputLanguage::Sql));
    }
}
