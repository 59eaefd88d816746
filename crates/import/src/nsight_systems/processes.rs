//! The processes that an export has events of, and their ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use probe_common::error::Result;

use super::database::{Database, ReadProblem, integer};
use super::tables;
use crate::metadata::rank_in_name;

/// Most processes of a file; further ones are counted.
const MAX_PROCESSES: usize = 64;
/// Most devices of a process that are remembered.
const MAX_DEVICES: usize = 64;

/// A process with events.
#[derive(Debug, Default)]
pub(crate) struct ProcessEvents {
    pub rows: u64,
    /// Devices that the process's kernels ran on.
    devices: BTreeSet<i64>,
}

/// The processes of an export, by the part of global ids that holds the process; None for rows without it.
#[derive(Debug, Default)]
pub(crate) struct ExportedProcesses {
    pub found: BTreeMap<Option<i64>, ProcessEvents>,
    /// Rows of processes past [`MAX_PROCESSES`].
    pub past: u64,
    pub problem: ReadProblem,
}

/// The process id in a key.
pub(crate) fn pid(key: Option<i64>) -> i32 {
    // 24 bits of the machine, 24 of the process, 24 of the thread, which is shifted away.
    key.map_or(-1, |key| (key & 0xff_ffff) as i32)
}

impl ExportedProcesses {
    /// Reads the process of each event.
    ///
    /// # Errors
    /// None at present.
    pub(crate) fn find(database: &Database) -> Result<Self> {
        let mut processes = Self::default();
        for (table, process_column) in tables::EVENTS {
            // Waits and copies can be of the device of another process.
            let device = if *table == tables::KERNELS { "deviceId" } else { "" };
            let stopped = database.scan(table, &[process_column, device], None, &mut |row| {
                processes.take(integer(row, 0).map(|id| id >> 24), integer(row, 1));
                Ok(())
            })?;
            processes.problem = processes.problem.take().or(stopped);
        }
        // Rows without a process belong to the only process, where there is one.
        if processes.found.len() == 2
            && let Some(unsaid) = processes.found.remove(&None)
            && let Some(only) = processes.found.values_mut().next()
        {
            only.rows += unsaid.rows;
        }
        Ok(processes)
    }

    fn take(&mut self, key: Option<i64>, device: Option<i64>) {
        if !self.found.contains_key(&key) && self.found.len() >= MAX_PROCESSES {
            self.past += 1;
            return;
        }
        let process = self.found.entry(key).or_default();
        process.rows += 1;
        if let Some(device) = device
            && process.devices.len() < MAX_DEVICES
        {
            process.devices.insert(device);
        }
    }

    /// The rank of a process, and the source of that: for one process the file's name; for several, each alone on a device, the
    /// number of the device.
    pub(crate) fn rank(&self, key: Option<i64>, path: &Path) -> (Option<i32>, &'static str) {
        let in_name = || rank_in_name(path.file_name()?.to_str()?);
        if self.found.len() == 1 {
            return in_name().map_or((None, "none"), |rank| (Some(rank), "name"));
        }
        let with_devices = self.found.values().filter(|process| !process.devices.is_empty());
        let (mut devices, mut alone) = (BTreeSet::new(), true);
        for process in with_devices {
            alone &= process.devices.len() == 1 && process.devices.iter().all(|device| devices.insert(*device));
        }
        let own = self.found.get(&key).and_then(|process| process.devices.first());
        match own.and_then(|device| i32::try_from(*device).ok()) {
            Some(device) if alone => (Some(device), "device"),
            _ => (None, "none"),
        }
    }
}
