//! The parts of a step's time on one thread.

use probe_proto::step_part::StepPart;

use super::device::DeviceTime;
use super::meter::StepEvents;
use super::persist::persist;
use super::root_samples::RootSamples;

/// The part of a step in which something is recorded. Records have it as a number. Waits for other ranks and validation are told
/// apart only where a step is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedPart {
    /// Waiting for a batch.
    Data,
    /// Calls of modules.
    Forward,
    /// Passes of autograd.
    Backward,
    /// Steps of optimizers.
    Optimizer,
    /// Saves of checkpoints.
    Checkpoint,
    /// A snippet of `probe eval`.
    Suspended,
    /// All else.
    Other,
}

impl RecordedPart {
    /// All parts, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Data, Self::Forward, Self::Backward, Self::Optimizer, Self::Checkpoint, Self::Suspended, Self::Other];

    /// The word in tables. Rows of a snippet are left out of all but the counts of operators.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Data => StepPart::Data.as_str(),
            Self::Forward => StepPart::Forward.as_str(),
            Self::Backward => StepPart::Backward.as_str(),
            Self::Optimizer => StepPart::Optimizer.as_str(),
            Self::Checkpoint => StepPart::Checkpoint.as_str(),
            Self::Suspended => "suspended",
            Self::Other => StepPart::Other.as_str(),
        }
    }
}

/// The parts of a step's device time on one thread.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DeviceParts {
    pub(super) forward: DeviceTime,
    pub(super) backward: DeviceTime,
    pub(super) optimizer: DeviceTime,
}

persist!(DeviceParts { forward, backward, optimizer });

impl DeviceParts {
    pub(super) fn credit(&mut self, part: RecordedPart, time: Option<u64>) {
        match part {
            RecordedPart::Forward => self.forward.add(time),
            RecordedPart::Backward => self.backward.add(time),
            RecordedPart::Optimizer => self.optimizer.add(time),
            RecordedPart::Data | RecordedPart::Checkpoint | RecordedPart::Suspended | RecordedPart::Other => {}
        }
    }
}

/// Validation in a step, taken out of the other parts: times in units of the clock, and counts.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ValidationParts {
    pub(crate) data: u64,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
    pub(crate) comm: u64,
    /// Time between the calls and the batches.
    pub(crate) other: u64,
    pub(crate) calls: i32,
    pub(super) samples: RootSamples,
    pub(crate) batch_samples: i64,
    pub(super) device_forward: DeviceTime,
    pub(super) device_backward: DeviceTime,
    pub(super) counts: StepEvents,
}

impl ValidationParts {
    pub(crate) fn sum(&self) -> u64 {
        self.data + self.forward + self.backward + self.comm + self.other
    }

    fn add(&mut self, more: &Self) {
        self.data += more.data;
        self.forward += more.forward;
        self.backward += more.backward;
        self.comm += more.comm;
        self.other += more.other;
        self.calls += more.calls;
        self.samples = self.samples.plus(&more.samples);
        self.batch_samples = self.batch_samples.saturating_add(more.batch_samples);
        self.device_forward.add(more.device_forward.sum());
        self.device_backward.add(more.device_backward.sum());
        self.counts = self.counts.plus(more.counts);
    }
}

/// Times of a step so far, in units of the clock, and counts.
#[derive(Debug, Default, Clone)]
pub(crate) struct StepParts {
    pub(crate) data: u64,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
    pub(crate) optimizer: u64,
    pub(crate) comm: u64,
    pub(crate) validation: ValidationParts,
    pub(crate) checkpoint: u64,
    pub(crate) suspended: u64,
    /// Time in the backward call that is open. Its end decides how much of it was backward.
    pub(crate) pending: u64,
    /// The time up to which communication has been counted.
    pub(crate) comm_until: u64,
    pub(crate) micro_steps: i32,
    pub(super) samples: RootSamples,
    /// Samples of the batches that were handed over.
    pub(crate) batch_samples: Option<i64>,
    /// Times on the device's clock.
    pub(super) device: DeviceParts,
    /// Whether intervals of the step were lost from which its device times are computed.
    pub(super) lost: bool,
}

persist!(ValidationParts {
    data,
    forward,
    backward,
    comm,
    other,
    calls,
    samples,
    batch_samples,
    device_forward,
    device_backward,
    counts,
});
persist!(StepParts {
    data,
    forward,
    backward,
    optimizer,
    comm,
    validation,
    checkpoint,
    suspended,
    pending,
    comm_until,
    micro_steps,
    samples,
    batch_samples,
    device,
    lost,
});

impl StepParts {
    /// Adds `time` to `part`.
    #[inline]
    pub(crate) fn credit(&mut self, part: RecordedPart, time: u64) {
        let total = match part {
            RecordedPart::Data => &mut self.data,
            RecordedPart::Forward => &mut self.forward,
            RecordedPart::Backward => &mut self.pending,
            RecordedPart::Optimizer => &mut self.optimizer,
            RecordedPart::Checkpoint => &mut self.checkpoint,
            RecordedPart::Suspended => &mut self.suspended,
            RecordedPart::Other => return,
        };
        *total += time;
    }

    /// Adds a wait for a collective from `begin` to `end`. Time that was counted already is not counted again.
    pub(crate) fn wait(&mut self, begin: u64, end: u64) {
        self.comm += end.saturating_sub(begin.max(self.comm_until));
        self.comm_until = self.comm_until.max(end);
    }

    /// The sum of all parts except the rest.
    pub(crate) fn sum(&self) -> u64 {
        let rest = self.validation.sum() + self.checkpoint;
        self.data + self.forward + self.backward + self.optimizer + self.comm + rest
    }

    /// Moves what was counted between `before` and `after`, which are `time` apart, to validation, in `self` and in `after`.
    /// Since `after`, only time that counts as other has passed.
    pub(crate) fn leave_out(&mut self, before: &Self, after: &mut Self, time: u64, counts: StepEvents) {
        let mut moved = ValidationParts {
            data: after.data.saturating_sub(before.data),
            forward: after.forward.saturating_sub(before.forward),
            backward: after.backward.saturating_sub(before.backward),
            comm: after.comm.saturating_sub(before.comm),
            calls: after.micro_steps.saturating_sub(before.micro_steps),
            samples: after.samples.since(&before.samples),
            batch_samples: after.batch_samples.unwrap_or(0).saturating_sub(before.batch_samples.unwrap_or(0)),
            counts,
            ..ValidationParts::default()
        };
        let snippets = after.suspended.saturating_sub(before.suspended);
        let saved = after.checkpoint.saturating_sub(before.checkpoint);
        moved.other = time.saturating_sub(moved.sum() + snippets + saved);
        let between = |after: DeviceTime, before: DeviceTime| {
            after.sum().zip(before.sum()).map(|(after, before)| after.saturating_sub(before))
        };
        moved.device_forward.add(between(after.device.forward, before.device.forward));
        moved.device_backward.add(between(after.device.backward, before.device.backward));
        for parts in [self, after] {
            parts.data -= moved.data;
            parts.forward -= moved.forward;
            parts.backward -= moved.backward;
            parts.comm -= moved.comm;
            parts.micro_steps -= moved.calls;
            let less = |all: Option<i64>, part: i64, before: Option<i64>| {
                all.map(|all| all.saturating_sub(part)).filter(|left| *left != 0 || before.is_some())
            };
            parts.samples = before.samples;
            parts.batch_samples = less(parts.batch_samples, moved.batch_samples, before.batch_samples);
            parts.device.forward = before.device.forward;
            parts.device.backward = before.device.backward;
            parts.validation.add(&moved);
        }
    }

    /// Moves validation back to the other parts, because nothing in this process trains.
    pub(crate) fn put_back(&mut self) {
        let moved = std::mem::take(&mut self.validation);
        self.data += moved.data;
        self.forward += moved.forward;
        self.backward += moved.backward;
        self.comm += moved.comm;
        self.micro_steps += moved.calls;
        let more = |all: Option<i64>, part: i64| if part == 0 { all } else { Some(all.unwrap_or(0) + part) };
        self.samples = self.samples.plus(&moved.samples);
        self.batch_samples = more(self.batch_samples, moved.batch_samples);
        self.device.forward.add(moved.device_forward.sum());
        self.device.backward.add(moved.device_backward.sum());
    }
}
