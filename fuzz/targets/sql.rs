//! The guard of SQL: statements that it accepts only read.

/// Any text as SQL: a statement that the guard accepts begins, as the parser writes it again, with a word that only reads.
pub fn sql(data: &[u8]) {
    const READS: &[&str] = &["SELECT", "WITH", "VALUES", "FROM", "TABLE", "SHOW", "DESCRIBE", "DESC"];
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(understood) = probe_query::understand(text) else { return };
    let upper = understood.to_uppercase();
    let mut words = upper.split(|c: char| c.is_whitespace() || c == '(').filter(|word| !word.is_empty()).peekable();
    if words.next_if(|word| *word == "EXPLAIN").is_some() {
        while words.next_if(|word| !READS.contains(word)).is_some() {}
    }
    assert!(words.peek().is_none_or(|word| READS.contains(word)), "the guard lets through {understood:?}");
}
