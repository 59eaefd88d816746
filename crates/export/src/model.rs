//! What a timeline is made of. Times are nanoseconds on one axis for all processes.

/// A process, by the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub(crate) u32);

/// A track, by the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrackId(pub(crate) u32);

/// A counter, by the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterId(pub(crate) u32);

/// A process: a rank, or a machine with its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// As people read it.
    pub name: String,
    /// Its id on its host; None for what is no process there.
    pub pid: Option<i64>,
}

/// A row of a process: a thread, a stream, a process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// Whose it is.
    pub process: ProcessId,
    /// What several tracks have above them: GPU 0.
    pub group: Option<String>,
    /// The device whose stream it is.
    pub device: Option<i64>,
    /// As people read it.
    pub name: String,
    /// Its place among the tracks of its process: small ones are above.
    pub order: i32,
}

/// A number that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Whose it is.
    pub process: ProcessId,
    /// What is counted.
    pub name: String,
    /// Its unit; empty where it has none.
    pub unit: &'static str,
}

/// A place on a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The track, or the lane of it where the slice lies.
    pub track: TrackId,
    /// When.
    pub ts: i64,
}

/// A value that an event has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Text.
    Text(&'a str),
    /// Text that is JSON: written as such where the format is JSON.
    Json(&'a str),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth.
    Bool(bool),
}

/// A named value.
pub type Argument<'a> = (&'a str, Value<'a>);

/// What an arrow means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowKind {
    /// From a launch on the host to what ran on the device.
    Launch,
    /// From a forward operator to its backward.
    Backward,
    /// Between the ranks of one collective.
    Collective,
}

/// One end of an arrow at a slice. All slices with the same id are joined, in order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The arrow begins here, and another slice has its end.
    Begin(FlowKind, u64),
    /// It comes here and may go on.
    Through(FlowKind, u64),
    /// It ends here.
    End(FlowKind, u64),
    /// It begins here if another slice says so with [`Flow::From`].
    Possible(u64),
    /// It comes from a slice that was written before, which has this id as a possible one; `pair` is an id that no other
    /// arrow has.
    From {
        /// What the arrow means.
        kind: FlowKind,
        /// The id of that slice.
        id: u64,
        /// For formats in which an arrow joins two.
        pair: u64,
        /// Where that slice begins.
        from: Point,
    },
}

/// Something that took time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice<'a> {
    /// The track.
    pub track: TrackId,
    /// When it began.
    pub ts: i64,
    /// How long it took.
    pub duration: i64,
    /// What it is called.
    pub name: &'a str,
    /// What kind it is: cpu_op, kernel, module.
    pub category: &'a str,
    /// What else is known.
    pub arguments: &'a [Argument<'a>],
    /// Its ends of arrows.
    pub flows: &'a [Flow],
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instant<'a> {
    /// The track.
    pub track: TrackId,
    /// When.
    pub ts: i64,
    /// What it is called.
    pub name: &'a str,
    /// What kind it is.
    pub category: &'a str,
    /// What else is known.
    pub arguments: &'a [Argument<'a>],
}
