//! The process and the batches that rows came from: constants of a segment, so that they cost no bytes a row.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use probe_proto::v1;

/// The agent and the batches that rows came in. They make sure that each batch is stored once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchOrigin {
    /// `Hello.instance`: random, made once in the life of an agent.
    pub instance: Arc<str>,
    /// Number of the oldest batch.
    pub first_seq: u64,
    /// Number of the newest batch. Batches of other tables may have numbers in between.
    pub last_seq: u64,
}

impl BatchOrigin {
    /// The origin of one batch.
    pub fn batch(instance: &Arc<str>, seq: u64) -> Self {
        Self { instance: Arc::clone(instance), first_seq: seq, last_seq: seq }
    }
}

/// The process that rows came from, as its agent's newest Hello describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// The run, with its number: `gpt@2`.
    pub run: Arc<str>,
    /// Host name.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: i32,
    /// Global rank; None without a process group.
    pub rank: Option<i32>,
    /// Rank within its host.
    pub local_rank: Option<i32>,
    /// Ranks in the default process group.
    pub world_size: Option<i32>,
    /// What the process is: `trainer`.
    pub role: Arc<str>,
}

impl ProcessIdentity {
    /// The identity in a Hello, in the run with this name.
    pub fn of_hello(run: &Arc<str>, hello: &v1::Hello) -> Self {
        Self {
            run: Arc::clone(run),
            host: hello.host.as_str().into(),
            pid: i32::try_from(hello.pid).unwrap_or(-1),
            rank: hello.rank,
            local_rank: hello.local_rank,
            world_size: hello.world_size,
            role: hello.role.as_str().into(),
        }
    }

    /// A Hello with this identity and nothing else.
    pub fn to_hello(&self) -> v1::Hello {
        v1::Hello {
            host: self.host.to_string(),
            pid: u32::try_from(self.pid).unwrap_or_default(),
            rank: self.rank,
            local_rank: self.local_rank,
            world_size: self.world_size,
            role: self.role.to_string(),
            ..v1::Hello::default()
        }
    }

    /// The value of the identity column with this index (as in [`probe_proto::table::IDENTITY`]).
    pub fn value(&self, column: usize) -> ScalarValue {
        let text = |value: &Arc<str>| ScalarValue::Utf8View(Some(value.to_string()));
        match column {
            0 => text(&self.run),
            1 => text(&self.host),
            2 => ScalarValue::Int32(Some(self.pid)),
            3 => ScalarValue::Int32(self.rank),
            4 => ScalarValue::Int32(self.local_rank),
            5 => ScalarValue::Int32(self.world_size),
            _ => text(&self.role),
        }
    }
}
