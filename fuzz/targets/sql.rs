//! The guard of SQL: what it lets through only reads.

/// SQL: what the guard lets through begins like something that only reads, as the parser writes it again.
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
