//! The newest numbered rows: those of `probe.evals`, `probe.events` and `probe.queries`. They are bounded in number and in
//! bytes, and the oldest are dropped first. Numbers go on, so that dropped rows are counted.

use std::collections::VecDeque;
use std::sync::Arc;

use probe_proto::v1;

/// The largest number of rows.
pub(super) const MAX_ROWS: usize = 10_000;
/// The largest number of bytes of rows, where [`NewestRows::limit_bytes`] sets no lower one.
pub(super) const MAX_BYTES: usize = 16 << 20;
/// Bytes of a row in addition to its text.
const ROW: usize = 100;

/// A numbered row. A later row with the same number replaces the earlier one.
pub trait NumberedRow: Clone {
    /// The number of the row. Numbers begin at 1.
    fn number(&self) -> i64;

    /// The size of the row in bytes.
    fn bytes(&self) -> usize;

    /// Fills in what the row does not repeat from the row that it replaces.
    fn complete(&mut self, _before: &Self) {}
}

/// The newest rows, oldest first, bounded in number and bytes. A copy shares its rows.
#[derive(Debug, Clone)]
pub struct NewestRows<T> {
    rows: VecDeque<Arc<T>>,
    bytes: usize,
    newest: i64,
    most_bytes: usize,
}

impl<T> Default for NewestRows<T> {
    fn default() -> Self {
        Self { rows: VecDeque::new(), bytes: 0, newest: 0, most_bytes: MAX_BYTES }
    }
}

/// Compares rows, without regard to the bounds.
impl<T: PartialEq> PartialEq for NewestRows<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl<T: NumberedRow> NewestRows<T> {
    /// All rows, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().map(Arc::as_ref)
    }

    /// Number of the newest row so far; 0 before the first.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    /// Adds a row, or replaces the one with its number. A row that was dropped is not added again.
    pub fn insert(&mut self, mut row: T) {
        if row.number() > self.newest {
            self.newest = row.number();
            self.bytes += row.bytes();
            self.rows.push_back(Arc::new(row));
        } else if let Ok(index) = self.rows.binary_search_by_key(&row.number(), |row| row.number()) {
            row.complete(&self.rows[index]);
            self.bytes += row.bytes();
            self.bytes -= self.rows[index].bytes();
            self.rows[index] = Arc::new(row);
        }
        self.shrink();
    }

    /// Limits rows to `most` bytes from now on. The newest row is always kept.
    pub fn limit_bytes(&mut self, most: usize) {
        self.most_bytes = most.min(MAX_BYTES);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.rows.len() > MAX_ROWS || (self.bytes > self.most_bytes && self.rows.len() > 1) {
            let Some(gone) = self.rows.pop_front() else { return };
            self.bytes -= gone.bytes();
        }
    }
}

impl<T: NumberedRow> FromIterator<T> for NewestRows<T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Self {
        let mut newest = Self::default();
        rows.into_iter().for_each(|row| newest.insert(row));
        newest
    }
}

fn length(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

impl NumberedRow for v1::Eval {
    fn number(&self) -> i64 {
        self.id
    }

    fn bytes(&self) -> usize {
        let texts = [&self.peer, &self.session, &self.ranks, &self.error];
        let texts: usize = texts.into_iter().map(|text| length(text.as_ref())).sum();
        ROW + texts + self.code.len() + self.hash.len() + self.asked_by.len()
    }

    fn complete(&mut self, before: &Self) {
        if self.code.is_empty() {
            self.code.clone_from(&before.code);
        }
    }
}

impl NumberedRow for v1::Event {
    fn number(&self) -> i64 {
        self.id
    }

    fn bytes(&self) -> usize {
        ROW + self.message.len() + length(self.details.as_ref()) + length(self.host.as_ref())
    }
}

impl NumberedRow for v1::Query {
    fn number(&self) -> i64 {
        self.id
    }

    fn bytes(&self) -> usize {
        let texts = length(self.peer.as_ref()) + length(self.error.as_ref());
        ROW + texts + self.sql.len() + self.hash.len() + self.asked_by.len()
    }

    fn complete(&mut self, before: &Self) {
        if self.sql.is_empty() {
            self.sql.clone_from(&before.sql);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(id: i64, sql: &str, status: &str) -> v1::Query {
        v1::Query { id, sql: sql.into(), status: status.into(), ..v1::Query::default() }
    }

    #[test]
    fn old_rows_make_room_and_are_not_brought_back() {
        let mut kept: NewestRows<v1::Query> = (1..=MAX_ROWS as i64 + 5).map(|id| query(id, "SELECT 1", "")).collect();
        assert_eq!((kept.rows.len(), kept.rows[0].id, kept.newest()), (MAX_ROWS, 6, MAX_ROWS as i64 + 5));
        kept.insert(query(3, "SELECT 1", "ok"));
        assert_eq!((kept.rows.len(), kept.rows[0].id), (MAX_ROWS, 6));
        // Text that a later row does not repeat is still there.
        kept.insert(query(7, "", "ok"));
        assert_eq!((kept.rows[1].sql.as_str(), kept.rows[1].status.as_str()), ("SELECT 1", "ok"));
        kept.limit_bytes(10 * kept.rows[1].bytes());
        assert!((8..=10).contains(&kept.rows.len()));
        kept.insert(query(MAX_ROWS as i64 + 6, &"x".repeat(10_000), ""));
        assert_eq!(kept.rows.len(), 1);
        assert_eq!(kept.bytes, kept.rows[0].bytes());
    }
}
