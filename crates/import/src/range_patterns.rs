//! Patterns by which a user says which ranges of a program are its steps, and which are calls of its modules.

use probe_common::error::{Error, Result};
use regex::{Regex, RegexBuilder};

/// Most memory of a compiled pattern (bytes).
const MAX_PATTERN: usize = 1 << 20;

/// What the user said about ranges.
#[derive(Debug, Default, Clone)]
pub struct RangePatterns {
    /// Which ranges are steps; None: those with the names of torch.profiler's steps.
    pub steps: Option<StepRange>,
    /// Which ranges are calls of modules; None: those that the agent began around calls.
    pub modules: Option<ModuleRange>,
}

fn compile(pattern: &str, example: &str) -> Result<Regex> {
    RegexBuilder::new(pattern).size_limit(MAX_PATTERN).build().map_err(|error| {
        Error::usage(format!("{pattern} is no regular expression"))
            .because(error)
            .hint(format!("an example is {example}"))
    })
}

/// A pattern for the text of ranges that are steps.
#[derive(Debug, Clone)]
pub struct StepRange(Regex);

impl StepRange {
    /// Parses a regular expression.
    ///
    /// # Errors
    /// The expression is not valid, or too large.
    pub fn parse(pattern: &str) -> Result<Self> {
        compile(pattern, "--step-range '^iteration (\\d+)$'").map(Self)
    }

    /// Whether a text is that of a step, and the step's number: that of the first group, else the first number in the match.
    pub(crate) fn matches(&self, text: &str) -> Option<Option<i64>> {
        let found = self.0.captures(text)?;
        let group = found.iter().skip(1).flatten().next().map(|group| group.as_str());
        let whole = found.get(0).map_or("", |whole| whole.as_str());
        Some(group.and_then(|group| group.parse().ok()).or_else(|| first_number(whole)))
    }
}

/// A pattern for the text of ranges that are calls of modules.
#[derive(Debug, Clone)]
pub struct ModuleRange(Regex);

impl ModuleRange {
    /// Parses a regular expression.
    ///
    /// # Errors
    /// The expression is not valid, or too large.
    pub fn parse(pattern: &str) -> Result<Self> {
        compile(pattern, "--module-range '^module (.+)$'").map(Self)
    }

    /// The name of the module whose call a text says: that of the first group, else all that matches. None if nothing
    /// matches or the name is empty.
    pub(crate) fn name<'t>(&self, text: &'t str) -> Option<&'t str> {
        let found = self.0.captures(text)?;
        let group = found.iter().skip(1).flatten().next();
        group.or_else(|| found.get(0)).map(|name| name.as_str()).filter(|name| !name.is_empty())
    }
}

fn first_number(text: &str) -> Option<i64> {
    let begin = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[begin..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_s_number_is_that_of_its_group_or_the_first_in_what_matches() {
        let number = |pattern: &str, text: &str| StepRange::parse(pattern).unwrap().matches(text);
        assert_eq!(number(r"^iteration (\d+)$", "iteration 12"), Some(Some(12)));
        assert_eq!(number(r"^epoch \d+ step (\d+)", "epoch 3 step 7 of 9"), Some(Some(7)));
        assert_eq!(number("iteration", "iteration12"), Some(None), "the number is not in what matches");
        assert_eq!(number(r"iteration\d+", "iteration12"), Some(Some(12)));
        assert_eq!(number("^train_step$", "train_step"), Some(None));
        assert_eq!(number("^train_step$", "eval"), None);
        let error = StepRange::parse("(").unwrap_err();
        assert_eq!(error.kind(), probe_common::error::ErrorKind::Usage);
    }

    #[test]
    fn a_module_s_name_is_that_of_its_group_or_all_that_matches() {
        let name = |pattern: &str, text: &'static str| ModuleRange::parse(pattern).unwrap().name(text);
        assert_eq!(name(r"^module (\S+)", "module layers.0.attn forward"), Some("layers.0.attn"));
        assert_eq!(name(r"^(?:fwd|bwd) (.+)|^(head)$", "head"), Some("head"));
        assert_eq!(name(r"layers\.\d+", "call of layers.3"), Some("layers.3"));
        assert_eq!(name("^module", "load"), None);
        assert_eq!(name("x*", "load"), None, "a name has letters");
        let error = ModuleRange::parse("(").unwrap_err();
        assert_eq!(error.kind(), probe_common::error::ErrorKind::Usage);
        assert!(error.hint_text().unwrap().contains("--module-range"));
    }
}
