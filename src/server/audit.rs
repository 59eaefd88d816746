//! `probe.queries`: who asked which query, and what became of it. Bounded, the oldest rows go first; numbers go on, so
//! that those that have gone are counted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Table, Time};
use probe_proto::tables::queries;
use probe_proto::v1::{self, record};

use super::peer::Asker;
use crate::collector::agent::cut;
use crate::collector::clock;
use crate::error::{Error, Kind};
use crate::journal::Journal;
use crate::query::{SystemRows, SystemTable};

/// Rows that are kept, here and in the journal's ledger.
const MOST_ROWS: usize = 10_000;
/// Bytes of their text that are kept.
const MOST_BYTES: usize = 16 << 20;
/// Longest query of which all text is kept (bytes); of a longer one the hash is of all of it.
const LONGEST_TEXT: usize = 64 << 10;
/// Longest error (bytes).
const LONGEST_ERROR: usize = 1000;

/// The newest rows, oldest first.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Kept {
    rows: VecDeque<v1::Query>,
    bytes: usize,
    newest: i64,
}

impl Kept {
    /// All of them, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &v1::Query> {
        self.rows.iter()
    }

    /// Adds one, or puts it in the place of the one with its number; one that has gone stays gone.
    pub(crate) fn put(&mut self, query: v1::Query) {
        if query.id > self.newest {
            self.newest = query.id;
            self.bytes += query.sql.len();
            self.rows.push_back(query);
            while self.rows.len() > MOST_ROWS || (self.bytes > MOST_BYTES && self.rows.len() > 1) {
                let Some(gone) = self.rows.pop_front() else { return };
                self.bytes -= gone.sql.len();
            }
            return;
        }
        // Rows are in the order of their numbers.
        let first = self.rows.front().map_or(i64::MAX, |row| row.id);
        let place = query.id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(row) = place.and_then(|place| self.rows.get_mut(place)) {
            *row = query;
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Audit {
    kept: Mutex<Kept>,
    /// Where they are written down, for whoever goes on after this collector.
    journal: OnceLock<Arc<Journal>>,
}

impl Audit {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the collector before had. What was under way then has ended with it.
    pub(crate) fn restore(kept: &Kept) -> Self {
        let mut kept = kept.clone();
        for query in &mut kept.rows {
            if query.status.is_empty() {
                query.status = "cancelled".into();
                query.error = Some("the collector died".into());
            }
        }
        Self { kept: Mutex::new(kept), journal: OnceLock::new() }
    }

    /// Writes down what is asked from now on.
    pub(crate) fn keep(&self, journal: Arc<Journal>) {
        // There is one journal: a second one is the first.
        let _ = self.journal.set(journal);
    }

    /// A query was asked.
    pub(crate) fn begin(self: &Arc<Self>, asker: &Asker, sql: &str, pid: Option<i32>) -> Entry {
        let mut kept = self.lock();
        let query = v1::Query {
            id: kept.newest + 1,
            ts: clock::unix_ns(),
            asked_by: asker.who.clone(),
            peer: asker.peer.clone(),
            sql: cut(sql.to_owned(), LONGEST_TEXT),
            hash: hash(sql),
            pid,
            ..v1::Query::default()
        };
        kept.put(query.clone());
        drop(kept);
        let entry = Entry { audit: Arc::clone(self), query, began: Instant::now() };
        entry.publish();
        entry
    }

    /// A query was asked by somebody who may not ask any.
    pub(crate) fn refuse(self: &Arc<Self>, asker: &Asker, sql: &str, why: &str) {
        let mut entry = self.begin(asker, sql, None);
        entry.query.status = "refused".into();
        entry.query.error = Some(cut(why.to_owned(), LONGEST_ERROR));
        entry.publish();
    }

    fn write_down(&self, query: &v1::Query) {
        if let Some(journal) = self.journal.get() {
            journal.record(record::Record::Query(query.clone()));
        }
    }
}

/// SHA-256 of a text, in hexadecimal digits: the same for the same text, also where the text itself was cut.
pub(crate) fn hash(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The row of a query that is under way. Dropped before it ended, nobody took the rest of its answer.
#[derive(Debug)]
pub(crate) struct Entry {
    audit: Arc<Audit>,
    query: v1::Query,
    began: Instant,
}

impl Entry {
    fn publish(&self) {
        self.audit.lock().put(self.query.clone());
        self.audit.write_down(&self.query);
    }

    /// Rows of the answer that were sent, and their bytes on the wire.
    pub(crate) fn sent(&mut self, rows: u64, bytes: u64) {
        self.query.rows += rows;
        self.query.bytes += bytes;
    }

    /// The end of it.
    pub(crate) fn finish(&mut self, error: Option<&Error>) {
        if !self.query.status.is_empty() {
            return;
        }
        self.query.status = match error.map(Error::kind) {
            None => "ok",
            Some(Kind::Denied) => "denied",
            Some(Kind::Limit) => "limit",
            Some(_) => "error",
        }
        .into();
        self.query.error = error.map(|error| cut(error.to_string(), LONGEST_ERROR));
        self.query.duration = Some(self.began.elapsed().as_secs_f64());
        self.publish();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.query.status.is_empty() {
            self.query.status = "cancelled".into();
            self.query.duration = Some(self.began.elapsed().as_secs_f64());
            self.publish();
        }
    }
}

impl SystemTable for Audit {
    fn table(&self) -> &'static Table {
        &queries::TABLE
    }

    fn rows(&self) -> SystemRows {
        let mut builder = BatchBuilder::new(&queries::TABLE);
        let mut strings = StringTable::default();
        for query in self.lock().iter() {
            builder.push(queries::Row {
                id: query.id,
                ts: Time(query.ts),
                asked_by: strings.id(&query.asked_by),
                peer: query.peer.as_deref().map(|peer| strings.id(peer)),
                sql: strings.id(&query.sql),
                hash: strings.id(&query.hash),
                only_pid: query.pid,
                status: strings.id(if query.status.is_empty() { "running" } else { &query.status }),
                duration: query.duration,
                rows: i64::try_from(query.rows).unwrap_or(i64::MAX),
                bytes: i64::try_from(query.bytes).unwrap_or(i64::MAX),
                error: query.error.as_deref().map(|error| strings.id(error)),
            });
        }
        SystemRows { batch: builder.take(), strings }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asker() -> Asker {
        Asker { who: "uid:1000".into(), peer: Some("pid:1".into()) }
    }

    #[test]
    fn a_query_has_a_row_from_the_asking_to_the_end() {
        let audit = Arc::new(Audit::default());
        let mut entry = audit.begin(&asker(), "SELECT 1", Some(7));
        let kept = |place: usize| audit.lock().rows[place].clone();
        assert_eq!((kept(0).status.as_str(), kept(0).pid), ("", Some(7)));
        assert_eq!(kept(0).hash, "e004ebd5b5532a4b85984a62f8ad48a81aa3460c1ca07701f386135d72cdecf5");
        entry.sent(2, 100);
        entry.sent(1, 50);
        entry.finish(None);
        entry.finish(Some(&Error::failed("too late")));
        drop(entry);
        assert_eq!((kept(0).status.as_str(), kept(0).rows, kept(0).bytes, kept(0).error), ("ok", 3, 150, None));
        drop(audit.begin(&asker(), "SELECT 2", None));
        assert_eq!(kept(1).status, "cancelled");
        for (error, status) in
            [(Error::denied("a"), "denied"), (Error::limit("b"), "limit"), (Error::usage("c"), "error")]
        {
            audit.begin(&asker(), "SELECT 3", None).finish(Some(&error));
            assert_eq!(audit.lock().rows.back().unwrap().status, status);
        }
    }

    #[test]
    fn old_rows_make_room_and_are_not_brought_back() {
        let audit = Arc::new(Audit::default());
        let mut first = audit.begin(&asker(), "SELECT 0", None);
        for _ in 0..MOST_ROWS {
            audit.begin(&asker(), "SELECT 1", None).finish(None);
        }
        first.finish(None);
        assert_eq!(audit.lock().rows.front().unwrap().id, 2);
        assert_eq!(audit.lock().rows.len(), MOST_ROWS);
        let long = audit.begin(&asker(), &"x".repeat(LONGEST_TEXT + 1), None);
        assert!(long.query.sql.len() < LONGEST_TEXT + 100);
        assert_eq!(long.query.hash, hash(&"x".repeat(LONGEST_TEXT + 1)));
    }

    #[test]
    fn what_was_under_way_when_the_collector_died_is_said_to_have_ended() {
        let audit = Arc::new(Audit::default());
        let open = audit.begin(&asker(), "SELECT 1", None);
        let restored = Audit::restore(&audit.lock());
        let row = restored.lock().rows[0].clone();
        assert_eq!((row.status.as_str(), row.error.as_deref()), ("cancelled", Some("the collector died")));
        assert_eq!(Arc::new(restored).begin(&asker(), "SELECT 2", None).query.id, 2);
        drop(open);
    }
}
