//! Queries in which some tables are replaced by subqueries.

/// What follows a table in FROM and is no other name of it.
const NO_ALIASES: [&str; 18] = [
    "anti",
    "cross",
    "except",
    "full",
    "group",
    "having",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "natural",
    "on",
    "order",
    "right",
    "union",
    "using",
    "where",
];

/// `sql` with a subquery in place of each of these tables. Text in quotes and comments stay as they are.
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
        let length = match rest {
            _ if rest.starts_with('\'') => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            _ if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        at += length;
    }
    out
}

/// Whether a table has another name in the query, by the text that follows it.
fn has_alias(rest: &str) -> bool {
    let rest = rest.trim_start();
    let word = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
    !word.is_empty() && !NO_ALIASES.contains(&word.to_lowercase().as_str())
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
    }
}
