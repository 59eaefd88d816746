//! A dump of the Flight Recorder of each rank: rank 0 waits in a collective that rank 1 has not entered.

use probe_proto::table::{Text, Time};
use probe_proto::tables::{flight_recorder, process_groups};

use super::data::{Agent, START};

impl Agent {
    fn name(&mut self, text: &str) -> Text {
        self.strings.id(text)
    }

    /// A dump of a rank; that of rank 0 also has the collective that is pending.
    pub(super) fn dumped(&mut self, rank: i32) -> Vec<flight_recorder::Row> {
        let row = flight_recorder::Row {
            capture: self.name("dump"),
            record: Some(40),
            group_name: self.name("74"),
            description: Some(self.name("EXPERT_GROUP")),
            seq: 41,
            p2p: false,
            operation_type: self.name("all_to_all"),
            peer: None,
            backend: Some(self.name("nccl")),
            state: self.name("completed"),
            retired: true,
            pending: false,
            ts: Time(START),
            started: Some(Time(START + 1_000_000)),
            completed: Some(Time(START + 2_000_000)),
            duration_ms: None,
            timeout: Some(600.0),
            input_sizes: Some(self.name("[[4027,5120]]")),
            input_types: Some(self.name("[\"BFloat16\"]")),
            output_sizes: Some(self.name("[[4096,5120]]")),
            bytes: Some(41_943_040),
            function: Some(self.name("forward")),
            file: Some(self.name("moe.py")),
            line: Some(31),
            thread: Some(self.name("python")),
        };
        let state = self.name("scheduled");
        let waiting = flight_recorder::Row {
            record: Some(41),
            seq: 42,
            state,
            retired: false,
            pending: true,
            ts: Time(START + 3_000_000),
            started: None,
            completed: None,
            ..row
        };
        if rank == 0 { vec![row, waiting] } else { vec![row] }
    }

    pub(super) fn process_group(&mut self, rank: i32) -> process_groups::Row {
        let newest = if rank == 0 { 42 } else { 41 };
        process_groups::Row {
            capture: self.name("dump"),
            ts: Some(Time(START)),
            group_name: self.name("74"),
            description: Some(self.name("EXPERT_GROUP")),
            number: Some(11),
            group_size: Some(2),
            ranks: Some(self.name("[0,1]")),
            last_seq: Some(newest),
            last_enqueued: Some(newest),
            last_started: None,
            last_completed: Some(41),
            operations: newest - 40,
            pending: newest - 41,
        }
    }
}
