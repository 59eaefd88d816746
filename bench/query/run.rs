//! A run's rows as its agents would send them: 8 ranks, 128 modules of a transformer, every step forward, backward and
//! optimizer; times that scatter around each module's own.

use std::path::Path;
use std::sync::Arc;

use probe_proto::TIMES_PER_SECOND;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Text, Time};
use probe_proto::tables::torch_trace::{Row, TABLE};
use probe_proto::v1::{self, agent_frame::Frame};
use probe_store::{BatchOrigin, BatchRows, ColumnMapping, ProcessIdentity, Store, StringReceiver};

use super::Result;
use super::agent::{self, channel};

pub(crate) const RANKS: i32 = 8;
pub(crate) const MODULES: usize = 128;
/// Rows of a step of a rank.
const STEP: usize = 2 * MODULES + 1;
/// Steps of a batch.
const STEPS: i64 = 16;

const KINDS: [(&str, &str); 8] = [
    ("attn.c_attn", "Linear"),
    ("attn.c_proj", "Linear"),
    ("attn.attn_dropout", "Dropout"),
    ("mlp.c_fc", "Linear"),
    ("mlp.gelu", "GELU"),
    ("mlp.c_proj", "Linear"),
    ("ln_1", "LayerNorm"),
    ("", "Block"),
];

/// A generator of numbers that look random and are the same every time (splitmix64).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About normal, mean 0, deviation 1.
    fn normal(&mut self) -> f64 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64).sum();
        sum - 6.0
    }
}

/// The agent of one rank.
struct SyntheticAgent {
    instance: Arc<str>,
    identity: Arc<ProcessIdentity>,
    strings: v1::Strings,
    received: StringReceiver,
    texts: Vec<(Text, Text)>,
    stages: [Text; 3],
    optimizer: Text,
    device: Text,
    /// Typical time of each module in forward, in nanoseconds.
    typical: Vec<f64>,
    numbers: SplitMix64,
    now: i64,
    builder: BatchBuilder,
    seq: u64,
}

impl SyntheticAgent {
    fn new(rank: i32) -> Self {
        let mut strings = StringTable::default();
        let stages = ["forward", "backward", "step"].map(|stage| strings.id(stage));
        let texts = (0..MODULES)
            .map(|module| {
                let (name, kind) = KINDS[module % KINDS.len()];
                let name = format!("transformer.h.{}.{name}", module / KINDS.len());
                (strings.id(name.trim_end_matches('.')), strings.id(kind))
            })
            .collect();
        let (optimizer, device) = (strings.id("AdamW"), strings.id("cpu"));
        let mut received = StringReceiver::default();
        let strings = strings.since(0).unwrap_or_default();
        received.extend(strings.clone()).unwrap_or_default();
        let mut numbers = SplitMix64(7);
        let typical = (0..MODULES).map(|_| (12.2 + 1.2 * numbers.normal()).exp()).collect();
        Self {
            instance: format!("rank {rank}").into(),
            identity: Arc::new(ProcessIdentity {
                run: "gpt@1".into(),
                host: "node-1".into(),
                pid: 1000 + rank,
                rank: Some(rank),
                local_rank: Some(rank),
                world_size: Some(RANKS),
                role: "trainer".into(),
            }),
            strings,
            received,
            texts,
            stages,
            optimizer,
            device,
            typical,
            numbers: SplitMix64(rank as u64 + 100),
            now: 1_767_225_600_000_000_000,
            builder: BatchBuilder::new(&TABLE),
            seq: 0,
        }
    }

    fn row(&mut self, step: i64, module: Option<usize>, stage: usize) {
        let typical = module.map_or(3e6, |module| self.typical[module] * [1.0, 1.9, 1.0][stage]);
        let own = typical * (0.15 * self.numbers.normal()).exp();
        // Times are whole multiples of the smallest unit, as the agent's are.
        let seconds =
            |nanoseconds: f64| (nanoseconds * 1e-9 * TIMES_PER_SECOND as f64).round() / TIMES_PER_SECOND as f64;
        let whole = module.is_some_and(|module| module % KINDS.len() == 7);
        let total = if whole { own * (6.0 + 0.1 * self.numbers.normal()) } else { own };
        let (name, kind) = module.map_or((self.optimizer, self.optimizer), |module| self.texts[module]);
        self.builder.push(Row {
            step,
            micro_step: 0,
            call_index: 0,
            module: Some(name),
            module_type: Some(kind),
            depth: if whole { 2 } else { 3 },
            stage: self.stages[stage],
            ts: Time(self.now),
            duration: Some(seconds(own)),
            total_duration: Some(seconds(total)),
            host_duration: seconds(own),
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: None,
            device: (stage < 2).then_some(self.device),
            compiled: false,
            captured: Some(false),
            thread: if stage == 1 { 4243 } else { 4242 },
        });
        self.now += own as i64 + 300;
    }

    /// The next batch, which begins with step `first`.
    fn batch(&mut self, first: i64) -> v1::Batch {
        for step in first..first + STEPS {
            (0..MODULES).for_each(|module| self.row(step, Some(module), 0));
            (0..MODULES).rev().for_each(|module| self.row(step, Some(module), 1));
            self.row(step, None, 2);
        }
        self.seq += 1;
        let recorded = self.seq * STEP as u64 * STEPS as u64;
        v1::Batch { seq: self.seq, recorded, ..self.builder.take() }
    }

    fn rows(&mut self, first: i64) -> Option<BatchRows> {
        let batch = self.batch(first);
        let mapping = ColumnMapping::new(&TABLE.wire_schema()).ok()?;
        BatchRows::decode(&mapping, &batch, &mut self.received).ok()
    }
}

/// The rows of all ranks.
pub(crate) struct SyntheticRun {
    agents: Vec<SyntheticAgent>,
    step: i64,
    pub(crate) rows: usize,
}

impl SyntheticRun {
    pub(crate) fn new() -> Self {
        Self { agents: (0..RANKS).map(SyntheticAgent::new).collect(), step: 0, rows: 0 }
    }

    /// Appends about `rows` more rows.
    pub(crate) fn fill(&mut self, store: &Store, rows: usize) {
        self.also_fill(&[store], rows);
    }

    /// Appends about `rows` more rows to all stores, the same to each.
    pub(crate) fn also_fill(&mut self, stores: &[&Store], rows: usize) {
        let end = self.rows + rows;
        while self.rows < end {
            for agent in &mut self.agents {
                let Some(batch) = agent.rows(self.step) else { continue };
                for store in stores {
                    store.append(&agent.identity, BatchOrigin::batch(&agent.instance, agent.seq), batch.clone());
                }
                self.rows += STEP * STEPS as usize;
            }
            self.step += STEPS;
        }
    }

    /// Sends about `rows` rows to the collector at `socket`, over a connection a rank. The connections stay open.
    pub(crate) async fn send(&mut self, socket: &Path, rows: usize) -> Result<Vec<agent::BenchAgent>> {
        let mut sessions = Vec::new();
        for agent in &self.agents {
            let hello = hello(&agent.instance, &agent.identity);
            let session = agent::BenchAgent::connect(channel(socket).await?, hello).await?;
            session.send(Frame::Strings(agent.strings.clone())).await?;
            sessions.push(session);
        }
        while self.rows < rows {
            for (agent, session) in self.agents.iter_mut().zip(&sessions) {
                session.send(Frame::Batch(agent.batch(self.step))).await?;
                self.rows += STEP * STEPS as usize;
            }
            self.step += STEPS;
        }
        for (agent, session) in self.agents.iter().zip(&mut sessions) {
            session.acknowledged(agent.seq).await?;
        }
        Ok(sessions)
    }
}

/// The first message of an agent that is one rank of all.
fn hello(instance: &str, identity: &ProcessIdentity) -> v1::Hello {
    v1::Hello {
        rank: identity.rank,
        local_rank: identity.local_rank,
        world_size: identity.world_size,
        ..agent::hello(instance, identity.pid as u32, vec![TABLE.wire_schema()])
    }
}
