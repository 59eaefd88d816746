//! The numbers in the words of records of each [`RecordKind`](crate::record::RecordKind), which the recording writes and the analysis
//! reads.

/// [`RecordKind::Enter`](crate::record::RecordKind::Enter) of an outermost call: gradients were off.
pub const NO_GRADIENTS: u64 = 1 << 52;
/// [`RecordKind::Enter`](crate::record::RecordKind::Enter) of an outermost call: the module was in eval mode.
pub const EVAL_MODE: u64 = 1 << 53;
/// [`RecordKind::Enter`](crate::record::RecordKind::Enter): the bits of the autograd sequence number.
pub const SEQUENCE: u64 = NO_GRADIENTS - 1;

/// [`RecordKind::BackwardBegin`](crate::record::RecordKind::BackwardBegin): the pass returns gradients and adds them to no parameter
/// (`torch.autograd.grad`).
pub const RETURNS_GRADIENTS: u64 = 1;

/// [`RecordKind::MarkStep`](crate::record::RecordKind::MarkStep): a backward pass ended the step. Without a flag the program marked it.
pub const BY_BACKWARD: u64 = 1;
/// [`RecordKind::MarkStep`](crate::record::RecordKind::MarkStep): an outermost call ended the step, in a program that only infers.
pub const BY_CALL: u64 = 1 << 2;
/// [`RecordKind::MarkStep`](crate::record::RecordKind::MarkStep): an optimizer's step ended the step, with the backward pass that it was in.
pub const BY_OPTIMIZER: u64 = 1 << 3;
/// [`RecordKind::MarkStep`](crate::record::RecordKind::MarkStep): several passes or calls together, before it was known that each is a
/// step.
pub const UNIT_UNKNOWN: u64 = 1 << 1;

/// [`RecordKind::Detail`](crate::record::RecordKind::Detail): torch.profiler is on for a requested capture.
pub const CAPTURED: u64 = 1 << 40;

/// The largest number of a shape's dimensions that are recorded.
pub const SHAPE_DIMENSIONS: usize = 6;
/// [`RecordKind::Shape`](crate::record::RecordKind::Shape): 24 bits from here, the number of dimensions. Below them the index of the first
/// dimension in the record.
pub const SHAPE_COUNT: u32 = 8;
/// [`RecordKind::Shape`](crate::record::RecordKind::Shape): 22 bits from here, the number of tensors of this shape that `torch.func.vmap`
/// computes at once; 0 outside of it, [`MANY_VMAPPED`] where there are more or it is not known.
pub const VMAPPED: u32 = 32;
/// The value of [`VMAPPED`]'s bits for a number that does not fit or is not known: all ones.
pub const MANY_VMAPPED: u64 = (1 << 22) - 1;

/// [`RecordKind::DataBegin`](crate::record::RecordKind::DataBegin): batches that workers had been told to load, in the second word from
/// here on; all ones where there are no workers, or more.
pub const OUTSTANDING: u32 = 48;

/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): a batch was handed over.
pub const HANDED: u64 = 1;
/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): a DataLoader gave the values of the other bits.
pub const LOADER: u64 = 1 << 1;
/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): batches are copied into pinned memory.
pub const PINNED: u64 = 1 << 2;
/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): workers live on between epochs.
pub const PERSISTENT: u64 = 1 << 3;
/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): 16 bits from here, the number of workers.
pub const WORKERS: u32 = 4;
/// [`RecordKind::DataEnd`](crate::record::RecordKind::DataEnd): 16 bits from here, the batches that each worker may be ahead; 0 without
/// workers.
pub const PREFETCH: u32 = 20;

/// Operators of copies and reads that are recorded, by their index in the record.
pub const OPERATORS: [&str; 12] = [
    "copy_",
    "_local_scalar_dense",
    "to",
    "_to_copy",
    "clone",
    "contiguous",
    "item",
    "is_nonzero",
    "nonzero",
    "synchronize",
    "Stream.synchronize",
    "Event.synchronize",
];
/// Index of the first of [`OPERATORS`] that is a function of torch's Python. Those before it are torch's operators.
pub const SYNCHRONIZE: usize = 9;
/// Names of device types that are recorded, by torch's number of the type.
pub const DEVICES: [&str; 2] = ["cpu", "cuda"];
/// The code of a CUDA device whose number is not known.
pub const SOME_CUDA: u8 = 0x1f;
/// A copy's payload, above the operator's four bits: the copy was made with `non_blocking`.
pub const NON_BLOCKING: u64 = 1 << 4;
/// A copy's payload: both sides are contiguous.
pub const IS_CONTIGUOUS: u64 = 1 << 5;
/// A copy's payload: the copy changes the type of the elements.
pub const CONVERTED: u64 = 1 << 6;

/// Number of values of a device's memory. A value that its allocator does not report is `u64::MAX`.
pub const MEMORY_VALUES: usize = 10;

/// [`RecordKind::Allocated`](crate::record::RecordKind::Allocated): at the end of a call. Below it is the device's number.
pub const AT_END: u64 = 1 << 8;
/// [`RecordKind::Allocated`](crate::record::RecordKind::Allocated): from this bit on, the peak of allocated bytes.
pub const PEAK: u32 = 9;

/// What named a range.
pub const SPAN_KINDS: [&str; 3] = ["span", "record_function", "nvtx"];
/// Why a number is NULL. The record has one more than the index of the reason; 0 where the number is not NULL.
pub const REASONS: [&str; 2] = ["on a device", "not a number"];

/// Functions that save. [`RecordKind::Saved`](crate::record::RecordKind::Saved) has their index in its lowest bits.
pub const SAVERS: [&str; 3] = ["torch.save", "torch.distributed.checkpoint.save", "safetensors.torch.save_file"];
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): the bits of that index.
pub const SAVER: u64 = 3;
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): an exception ended the save.
pub const FAILED: u64 = 1 << 2;
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): 14 bits from here, the number of the exception's class; 0 if none is known.
pub const SAVED_ERROR: u32 = 3;
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): from here on, the step in which the save began.
pub const SAVED_STEP: u32 = 17;
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): in the second word from here on, the number of the file; 0 if none is known.
pub const SAVED_FILE: u32 = 48;
/// [`RecordKind::Saved`](crate::record::RecordKind::Saved): the bytes in the second word where they are not known.
pub const UNKNOWN_BYTES: u64 = (1 << SAVED_FILE) - 1;

/// Bytes in the unit of our memory columns.
pub const MB: f64 = 1e6;

/// [`RecordKind::Pause`](crate::record::RecordKind::Pause): a compilation, not a garbage collection.
pub const COMPILATION: u64 = 1 << 8;
/// [`RecordKind::Pause`](crate::record::RecordKind::Pause): a compilation without an id from torch.
pub const WITHOUT_ID: u64 = 1 << 9;
