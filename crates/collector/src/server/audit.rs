//! `probe.queries`: the queries that were asked, by which caller, and how they ended. The table is bounded and drops its oldest
//! rows. Their numbers go on, so that dropped rows are counted.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use probe_common::clock;
use probe_common::error::{Error, ErrorKind, Result};
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::queries;
use probe_proto::v1::{self, record};
use probe_store::journal::{Journal, NewestRows};
use probe_store::{RecordBatchBuilder, SystemTable};

use super::pace::JournalRate;
use super::peer::AuditedCaller;
use crate::truncate::truncate;

/// Longest text of a query that is kept (bytes). The hash is that of the whole query.
const MAX_TEXT_LENGTH: usize = 64 << 10;
/// Longest error (bytes).
const MAX_ERROR_LENGTH: usize = 1000;

/// The rows that are kept.
#[derive(Debug, Default)]
pub struct QueryAudit {
    rows: Mutex<NewestRows<v1::Query>>,
    /// Where rows are written down, for a collector that goes on after this one.
    journal: OnceLock<Arc<Journal>>,
    pace: JournalRate,
}

impl QueryAudit {
    fn lock(&self) -> MutexGuard<'_, NewestRows<v1::Query>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table with the rows of the collector before. Queries that were running then have ended with it.
    pub fn restore(rows: &NewestRows<v1::Query>) -> Self {
        let ended = |query: &v1::Query| match query.status.as_str() {
            "" => v1::Query {
                status: QueryStatus::Cancelled.as_str().into(),
                error: Some("the collector died".into()),
                ..query.clone()
            },
            _ => query.clone(),
        };
        Self {
            rows: Mutex::new(rows.iter().map(ended).collect()),
            journal: OnceLock::new(),
            pace: JournalRate::default(),
        }
    }

    /// Writes rows to `journal` from now on.
    pub fn attach_journal(&self, journal: Arc<Journal>) {
        // As many as the next collector would have, and as the run's directory has in the end.
        self.lock().limit_bytes(journal.list_bytes());
        // A run has one journal: a second call names the same one.
        let _ = self.journal.set(journal);
    }

    /// Resolves when a query of this length may be recorded. A caller that asks for more than the journal takes waits.
    pub async fn wait_for_turn(&self, asker: &AuditedCaller, sql: &str) {
        if let Some(journal) = self.journal.get() {
            self.pace
                .wait_for_turn(&asker.who, sql.len().min(MAX_TEXT_LENGTH), journal.caller_bytes_per_second())
                .await;
        }
    }

    /// Adds the row of a query that was asked.
    pub fn begin(self: &Arc<Self>, asker: &AuditedCaller, sql: &str, pid: Option<i32>) -> QueryEntry {
        let query = self.add(question(asker, sql, pid));
        QueryEntry { audit: Arc::clone(self), query, began: Instant::now() }
    }

    /// Adds the row of a query that can't be run.
    pub fn failed(&self, asker: &AuditedCaller, sql: &str, pid: Option<i32>, error: &Error) {
        let mut query = question(asker, sql, pid);
        end(&mut query, Some(error));
        self.add(query);
    }

    /// Adds the row of a query whose caller may not query.
    pub fn refuse(&self, asker: &AuditedCaller, sql: &str, why: &str) {
        let status = "refused".into();
        let error = Some(truncate(why.to_owned(), MAX_ERROR_LENGTH));
        self.add(v1::Query { status, error, ..question(asker, sql, None) });
    }

    /// Adds a row, and gives it its number.
    fn add(&self, query: v1::Query) -> v1::Query {
        let mut rows = self.lock();
        let query = v1::Query { id: rows.newest() + 1, ..query };
        rows.insert(query.clone());
        // With the lock, so that numbers are in order in the journal too.
        self.write_down(query.clone());
        query
    }

    fn write_down(&self, query: v1::Query) {
        if let Some(journal) = self.journal.get() {
            journal.record_row(record::Record::Query(query));
        }
    }
}

fn question(asker: &AuditedCaller, sql: &str, pid: Option<i32>) -> v1::Query {
    v1::Query {
        ts: clock::unix_ns(),
        asked_by: asker.who.clone(),
        peer: asker.peer.clone(),
        sql: truncate(sql.to_owned(), MAX_TEXT_LENGTH),
        hash: hash(sql),
        pid,
        ..v1::Query::default()
    }
}

/// How a query stands: the column `status` of `probe.queries`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueryStatus {
    /// In the journal, a row without a status is of a query that runs.
    Running,
    Ok,
    Denied,
    Limit,
    Error,
    Cancelled,
}

impl QueryStatus {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Denied => "denied",
            Self::Limit => "limit",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

fn end(query: &mut v1::Query, error: Option<&Error>) {
    let status = match error.map(Error::kind) {
        None => QueryStatus::Ok,
        Some(ErrorKind::Denied) => QueryStatus::Denied,
        Some(ErrorKind::Limit) => QueryStatus::Limit,
        Some(_) => QueryStatus::Error,
    };
    query.status = status.as_str().into();
    query.error = error.map(|error| truncate(error.to_string(), MAX_ERROR_LENGTH));
}

/// SHA-256 of a text, in hexadecimal digits.
pub fn hash(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The row of a running query. If it is dropped before it ended, the client did not take the rest of the answer.
#[derive(Debug)]
pub struct QueryEntry {
    audit: Arc<QueryAudit>,
    query: v1::Query,
    began: Instant,
}

impl QueryEntry {
    fn publish(&self) {
        self.audit.lock().insert(self.query.clone());
        // The text was written down when the query was asked.
        self.audit.write_down(v1::Query { sql: String::new(), ..self.query.clone() });
    }

    /// Counts rows of the answer that were sent, and their bytes on the wire.
    pub fn count_sent(&mut self, rows: u64, bytes: u64) {
        self.query.rows += rows;
        self.query.bytes += bytes;
    }

    /// Ends the row.
    pub fn finish(&mut self, error: Option<&Error>) {
        if !self.query.status.is_empty() {
            return;
        }
        end(&mut self.query, error);
        self.query.duration = Some(self.began.elapsed().as_secs_f64());
        self.publish();
    }
}

impl Drop for QueryEntry {
    fn drop(&mut self) {
        if self.query.status.is_empty() {
            self.query.status = QueryStatus::Cancelled.as_str().into();
            self.query.duration = Some(self.began.elapsed().as_secs_f64());
            self.publish();
        }
    }
}

impl SystemTable for QueryAudit {
    fn table(&self) -> &'static Table {
        &queries::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut builder = RecordBatchBuilder::new(&queries::TABLE);
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
                status: strings.id(if query.status.is_empty() { QueryStatus::Running.as_str() } else { &query.status }),
                duration: query.duration,
                rows: i64::try_from(query.rows).unwrap_or(i64::MAX),
                bytes: i64::try_from(query.bytes).unwrap_or(i64::MAX),
                error: query.error.as_deref().map(|error| strings.id(error)),
            });
        }
        builder.finish(&strings)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asker() -> AuditedCaller {
        AuditedCaller { who: "uid:1000".into(), peer: Some("pid:1".into()) }
    }

    fn row(audit: &QueryAudit, index: usize) -> v1::Query {
        audit.lock().iter().nth(index).unwrap().clone()
    }

    #[test]
    fn a_query_has_a_row_from_the_asking_to_the_end() {
        let audit = Arc::new(QueryAudit::default());
        let mut entry = audit.begin(&asker(), "SELECT 1", Some(7));
        let rows = |index: usize| row(&audit, index);
        assert_eq!((rows(0).status.as_str(), rows(0).pid), ("", Some(7)));
        assert_eq!(rows(0).hash, "e004ebd5b5532a4b85984a62f8ad48a81aa3460c1ca07701f386135d72cdecf5");
        entry.count_sent(2, 100);
        entry.count_sent(1, 50);
        entry.finish(None);
        entry.finish(Some(&Error::failed("too late")));
        drop(entry);
        assert_eq!((rows(0).status.as_str(), rows(0).rows, rows(0).bytes, rows(0).error), ("ok", 3, 150, None));
        drop(audit.begin(&asker(), "SELECT 2", None));
        assert_eq!(rows(1).status, "cancelled");
        for (error, status) in
            [(Error::denied("a"), "denied"), (Error::limit("b"), "limit"), (Error::usage("c"), "error")]
        {
            audit.begin(&asker(), "SELECT 3", None).finish(Some(&error));
            assert_eq!(audit.lock().iter().last().unwrap().status, status);
        }
    }

    #[test]
    fn of_a_long_query_the_beginning_is_kept_and_the_hash_is_of_all() {
        let audit = Arc::new(QueryAudit::default());
        let long = audit.begin(&asker(), &"x".repeat(MAX_TEXT_LENGTH + 1), None);
        assert_eq!(row(&audit, 0).sql.len(), MAX_TEXT_LENGTH);
        assert_eq!(long.query.hash, hash(&"x".repeat(MAX_TEXT_LENGTH + 1)));
    }

    #[test]
    fn what_was_under_way_when_the_collector_died_is_said_to_have_ended() {
        let audit = Arc::new(QueryAudit::default());
        let open = audit.begin(&asker(), "SELECT 1", None);
        let restored = QueryAudit::restore(&audit.lock());
        let row = row(&restored, 0);
        assert_eq!((row.status.as_str(), row.error.as_deref()), ("cancelled", Some("the collector died")));
        assert_eq!(Arc::new(restored).begin(&asker(), "SELECT 2", None).query.id, 2);
        drop(open);
    }
}
