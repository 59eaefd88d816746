//! Lines beside the activities of a device: they give the step and program of an activity that does not have them itself.
//! Profilers of XLA draw such lines over those of streams, and the same time must not count twice.

use std::collections::HashMap;

use super::records::{DeviceEvent, known};
use super::steps::{StepInterval, step_at};

/// Most steps and runs of programs of all devices.
const MAX_SPANS: usize = 1 << 20;

/// A run of a program on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProgramRun {
    ts: i64,
    end: i64,
    /// The number of the name in the table of texts.
    name: u32,
}

/// Steps and programs by device.
#[derive(Debug, Default)]
pub(crate) struct DeviceLines {
    /// Numbers of steps by the group of their events.
    groups: HashMap<i64, i64>,
    steps: HashMap<i64, Vec<StepInterval>>,
    programs: HashMap<i64, Vec<ProgramRun>>,
    spans: usize,
    /// The latest operation of each line, until it is known whether it encloses the next.
    open: HashMap<(i64, i64), DeviceEvent>,
    /// Operations that enclosed others.
    pub enclosing: u64,
}

impl DeviceLines {
    pub(crate) fn take_step(&mut self, device: i64, step: StepInterval, group: Option<i64>) {
        if let Some(group) = group
            && self.groups.len() < MAX_SPANS
        {
            self.groups.insert(group, step.number);
        }
        if self.has_room() {
            self.steps.entry(device).or_default().push(step);
        }
    }

    pub(crate) fn take_program(&mut self, device: i64, (ts, end): (i64, i64), name: u32) {
        if self.has_room() {
            self.programs.entry(device).or_default().push(ProgramRun { ts, end, name });
        }
    }

    fn has_room(&mut self) -> bool {
        self.spans += 1;
        self.spans <= MAX_SPANS
    }

    /// Takes an operation of a line on which operations can be within others, and returns the operation before it, unless that
    /// encloses this one: its time is that of the operations within it.
    pub(crate) fn take_operation(&mut self, event: DeviceEvent) -> Option<DeviceEvent> {
        let before = self.open.insert((event.device, event.stream), event)?;
        let encloses = before.ts <= event.ts && event.ts < event.end && event.end <= before.end;
        self.enclosing += u64::from(encloses);
        (!encloses).then_some(before)
    }

    /// Sorts steps and programs, and returns the last operations of all lines.
    pub(crate) fn finish(&mut self) -> Vec<DeviceEvent> {
        self.steps.values_mut().for_each(|steps| steps.sort_unstable());
        self.programs.values_mut().for_each(|programs| programs.sort_unstable());
        self.open.drain().map(|(_, event)| event).collect()
    }

    /// The step of a group of events.
    pub(crate) fn step_of_group(&self, group: i64) -> Option<i64> {
        self.groups.get(&known(group)?).copied()
    }

    /// The step of an activity, by its group, else by its begin.
    pub(crate) fn step(&self, event: &DeviceEvent) -> Option<i64> {
        let by_time = || step_at(self.steps.get(&event.device)?, event.ts);
        self.step_of_group(event.step_group).or_else(by_time)
    }

    /// The number of the name of the program that ran when an activity began.
    pub(crate) fn program(&self, event: &DeviceEvent) -> Option<u32> {
        let programs = self.programs.get(&event.device)?;
        let before = programs.partition_point(|program| program.ts <= event.ts);
        let program = programs.get(before.checked_sub(1)?)?;
        (event.ts < program.end || event.ts == program.ts).then_some(program.name)
    }

    /// The numbers of all steps.
    pub(crate) fn step_numbers(&self) -> impl Iterator<Item = i64> {
        self.steps.values().flatten().map(|step| step.number)
    }
}
