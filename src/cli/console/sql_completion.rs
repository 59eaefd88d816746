//! Completion of SQL: tables after FROM, columns of the tables that the statement names,
//! functions, keywords. All of it is known here, without a request.

use std::sync::LazyLock;

use datafusion::execution::SessionStateDefaults;
use probe_proto::table::Table;
use probe_query::relations;

use super::command;

const KEYWORDS: &[&str] = &[
    "ALL",
    "AND",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "CROSS JOIN",
    "DESC",
    "DISTINCT",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "EXPLAIN ANALYZE",
    "FALSE",
    "FILTER",
    "FROM",
    "FULL JOIN",
    "GROUP BY",
    "HAVING",
    "ILIKE",
    "IN",
    "INTERSECT",
    "INTERVAL",
    "IS",
    "JOIN",
    "LEFT JOIN",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "NULLS LAST",
    "OFFSET",
    "ON",
    "OR",
    "ORDER BY",
    "OVER",
    "PARTITION BY",
    "SELECT",
    "THEN",
    "TRUE",
    "UNION ALL",
    "USING",
    "VALUES",
    "WHEN",
    "WHERE",
    "WITH",
];

/// Names of all functions, each once.
static FUNCTIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let scalar = SessionStateDefaults::default_scalar_functions().into_iter().map(|f| f.name().to_owned());
    let aggregate = SessionStateDefaults::default_aggregate_functions().into_iter().map(|f| f.name().to_owned());
    let window = SessionStateDefaults::default_window_functions().into_iter().map(|f| f.name().to_owned());
    let mut names: Vec<String> = scalar.chain(aggregate).chain(window).collect();
    names.retain(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
    names.sort();
    names.dedup();
    names
});

/// The byte offset at which the word at the end of `text` begins, and its completions. `after` is the text behind the cursor,
/// which may name tables.
pub(super) fn complete(text: &str, after: &str) -> (usize, Vec<String>) {
    let start = text.len() - text.chars().rev().take_while(|c| is_word(*c)).map(char::len_utf8).sum::<usize>();
    let (before, word) = (&text[..start], &text[start..]);
    let previous = before.split_whitespace().next_back().unwrap_or_default();
    let tables = || relations().map(Table::full_name);
    if ["from", "join", r"\d"].iter().any(|keyword| previous.eq_ignore_ascii_case(keyword)) {
        return (start, matching(word, tables()));
    }
    let named = tables_in(&format!("{text}{after}"));
    if let Some((qualifier, _)) = word.rsplit_once('.') {
        let mut found = matching(word, tables());
        let qualified = named.iter().filter(|(name, _)| name.eq_ignore_ascii_case(qualifier));
        let columns = qualified.flat_map(|(_, table)| table.all_columns());
        found.extend(matching(word, columns.map(|column| format!("{qualifier}.{}", column.name))));
        return (start, found);
    }
    let mut found = Vec::new();
    for (_, table) in &named {
        found.extend(matching(word, table.all_columns().map(|column| column.name.to_owned())));
    }
    if named.is_empty() && !word.is_empty() {
        // SELECT is written before FROM.
        found.extend(matching(word, relations().flat_map(Table::all_columns).map(|column| column.name.to_owned())));
    }
    found.sort();
    found.dedup();
    if word.is_empty() {
        return (start, found);
    }
    let lower = !word.contains(|c: char| c.is_ascii_uppercase());
    let cased = |name: &str| if lower { name.to_lowercase() } else { name.to_uppercase() };
    found.extend(matching(word, FUNCTIONS.iter().map(|name| format!("{}(", cased(name)))));
    found.extend(matching(word, KEYWORDS.iter().map(|keyword| cased(keyword))));
    found.extend(matching(word, tables()));
    (start, found)
}

/// Commands of the console that a line may become.
pub(super) fn commands(line: &str) -> Vec<String> {
    matching(line, command::NAMES.iter().map(|name| (*name).to_owned()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

fn matching(word: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let begins = |name: &String| name.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    names.filter(begins).collect()
}

/// Tables that a statement names, by their own names and by the ones it gives them.
fn tables_in(statement: &str) -> Vec<(String, &'static Table)> {
    let words: Vec<&str> = statement.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let Some(table) = relations().find(|table| table.full_name().eq_ignore_ascii_case(word)) else { continue };
        found.push((table.full_name(), table));
        let mut next = words[index + 1..].iter().skip_while(|word| word.eq_ignore_ascii_case("as"));
        let is_name =
            |word: &&&str| !KEYWORDS.iter().any(|known| known.split(' ').any(|k| k.eq_ignore_ascii_case(word)));
        if let Some(alias) = next.next().filter(is_name) {
            found.push(((*alias).to_owned(), table));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str, after: &str) -> Vec<String> {
        complete(text, after).1
    }

    #[test]
    fn tables_follow_from() {
        assert_eq!(completed("SELECT * FROM python.torch", ""), ["python.torch_trace"]);
        assert!(completed("SELECT * FROM ", "").contains(&"python.steps".to_owned()));
        assert_eq!(completed("\\d probe.ag", ""), ["probe.agents"]);
        assert_eq!(complete("SELECT 1 FROM py", "").0, 14);
    }

    #[test]
    fn columns_are_those_of_the_tables_that_are_named() {
        assert_eq!(completed("SELECT forward", " FROM python.steps"), ["forward_time"]);
        assert_eq!(completed("SELECT s.forw", " FROM python.steps AS s JOIN python.memory m"), ["s.forward_time"]);
        assert_eq!(completed("SELECT * FROM python.steps s WHERE s.forw", ""), ["s.forward_time"]);
        assert!(!completed("SELECT op", " FROM python.steps").contains(&"operation_type".to_owned()));
        assert!(completed("SELECT op", "").contains(&"operation_type".to_owned()));
        let all = completed("SELECT ", " FROM python.steps");
        assert!(all.contains(&"rank".to_owned()) && all.contains(&"duration".to_owned()), "{all:?}");
    }

    #[test]
    fn functions_and_keywords_are_as_the_word_was_begun() {
        assert!(completed("SELECT approx_perc", "").contains(&"approx_percentile_cont(".to_owned()));
        assert!(completed("SELECT DATE_TR", "").contains(&"DATE_TRUNC(".to_owned()));
        assert!(completed("sel", "").contains(&"select".to_owned()));
        assert!(completed("SELECT 1 GRO", "").contains(&"GROUP BY".to_owned()));
        assert_eq!(commands(r"\ti"), [r"\timing", r"\timeout"]);
    }
}
