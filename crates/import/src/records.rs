//! Records of events between the two passes: of fixed size, so that they can be sorted on disk.

/// A record that is written as a fixed number of bytes.
pub(crate) trait SortRecord: Copy {
    /// The number of bytes.
    const BYTES: usize;
    /// The group of the record. Records of a group are read together, in the order of their keys.
    fn group(&self) -> u32;
    /// The sort key within the group.
    fn key(&self) -> (i64, i64, i64);
    fn write(&self, out: &mut Vec<u8>);
    fn read(bytes: &[u8]) -> Self;
}

/// A field of a record.
trait RecordField: Sized {
    fn put(self, out: &mut Vec<u8>);
    fn take(bytes: &mut &[u8]) -> Self;
}

macro_rules! field {
    ($($kind:ty),*) => {$(
        impl RecordField for $kind {
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &mut &[u8]) -> Self {
                let Some((own, rest)) = bytes.split_first_chunk() else { return Self::default() };
                *bytes = rest;
                Self::from_le_bytes(*own)
            }
        }
    )*};
}
field!(u8, u32, i32, i64, f64);

macro_rules! record {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident : $kind:ty,)* } group $group:expr; key $key:expr;) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub(crate) struct $name { $($(#[$doc])* pub $field: $kind,)* }

        impl SortRecord for $name {
            const BYTES: usize = 0 $(+ size_of::<$kind>())*;
            fn group(&self) -> u32 {
                let group: fn(&Self) -> u32 = $group;
                group(self)
            }
            fn key(&self) -> (i64, i64, i64) {
                let key: fn(&Self) -> (i64, i64, i64) = $key;
                key(self)
            }
            fn write(&self, out: &mut Vec<u8>) {
                $(RecordField::put(self.$field, out);)*
            }
            fn read(mut bytes: &[u8]) -> Self {
                Self { $($field: RecordField::take(&mut bytes),)* }
            }
        }
    };
}

/// The value of a number that an event does not have.
pub(crate) const UNKNOWN: i64 = i64::MIN;

/// The number, unless it is not known.
pub(crate) fn known(value: i64) -> Option<i64> {
    (value != UNKNOWN).then_some(value)
}

/// Kinds of host events. Of two that begin and end together, the one with the smaller kind encloses the other.
pub(crate) mod host {
    pub(crate) const ANNOTATION: u8 = 0;
    pub(crate) const FRAME: u8 = 1;
    /// A range of the agent's around a module, whose name is the text.
    pub(crate) const MODULE: u8 = 2;
    pub(crate) const OPERATOR: u8 = 3;
    pub(crate) const LAUNCH: u8 = 4;
    /// A range that need not end on its thread, nor within others there.
    pub(crate) const LOOSE_RANGE: u8 = 5;
}

/// Kinds of device events.
pub(crate) mod device {
    pub(crate) const KERNEL: u8 = 0;
    pub(crate) const MEMCPY: u8 = 1;
    pub(crate) const MEMSET: u8 = 2;
    pub(crate) const SYNC: u8 = 3;
    /// A CUDA graph as a whole, where its kernels were not recorded.
    pub(crate) const GRAPH: u8 = 4;
}

record! {
    /// An event of a thread. Texts are numbers of the table of texts, times nanoseconds.
    HostEvent {
        thread: u32,
        kind: u8,
        ts: i64,
        end: i64,
        name: u32,
        /// Order in the file.
        number: i64,
        /// External id; for a frame, its parent's id.
        external_id: i64,
        /// The sequence number of an operator, the correlation of a launch, the id of a frame.
        id: i64,
        shapes: u32,
        types: u32,
        call_stack: u32,
        collective: u32,
        flops: f64,
        record_function: i64,
        /// Group of the events of one step, where the event has one.
        step_group: i64,
    }
    group |event| event.thread;
    // The earlier and the longer first: an enclosing event comes before those within it.
    key |event| (event.ts, event.end.saturating_neg(), i64::from(event.kind) << 56 | (event.number & ((1 << 56) - 1)));
}

record! {
    /// An allocation or a free on a thread.
    MemoryEvent {
        thread: u32,
        ts: i64,
        /// Order in the file; once `sorted`, order by time among all.
        number: i64,
        /// Whether the events are sorted by time.
        sorted: u8,
        /// The type of the device, by c10's number.
        device_type: i64,
        device: i64,
        address: i64,
        /// Bytes allocated; negative where memory was freed.
        bytes: i64,
        /// Bytes allocated on the device after the event.
        allocated: i64,
        reserved: i64,
    }
    group |event| if event.sorted == 0 { 0 } else { event.thread };
    key |event| (event.ts, event.number, 0);
}

record! {
    /// A launch, to be found by its correlation.
    Launch {
        correlation: i64,
        thread: u32,
        ts: i64,
        end: i64,
        number: i64,
        graph: u8,
    }
    group |_| 0;
    key |launch| (launch.correlation, launch.ts, launch.number);
}

record! {
    /// An event of a device.
    DeviceEvent {
        correlation: i64,
        kind: u8,
        communication: u8,
        ts: i64,
        end: i64,
        name: u32,
        device: i64,
        stream: i64,
        external_id: i64,
        grid: u32,
        block: u32,
        registers: i64,
        shared_memory: i64,
        blocks_per_sm: f64,
        warps_per_sm: f64,
        occupancy: f64,
        bytes: i64,
        bandwidth: f64,
        collective: u32,
        group_name: u32,
        group_ranks: u32,
        group_size: i64,
        dtype: u32,
        seq: i64,
        elements: i64,
        busbw: f64,
        /// The event's own operator and module, and its group as in [`HostEvent`].
        operator: u32,
        module: u32,
        step_group: i64,
        flops: f64,
        bytes_accessed: i64,
        /// The launch's thread, order in the file, begin and end. Unknown until events are joined with launches.
        thread: u32,
        launch: i64,
        launch_ts: i64,
        launch_end: i64,
        /// The number of device events that share the launch.
        launch_kernels: i32,
        graph: u8,
    }
    group |event| if event.launch == UNKNOWN { 0 } else { event.thread };
    // Events with a launch are in the order of the launches among host events.
    key |event| if event.launch == UNKNOWN {
        (event.correlation, event.ts, 0)
    } else {
        (event.launch_ts, event.launch_end.saturating_neg(), event.launch)
    };
}

record! {
    /// A node of an execution trace.
    ExecutionNode {
        id: i64,
        parent: i64,
        name: u32,
        record_function: i64,
        forward: i64,
        sequence: i64,
        thread: i64,
        is_operator: u8,
        schema: u32,
        input_shapes: u32,
        input_types: u32,
        output_shapes: u32,
        output_types: u32,
    }
    group |_| 0;
    key |node| (node.id, 0, 0);
}
