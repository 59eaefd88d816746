//! Batches of `python.torch_trace` rows, as an agent on a CPU packs them: 128 modules, three stages, 19 columns.

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::torch_trace::{Row, TABLE};
use probe_proto::{TIMES_PER_SECOND, v1};

const MODULES: usize = 128;
const STAGES: [&str; 3] = ["forward", "backward", "step"];
/// Rows of a step.
pub(crate) const STEP: usize = MODULES * STAGES.len();

/// Bits that look random and follow from `number` alone: times of real rows do not repeat, and files can't leave them out.
fn mixed(number: u64) -> u64 {
    let bits = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// A batch of `rows` rows, from `first_step` on.
pub(crate) fn batch(strings: &mut StringTable, rows: usize, first_step: i64) -> v1::Batch {
    let mut builder = BatchBuilder::new(&TABLE);
    let cpu = strings.id("cpu");
    for n in 0..rows {
        let module = n % MODULES;
        let own = (1_250 + mixed(first_step as u64 * STEP as u64 + n as u64) % 30_000) as f64 / TIMES_PER_SECOND as f64;
        builder.push(Row {
            step: first_step + (n / STEP) as i64,
            micro_step: 0,
            call_index: 0,
            module: Some(strings.id(&format!("layers.{}.attn.{}", module / 8, module % 8))),
            module_type: Some(strings.id(["Linear", "LayerNorm", "GELU", "Block"][module % 4])),
            depth: (module % 4) as i32,
            stage: strings.id(STAGES[n / MODULES % STAGES.len()]),
            ts: Time(1_767_225_600_000_000_000 + n as i64 * 12_345),
            duration: Some(own),
            total_duration: Some(own * 2.0),
            host_duration: own,
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: None,
            device: Some(cpu),
            compiled: false,
            captured: Some(false),
            thread: 4242,
        });
    }
    builder.take()
}
