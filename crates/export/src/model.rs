//! The elements of a timeline. Times are nanoseconds on one axis for all processes.

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
pub struct TraceProcess {
    /// The name that is shown.
    pub name: String,
    /// The process id on its host; None where this is no process of a host.
    pub pid: Option<i64>,
}

/// A row of a process: a thread, a stream, a process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// The process of the track.
    pub process: ProcessId,
    /// The heading above several tracks: GPU 0.
    pub group: Option<String>,
    /// The device, for the track of a stream.
    pub device: Option<i64>,
    /// The name that is shown.
    pub name: String,
    /// Whether its slices are what a profiler recorded of a thread. A range begins within the Python function that begins it and ends
    /// after that, so two such slices may overlap in part.
    pub profiled: bool,
    /// Sort key among the tracks of its process: small ones are above.
    pub order: i32,
}

/// A number that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// The process of the counter.
    pub process: ProcessId,
    /// Name of the counter.
    pub name: String,
    /// Unit of the values; empty if they have no unit.
    pub unit: &'static str,
}

/// A point on a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackPoint {
    /// The track, or the lane of it where the slice lies.
    pub track: TrackId,
    /// The time.
    pub ts: i64,
}

/// The value of an argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArgumentValue<'a> {
    /// Text.
    Text(&'a str),
    /// Text that is JSON: written as such where the format is JSON.
    Json(&'a str),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

/// A named value.
pub type Argument<'a> = (&'a str, ArgumentValue<'a>);

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
    /// The arrow comes here and may go on.
    Through(FlowKind, u64),
    /// The arrow ends here.
    End(FlowKind, u64),
    /// An arrow begins here if another slice names this one in [`Flow::From`].
    Possible(u64),
    /// The arrow comes from a slice that was written before, which has `id` as a possible one; `pair` is an id that no other
    /// arrow has.
    From {
        /// What the arrow means.
        kind: FlowKind,
        /// The id of that slice.
        id: u64,
        /// The arrow's id in formats where an arrow joins two slices.
        pair: u64,
        /// Where that slice begins.
        from: TrackPoint,
    },
}

/// An event with a duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice<'a> {
    /// The track.
    pub track: TrackId,
    /// Its begin.
    pub ts: i64,
    /// Its duration.
    pub duration: i64,
    /// The name that is shown.
    pub name: &'a str,
    /// The category: cpu_op, kernel, module.
    pub category: &'a str,
    /// Further values, by name.
    pub arguments: &'a [Argument<'a>],
    /// The ends of arrows at this slice.
    pub flows: &'a [Flow],
}

/// An event at a point in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InstantEvent<'a> {
    /// The track.
    pub track: TrackId,
    /// Its time.
    pub ts: i64,
    /// The name that is shown.
    pub name: &'a str,
    /// The category.
    pub category: &'a str,
    /// Further values, by name.
    pub arguments: &'a [Argument<'a>],
}
