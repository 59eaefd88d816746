//! Queries in which some tables are replaced by subqueries.

/// What follows a table in FROM and is no other name of it.
const NO_ALIASES: [&str; 23] = [
    "anti",
    "cross",
    "except",
    "fetch",
    "full",
    "group",
    "having",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "natural",
    "offset",
    "on",
    "order",
    "right",
    "semi",
    "tablesample",
    "union",
    "using",
    "where",
    "window",
];

/// `sql` with a subquery in place of each of these tables. Text and names in quotes, and comments, stay as they are.
pub(crate) fn replace_tables(sql: &str, names: &[String], subquery: impl Fn(&str) -> String) -> String {
    let is_name = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(byte));
    let (bytes, mut out, mut at) = (sql.as_bytes(), String::with_capacity(sql.len()), 0);
    while at < sql.len() {
        let begins = at == 0 || !is_name(bytes.get(at - 1));
        let starts = |name: &&String| sql[at..].starts_with(name.as_str()) && !is_name(bytes.get(at + name.len()));
        if let Some(name) = names.iter().filter(|_| begins).find(starts) {
            at += name.len();
            out.push_str(&subquery(name));
            // Without a name, the optimizer takes its columns for those of another subquery that have the same names.
            if !has_alias(&sql[at..]) {
                out.push_str(" AS ");
                out.push_str(name.rsplit('.').next().unwrap_or(name));
            }
            continue;
        }
        let rest = &sql[at..];
        let quoted = |quote: char| rest[1..].find(quote).map_or(rest.len(), |end| end + 2);
        let length = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => quoted(quote),
            first => comment(rest).unwrap_or_else(|| first.map_or(1, char::len_utf8)),
        };
        out.push_str(&rest[..length]);
        at += length;
    }
    out
}

/// The length of the comment that the text begins with.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("--") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.starts_with("/*").then(|| text.find("*/").map_or(text.len(), |end| end + 2))
}

/// Whether a table has another name in the query, by the text that follows it.
fn has_alias(rest: &str) -> bool {
    let rest = rest.trim_start();
    if let Some(length) = comment(rest) {
        return has_alias(&rest[length..]);
    }
    let word = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
    rest.starts_with('"') || !word.is_empty() && !NO_ALIASES.contains(&word.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_where_they_are_read() {
        let replaced = |sql| replace_tables(sql, &["a.b".to_owned()], |table| format!("(FROM {table})"));
        assert_eq!(replaced("FROM a.b AS x JOIN a.b y ON"), "FROM (FROM a.b) AS x JOIN (FROM a.b) y ON");
        assert_eq!(replaced("FROM a.b\nWHERE a.b.c = xa.b"), "FROM (FROM a.b) AS b\nWHERE a.b.c = xa.b");
        assert_eq!(replaced("(FROM a.b)"), "(FROM (FROM a.b) AS b)");
        assert_eq!(replaced("'a.b''a.b' -- a.b\na.b"), "'a.b''a.b' -- a.b\n(FROM a.b) AS b");
        assert_eq!(replaced("'a.b -- ü"), "'a.b -- ü");
        assert_eq!(replaced("/* don't a.b */ a.b /* x */ AS y"), "/* don't a.b */ (FROM a.b) /* x */ AS y");
        assert_eq!(replaced("a.b \"y\", \"a.b\""), "(FROM a.b) \"y\", \"a.b\"");
    }
}
