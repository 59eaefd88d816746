//! What the words of records mean beside their [`Kind`](crate::record::Kind): numbers that the recording writes and the
//! analysis reads.

/// [`Kind::Enter`](crate::record::Kind::Enter) of an outermost call: gradients were off.
pub const NO_GRADIENTS: u64 = 1 << 52;
/// See there: the module was in eval mode.
pub const EVAL_MODE: u64 = 1 << 53;
/// The autograd sequence number beside them.
pub const SEQUENCE: u64 = NO_GRADIENTS - 1;

/// [`Kind::MarkStep`](crate::record::Kind::MarkStep): by a backward pass; else by the program's word.
pub const BY_BACKWARD: u64 = 1;
/// See there: by an outermost call, in a program that only infers.
pub const BY_CALL: u64 = 1 << 2;
/// See there: these were several passes or calls, before it was known that each is a step.
pub const UNTOLD: u64 = 1 << 1;

/// [`Kind::Detail`](crate::record::Kind::Detail): torch.profiler is on for somebody who asked for a capture.
pub const CAPTURED: u64 = 1 << 40;

/// Dimensions of a shape that are recorded at most.
pub const SHAPE_DIMENSIONS: usize = 6;
/// [`Kind::Shape`](crate::record::Kind::Shape): 24 bits from here, how many dimensions there are. Below them the place of
/// the first one in the record.
pub const SHAPE_COUNT: u32 = 8;
/// See there: 22 bits from here, how many of what has this shape `torch.func.vmap` computes at once; 0 outside of it, all
/// ones where there are more or it is not known.
pub const VMAPPED: u32 = 32;
/// See there.
pub const MANY_VMAPPED: u64 = (1 << 22) - 1;

/// [`Kind::DataBegin`](crate::record::Kind::DataBegin): batches that workers had been told to load, in the second word from
/// here on; all ones where there are no workers, or more.
pub const OUTSTANDING: u32 = 48;

/// [`Kind::DataEnd`](crate::record::Kind::DataEnd): a batch was handed over.
pub const HANDED: u64 = 1;
/// A DataLoader said what follows.
pub const LOADER: u64 = 1 << 1;
/// Batches are copied into pinned memory.
pub const PINNED: u64 = 1 << 2;
/// Workers live on between epochs.
pub const PERSISTENT: u64 = 1 << 3;
/// Number of workers: 16 bits from here.
pub const WORKERS: u32 = 4;
/// Batches each worker may be ahead: 16 bits from here, 0 without workers.
pub const PREFETCH: u32 = 20;

/// Operators of copies and reads that mean something: their place here is in the record.
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
/// Those before it are torch's operators, the others functions of its Python.
pub const SYNCHRONIZE: usize = 9;
/// torch's numbers of devices: what has a name here is recorded.
pub const DEVICES: [&str; 2] = ["cpu", "cuda"];
/// A device of CUDA's, and which one is not known.
pub const SOME_CUDA: u8 = 0x1f;
/// Bits of a copy's payload, above the operator's four.
pub const NON_BLOCKING: u64 = 1 << 4;
/// See there.
pub const IS_CONTIGUOUS: u64 = 1 << 5;
/// See there.
pub const CONVERTED: u64 = 1 << 6;

/// Values of a device's memory, `u64::MAX` for what its allocator does not say.
pub const MEMORY_VALUES: usize = 8;

/// [`Kind::Allocated`](crate::record::Kind::Allocated): of the end of a call. Below it is the device's number.
pub const AT_END: u64 = 1 << 8;
/// Peak of bytes allocated, from here.
pub const PEAK: u32 = 9;

/// Who named a range.
pub const SPAN_KINDS: [&str; 3] = ["span", "record_function", "nvtx"];
/// Why a number is NULL: one less is its place here; 0 where it is not.
pub const REASONS: [&str; 2] = ["on a device", "not a number"];

/// In one unit of our memory columns.
pub const MB: f64 = 1e6;

/// [`Kind::Pause`](crate::record::Kind::Pause): a compilation, not a garbage collection.
pub const COMPILATION: u64 = 1 << 8;
/// A compilation of which torch did not say which one it is.
pub const WITHOUT_ID: u64 = 1 << 9;
