//! An agent with `python.torch_trace` rows that are packed beforehand, so that it sends as fast as the stream takes them.

use std::path::Path;

use probe_proto::encode::StringTable;
use probe_proto::tables::torch_trace::TABLE;
use probe_proto::v1::{self, agent_frame::Frame};

use super::Result;
use super::agent::{BenchAgent, channel, hello};
use super::rows::{STEP, batch};

/// Rows of a batch.
pub(crate) const ROWS: usize = 8192;
/// Steps of a batch.
const STEPS: i64 = (ROWS / STEP) as i64;
/// Number of packed batches: more than a file has, so that no row is in a file twice.
const PACKED: usize = 64;

/// Sends batches that are numbered from 1.
pub(crate) struct Sender {
    agent: BenchAgent,
    batches: Vec<v1::Batch>,
}

impl Sender {
    /// A session with the collector at `socket`.
    pub(crate) async fn connect(socket: &Path, instance: &str) -> Result<Self> {
        let mut strings = StringTable::default();
        let batches = (0..PACKED as i64).map(|n| batch(&mut strings, ROWS, n * STEPS)).collect();
        let hello = hello(instance, std::process::id(), vec![TABLE.wire_schema()]);
        let agent = BenchAgent::connect(channel(socket).await?, hello).await?;
        agent.send(Frame::Strings(strings.since(0).ok_or("no strings")?)).await?;
        Ok(Self { agent, batches })
    }

    /// Sends the batch with the number `seq`: the packed ones in turn, as later steps in each round.
    pub(crate) async fn send(&self, seq: u64) -> Result<()> {
        let (round, index) = (seq as usize / PACKED, seq as usize % PACKED);
        let mut batch = self.batches[index].clone();
        (batch.seq, batch.recorded) = (seq, seq * ROWS as u64);
        batch.columns[0].base += (round * PACKED) as i64 * STEPS;
        self.agent.send(Frame::Batch(batch)).await
    }

    /// Waits until the batch with the number `seq` is stored.
    pub(crate) async fn acknowledged(&mut self, seq: u64) -> Result<()> {
        self.agent.acknowledged(seq).await
    }
}
