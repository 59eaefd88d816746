//! Ingests the unsent records of a dead process as if it had sent them.

use std::sync::Arc;

use probe_proto::v1::{self, agent_frame::Frame};
use probe_trace::recover::RecoveredRows;

use super::agent::Agent;
use super::session::{AgentSession, StreamEnd};
use super::shared::CollectorState;

/// About how many bytes of strings are taken at once.
const STRINGS_AT_ONCE: usize = 1 << 20;

/// Ingests what a dead process had recorded and not sent, or sent without an acknowledgement. Returns the number of rows. An error
/// says what was wrong; rows before it are kept.
pub(super) async fn inherit(
    shared: &Arc<CollectorState>,
    agent: &Arc<Agent>,
    left: RecoveredRows,
) -> Result<u64, String> {
    let wrong = |end: StreamEnd| match end {
        StreamEnd::Malformed(problem) | StreamEnd::BadBatch(problem) => problem,
        StreamEnd::Refused(refused) => refused.message,
        StreamEnd::Closed(status) => status.message().to_owned(),
        StreamEnd::Bye | StreamEnd::Broken => "it ended".to_owned(),
    };
    let mut session = AgentSession::take_over(shared, agent, left.tables).map_err(wrong)?;
    let taken = async {
        let (mut first, mut rows) = (0, 0);
        while let Some(strings) = left.strings.since(first) {
            let mut bytes = 0;
            let within = |text: &&String| {
                bytes += text.len();
                bytes < STRINGS_AT_ONCE
            };
            let count = strings.values.iter().take_while(within).count().max(1);
            let values = strings.values.into_iter().take(count).collect();
            session.receive(shared, Frame::Strings(v1::Strings { first: strings.first, values }))?;
            first += count;
        }
        for batch in left.batches {
            let count = if session.is_done(batch.seq) { 0 } else { u64::from(batch.rows) };
            shared.store.wait_for_room().await;
            shared.journal.wait_for_room().await;
            session.receive(shared, Frame::Batch(batch))?;
            rows += count;
        }
        session.receive(shared, Frame::Status(left.status))?;
        Ok(rows)
    };
    let taken = taken.await.inspect_err(|end| session.note_end(end, shared));
    session.close(false, shared);
    shared.journal.sync_now();
    taken.map_err(wrong)
}
