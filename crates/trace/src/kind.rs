//! Declares the kinds of records, and the tables that they become rows of.

/// Set in the first record after module or node intervals of this thread were lost.
pub const LOST_DETAIL: u64 = 1 << 55;
/// Set in the first record after anything else of this thread was lost.
pub const LOST_OTHER: u64 = 1 << 54;

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident => python.$name:ident, $constant:ident, $flag:expr;)*) => {
        /// A table that records become rows of. Records that are lost are counted by the table that misses them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum RecordTable {
            $($(#[$doc])* $table),*
        }

        impl RecordTable {
            /// All tables, in the order of their numbers.
            pub const ALL: [Self; [$(Self::$table),*].len()] = [$(Self::$table),*];

            /// The table's full name, as drops are counted.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$table => $constant),*
                }
            }

            /// The flag of the thread's next record after one of this table was lost.
            pub const fn flag(self) -> u64 {
                match self {
                    $(Self::$table => $flag),*
                }
            }
        }

        $(
            #[doc = concat!("The name of `python.", stringify!($name), "`, for which drops are counted.")]
            pub const $constant: &str = concat!("python.", stringify!($name));
            const _: &probe_proto::table::Table = &probe_proto::tables::$name::TABLE;
        )*
    };
}

tables! {
    /// Modules and autograd nodes.
    TorchTrace => python.torch_trace, TORCH_TRACE, LOST_DETAIL;
    /// Records from which steps and their parts are computed.
    Steps => python.steps, STEPS, LOST_OTHER;
    /// Collectives.
    NcclTrace => python.nccl_trace, NCCL_TRACE, 0;
    /// Batches, from which the parts of steps are computed too.
    DataTrace => python.data_trace, DATA_TRACE, LOST_OTHER;
    /// Memory that the allocators of devices report.
    Memory => python.memory, MEMORY, 0;
    /// Ranges that the program names.
    Spans => python.spans, SPANS, 0;
    /// Numbers that the program logs.
    Metrics => python.metrics, METRICS, 0;
    /// Copies of tensors.
    Copies => python.copies, COPIES, 0;
    /// Reads of tensors' values.
    SyncPoints => python.sync_points, SYNC_POINTS, 0;
    /// Garbage collections and compilations.
    Pauses => python.pauses, PAUSES, 0;
    /// Saves.
    Checkpoints => python.checkpoints, CHECKPOINTS, 0;
    /// How often operators ran.
    OperatorCounts => python.operator_counts, OPERATOR_COUNTS, 0;
}

/// `KIND => TABLE, words;`: a kind of record, the table whose rows are missing where a ring has no room for it, and any of the
/// words `marked` (the upper 16 bits of the second word name a device's event), `collective` (part of the life of one) and
/// `within_pass` (does not mean that a backward pass without a call is over).
macro_rules! records {
    ($($(#[$doc:meta])* $kind:ident => $table:ident $(, $word:ident)*;)*) => {
        /// The kind of a record: what happened. The comments describe the record's words.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum RecordKind {
            $($(#[$doc])* $kind),*
        }

        impl RecordKind {
            /// All kinds, in the order of their numbers.
            pub(crate) const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            /// The table whose rows are missing where a record of this kind has no room.
            #[inline(always)]
            pub const fn table(self) -> RecordTable {
                match self {
                    $(Self::$kind => RecordTable::$table),*
                }
            }

            const fn words(self) -> KindProperties {
                match self {
                    $(Self::$kind => KindProperties::NONE$(.$word())*),*
                }
            }
        }
    };
}

records! {
    /// A module's call began. `a` module, `b` its type (addresses), payload the autograd sequence number to come next; of an
    /// outermost one also whether it trains ([`super::payload::EVAL_MODE`]).
    Enter => TorchTrace, marked;
    /// A module's call ended, by return or exception. `a` module, payload the sequence number to come next.
    Exit => TorchTrace, marked;
    /// Shape of the first tensor given to the call that began last: payload = number of dimensions << 8 | the first of
    /// the up to four dimensions here, which are 32 bits each in `a` and `b`, low half first.
    Shape => Steps;
    /// An autograd node began. `a` its sequence number (`u64::MAX`: none).
    NodeStart => TorchTrace, marked, within_pass;
    /// An autograd node ended.
    NodeEnd => TorchTrace, marked, within_pass;
    /// `backward()` (or `grad()`) was entered.
    BackwardBegin => Steps;
    /// `backward()` (or `grad()`) ended. `a` when its first node began, `b` when its last one ended (0: there was none); payload
    /// 1 where nodes were not watched.
    BackwardEnd => Steps;
    /// An optimizer's step began. Payload: id of its class name.
    OptimizerBegin => Steps, marked;
    /// An optimizer's step ended. `a` 1 when this ended a training step, `b` steps finished now, payload as at the beginning.
    OptimizerEnd => Steps, marked;
    /// A batch was asked for. Payload: address of the dataset's class (0: not known), `a` batches that workers had
    /// finished (`u64::MAX`: no workers), `b` address of the iterator (48 bits) and the batches that workers had been told to
    /// load ([`super::payload::OUTSTANDING`]).
    DataBegin => DataTrace;
    /// A batch was handed over, or there was none. See [`super::data`] for the payload, `a` its bytes (`u64::MAX`: not known),
    /// `b` its number in the epoch, and its samples in the upper half (`u32::MAX` each: not known).
    DataEnd => DataTrace;
    /// A snippet began on this thread.
    SuspendBegin => Steps;
    /// A snippet ended.
    SuspendEnd => Steps;
    /// What is recorded from here on: payload bit 0 modules, above it a bit for each layer.
    Detail => Steps;
    /// A training step was ended, by something else than the end of an optimizer's step. `b` steps finished now, payload: see
    /// [`super::payload::BY_BACKWARD`].
    MarkStep => Steps, marked;
    /// A collective was issued. `a` its key, `b` bytes (48 bits), payload = its number in the group << 24 | index of its
    /// description in the registry. Its event comes before the operation begins.
    Issue => NcclTrace, marked, collective, within_pass;
    /// The backend began to time a collective. `a` its key, `b` the backend's handle.
    Started => NcclTrace, collective, within_pass;
    /// The backend finished a collective. `a` the backend's handle, payload 1 when it failed.
    Finished => NcclTrace, collective, within_pass;
    /// A future reported that a collective is done. `a` its key, payload 1 when it failed.
    Done => NcclTrace, collective, within_pass;
    /// The issuing call returned. `a` its key, payload 1 when no completion will be seen.
    Posted => NcclTrace, collective, within_pass;
    /// A parameter's gradient became ready. `a` the module that owns it.
    GradReady => TorchTrace, within_pass;
    /// The thread began to wait for a collective.
    WaitBegin => Steps, collective, within_pass;
    /// The thread has waited for a collective, or the collective issued before returned no work to wait for. Payload 1 where it
    /// has an event, which comes when that collective is done.
    WaitEnd => NcclTrace, marked, collective, within_pass;
    /// Recording was off, and is on again. `a` is 1 in the middle of a step, which then gets no row.
    Resume => Steps;
    /// Memory that a device's allocator reports: two values, `a` and `b`, of [`super::memory`]. Payload: which two | device << 8.
    Memory => Memory, within_pass;
    /// A range that the program names ended. `a` when it began, `b` its step; see [`super::spans`] for the payload.
    Span => Spans, within_pass;
    /// A number was logged. `a` its bits, `b` its step; payload: its name | why it is NULL << 16.
    Metric => Metrics, within_pass;
    /// A tensor was copied. `a` when it began, `b` bytes | device read << 48 | device written << 56; payload: see
    /// [`super::operators`], and its line << 8 | the stride << 24.
    Copy => Copies, within_pass;
    /// A tensor's values were read. Words as of [`RecordKind::Copy`].
    Sync => SyncPoints, within_pass;
    /// Memory that a device's allocator reports at the beginning or end of the innermost call. `a` bytes allocated, `b`
    /// reserved; see [`super::module_memory`] for the payload.
    Allocated => TorchTrace, within_pass;
    /// A checkpoint began to be saved on this thread.
    CheckpointBegin => Steps;
    /// A checkpoint has been saved.
    CheckpointEnd => Steps;
    /// Processor time of the thread since it began, right before the record that ends a step. Nanoseconds: `a` on a processor,
    /// `b` ready and without one (`u64::MAX`: not known).
    ProcessorTimes => Steps, within_pass;
    /// A garbage collection or compilation ended. `a` when it began, `b` objects freed | not freed << 32, or frame | its
    /// compilation << 32; payload: see [`super::pauses`].
    Pause => Pauses, within_pass;
    /// How much of the batch that is about to be handed over is padding. `a` the bits of the share, a float.
    Padding => DataTrace;
    /// Which worker loaded the batch that is about to be handed over. `a` the worker, `b` nanoseconds that it took (`u64::MAX`:
    /// not known).
    Loaded => DataTrace;
    /// What was saved. The time is when the save ended, `a` when it began, `b` the bytes written (48 bits) and the number of the
    /// file ([`super::payload::SAVED_FILE`]); see [`super::checkpoints`] for the payload.
    Saved => Checkpoints, within_pass;
    /// How often an operator ran in a part of the step that ends next, on all threads. The host's time in it is from `a` to the
    /// record's time, `b` how often it ran | how often no other operator called it << 32; payload: its number |
    /// [`super::step_parts::RecordedPart`] << 16 | the stride << 24.
    OperatorCount => OperatorCounts, within_pass;
}

#[derive(Clone, Copy)]
struct KindProperties {
    marked: bool,
    collective: bool,
    within_pass: bool,
}

impl KindProperties {
    const NONE: Self = Self { marked: false, collective: false, within_pass: false };

    const fn marked(self) -> Self {
        Self { marked: true, ..self }
    }

    const fn collective(self) -> Self {
        Self { collective: true, ..self }
    }

    const fn within_pass(self) -> Self {
        Self { within_pass: true, ..self }
    }
}

impl RecordKind {
    /// Whether the upper 16 bits of the second word name a device's event.
    pub const fn has_mark(self) -> bool {
        self.words().marked
    }

    /// Whether the record belongs to the life of a collective.
    pub const fn is_about_collectives(self) -> bool {
        self.words().collective
    }

    /// Whether the record may come within a backward pass that no call began, and does not end it.
    pub(crate) const fn is_within_pass(self) -> bool {
        self.words().within_pass
    }
}
