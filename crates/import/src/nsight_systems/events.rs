//! The events of one process, table by table, as the records that every capture is sorted by.

use std::collections::HashMap;

use probe_common::error::Result;
use rusqlite::Row;

use super::activities::{call_name, copy_name, set_name, wait_name};
use super::database::{Database, ReadProblem, integer};
use super::names::StringsByNumber;
use super::range_text::RangeText;
use super::tables;
use crate::blank_records::{DeviceActivity, device_event, host_event};
use crate::collect::{CollectedEvents, TEXT_REFUSED};
use crate::kinds;
use crate::range_patterns::{ModuleRange, RangePatterns};
use crate::records::{DeviceEvent, HostEvent, Launch, UNKNOWN, device, host};
use crate::step_ranges::StepRanges;

/// Most nanoseconds either way, so that sums and differences stay within 64 bits.
const MAX_TIME: u64 = i64::MAX as u64 / 4;
/// Rows between two reports of progress.
const REPORT: u64 = 4096;

/// The stream of waits for a whole context.
const WHOLE_CONTEXT: i64 = u32::MAX as i64;

/// Types of NVTX events.
mod nvtx {
    pub(super) const MARK: i64 = 34;
    pub(super) const PUSH_POP: i64 = 59;
    pub(super) const START_END: i64 = 60;
}

/// Reads the events of a process.
pub(crate) struct DatabaseEvents<'a> {
    database: &'a Database,
    names: StringsByNumber<'a>,
    steps: StepRanges,
    modules: Option<&'a ModuleRange>,
    /// The key of the process; None where all rows belong to it.
    process: Option<Option<i64>>,
    threads: HashMap<i64, Option<u32>>,
    pub collected: CollectedEvents,
    progress: &'a mut dyn FnMut(u64),
}

/// Columns that all activities of devices have.
const ACTIVITY: [&str; 5] = ["start", "end", "deviceId", "streamId", "correlationId"];

impl<'a> DatabaseEvents<'a> {
    pub(crate) fn new(
        database: &'a Database,
        collected: CollectedEvents,
        process: Option<Option<i64>>,
        ranges: &'a RangePatterns,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (names, steps) = (StringsByNumber::new(database), StepRanges::new(ranges.steps.as_ref()));
        Self {
            database,
            names,
            steps,
            modules: ranges.modules.as_ref(),
            process,
            threads: HashMap::new(),
            collected,
            progress,
        }
    }

    /// Reads all tables. What stopped a table is in `collected.problem`, and the others are still read.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn read(mut self) -> Result<CollectedEvents> {
        for (table, process_column) in tables::EVENTS {
            let stopped = match *table {
                tables::KERNELS => self.kernels(process_column)?,
                tables::CALLS => self.calls(process_column)?,
                tables::RANGES => self.ranges(process_column)?,
                _ => self.others(table, process_column)?,
            };
            self.collected.problem = self.collected.problem.take().or(stopped);
        }
        self.collected.steps = self.steps.finish();
        if self.collected.texts.refused > 0 {
            self.collected.leave_out(TEXT_REFUSED, self.collected.texts.refused);
        }
        Ok(self.collected)
    }

    fn scan(
        &mut self,
        table: &str,
        process_column: &str,
        columns: &[&str],
        each: &mut dyn FnMut(&mut Self, &Row<'_>) -> Result<()>,
    ) -> Result<ReadProblem> {
        let (database, process) = (self.database, self.process.map(|process| (process_column, process)));
        database.scan(table, columns, process, &mut |row| {
            self.collected.events += 1;
            if self.collected.events.is_multiple_of(REPORT) {
                (self.progress)(self.collected.events);
            }
            each(self, row)
        })
    }

    /// Begin and end of a row's event; a row without a time is counted and gives None.
    fn interval(&mut self, row: &Row<'_>) -> Option<(i64, i64)> {
        let time = |column: usize| integer(row, column).filter(|time| time.unsigned_abs() <= MAX_TIME);
        let (Some(ts), Some(end)) = (time(0), time(1)) else {
            self.collected.leave_out("without a time", 1);
            return None;
        };
        let end = end.max(ts);
        self.collected.widen(ts, end);
        Some((ts, end))
    }

    fn activity(&mut self, row: &Row<'_>) -> Option<DeviceActivity> {
        let (ts, end) = self.interval(row)?;
        let number = |column: usize| integer(row, column).unwrap_or(UNKNOWN);
        let stream = if number(3) == WHOLE_CONTEXT { -1 } else { number(3) };
        let correlation = integer(row, 4).filter(|correlation| *correlation != 0).unwrap_or(UNKNOWN);
        Some(DeviceActivity { ts, end, device: number(2), stream, correlation })
    }

    fn kernels(&mut self, process_column: &str) -> Result<ReadProblem> {
        const MORE: [&str; 13] = [
            "demangledName",
            "shortName",
            "mangledName",
            "registersPerThread",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "staticSharedMemory",
            "dynamicSharedMemory",
            "graphNodeId",
        ];
        let columns: Vec<&str> = ACTIVITY.into_iter().chain(MORE).collect();
        self.scan(tables::KERNELS, process_column, &columns, &mut |events, row| {
            let Some(activity) = events.activity(row) else { return Ok(()) };
            let more = |column: usize| integer(row, ACTIVITY.len() + column);
            let name = events.first_name(&[more(0), more(1), more(2)]);
            let list = |column: usize| {
                let [Some(x), Some(y), Some(z)] = [more(column), more(column + 1), more(column + 2)] else {
                    return None;
                };
                Some(format!("[{x},{y},{z}]"))
            };
            let shared = more(10).zip(more(11)).and_then(|(a, b)| a.checked_add(b));
            let texts = &mut events.collected.texts;
            let event = DeviceEvent {
                grid: texts.optional(list(4).as_deref()),
                block: texts.optional(list(7).as_deref()),
                registers: more(3).unwrap_or(UNKNOWN),
                shared_memory: shared.unwrap_or(UNKNOWN),
                communication: u8::from(kinds::is_communication(&name)),
                graph: u8::from(more(12).is_some_and(|node| node != 0)),
                ..device_event(&activity, device::KERNEL)
            };
            events.push(event, &name)
        })
    }

    /// Copies, sets, waits, and CUDA graphs that were recorded as a whole.
    fn others(&mut self, table: &str, process_column: &str) -> Result<ReadProblem> {
        const MORE: [&str; 7] = ["bytes", "copyKind", "srcKind", "dstKind", "memKind", "syncType", "graphId"];
        let columns: Vec<&str> = ACTIVITY.into_iter().chain(MORE).collect();
        self.scan(table, process_column, &columns, &mut |events, row| {
            let Some(activity) = events.activity(row) else { return Ok(()) };
            let more = |column: usize| integer(row, ACTIVITY.len() + column);
            let (kind, name) = match table {
                tables::COPIES => (device::MEMCPY, copy_name(more(1), more(2), more(3))),
                tables::SETS => (device::MEMSET, set_name(more(4))),
                tables::WAITS => (device::SYNC, wait_name(more(5)).to_owned()),
                _ => (device::GRAPH, more(6).map_or_else(|| "CUDA graph".to_owned(), |id| format!("CUDA graph {id}"))),
            };
            let bytes = more(0).filter(|bytes| *bytes >= 0 && kind != device::SYNC);
            let duration = activity.end - activity.ts;
            let bandwidth = bytes.filter(|_| duration > 0).map(|bytes| bytes as f64 / duration as f64);
            let event = DeviceEvent {
                bytes: bytes.unwrap_or(UNKNOWN),
                bandwidth: bandwidth.unwrap_or(f64::NAN),
                graph: u8::from(kind == device::GRAPH),
                ..device_event(&activity, kind)
            };
            events.push(event, &name)
        })
    }

    fn push(&mut self, event: DeviceEvent, name: &str) -> Result<()> {
        self.collected.has_devices |= event.kind != device::SYNC;
        let name = self.collected.texts.number(name);
        self.collected.devices.push(DeviceEvent { name, ..event })
    }

    fn calls(&mut self, process_column: &str) -> Result<ReadProblem> {
        let columns = ["start", "end", "globalTid", "correlationId", "nameId"];
        self.scan(tables::CALLS, process_column, &columns, &mut |events, row| {
            let Some(thread) = events.thread(integer(row, 2)) else { return Ok(()) };
            let Some((ts, end)) = events.interval(row) else { return Ok(()) };
            let name = events.first_name(&[integer(row, 4)]);
            let (name, number) = (call_name(&name), events.collected.events as i64);
            let correlation = integer(row, 3).filter(|correlation| *correlation != 0);
            let event =
                HostEvent { id: correlation.unwrap_or(UNKNOWN), ..host_event(thread, host::LAUNCH, ts, end, number) };
            events.push_host(event, name)?;
            if let Some(correlation) = correlation {
                let graph = u8::from(name.contains("GraphLaunch"));
                events.collected.launches.push(Launch { correlation, thread, ts, end, number, graph })?;
            }
            Ok(())
        })
    }

    fn ranges(&mut self, process_column: &str) -> Result<ReadProblem> {
        let columns = ["start", "end", "eventType", "globalTid", "text", "textId"];
        self.scan(tables::RANGES, process_column, &columns, &mut |events, row| {
            let kind = match integer(row, 2) {
                Some(nvtx::PUSH_POP) => host::ANNOTATION,
                Some(nvtx::START_END) => host::LOOSE_RANGE,
                Some(nvtx::MARK) => {
                    events.collected.leave_out("NVTX mark", 1);
                    return Ok(());
                }
                _ => {
                    events.collected.leave_out("NVTX name of a thread, category or domain", 1);
                    return Ok(());
                }
            };
            if integer(row, 1).is_none() {
                events.collected.leave_out("NVTX range without an end", 1);
                return Ok(());
            }
            let Some(thread) = events.thread(integer(row, 3)) else { return Ok(()) };
            let Some((ts, end)) = events.interval(row) else { return Ok(()) };
            let text = match events.database.text(row, 4) {
                Some(text) => text.into_owned(),
                None => events.first_name(&[integer(row, 5)]),
            };
            let range = RangeText::of(&text);
            let is_operator = range.is_operator && kind == host::ANNOTATION;
            let number = events.collected.events as i64;
            let texts = &mut events.collected.texts;
            let event = HostEvent {
                external_id: range.op_id.unwrap_or(UNKNOWN),
                id: range.sequence.filter(|sequence| *sequence >= 0).unwrap_or(UNKNOWN),
                shapes: texts.optional(range.sizes),
                ..host_event(thread, if is_operator { host::OPERATOR } else { kind }, ts, end, number)
            };
            let name = if is_operator { range.name } else { &text };
            let named = texts.number(name);
            events.steps.add(named, name, ts, end);
            if kind == host::ANNOTATION && !is_operator {
                events.push_module((thread, ts, end, number), name)?;
            }
            events.push_host(event, name)
        })
    }

    /// Takes a range as the call of a module too, where it is one.
    fn push_module(&mut self, (thread, ts, end, number): (u32, i64, i64, i64), text: &str) -> Result<()> {
        let module = match self.modules {
            Some(pattern) => pattern.name(text),
            None => kinds::module_name(text),
        };
        let Some(module) = module else { return Ok(()) };
        self.collected.threads[thread as usize].has_modules = true;
        let name = format!("{}{module}", kinds::MODULE_PREFIX);
        self.push_host(host_event(thread, host::MODULE, ts, end, number), &name)
    }

    fn push_host(&mut self, event: HostEvent, name: &str) -> Result<()> {
        let name = self.collected.texts.number(name);
        self.collected.host.push(HostEvent { name, ..event })
    }

    /// The first of the strings that the file has.
    fn first_name(&mut self, ids: &[Option<i64>]) -> String {
        let found = ids.iter().flatten().find_map(|id| self.names.get(*id));
        found.map_or_else(|| "(no name in the file)".to_owned(), |name| name.to_string())
    }

    /// The thread of a global id; one past the limit is counted and gives None. Rows without a thread share one of their own.
    fn thread(&mut self, id: Option<i64>) -> Option<u32> {
        let number = id.map_or(-1, |id| id & 0xff_ffff);
        let collected = &mut self.collected;
        let thread = *self.threads.entry(number).or_insert_with(|| collected.thread("", &number.to_string()));
        if thread.is_none() {
            collected.leave_out("past the number of threads", 1);
        }
        thread
    }
}
