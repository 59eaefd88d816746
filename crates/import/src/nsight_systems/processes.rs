//! The processes that an export has events of, and their ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use probe_common::error::Result;

use super::database::{Database, Stopped, integer};
use super::tables;
use crate::metadata::rank_in_name;

/// Processes of a file; those past it are counted.
const MAX_PROCESSES: usize = 64;
/// Devices that are told apart.
const MAX_DEVICES: usize = 64;

/// A process with events.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub rows: u64,
    /// Devices that its kernels ran on.
    devices: BTreeSet<i64>,
}

/// All of them, by the part of their global ids that says the process; None is that of rows which do not say.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    pub found: BTreeMap<Option<i64>, Process>,
    /// Rows of processes past the number that is followed.
    pub past: u64,
    pub problem: Stopped,
}

/// The process that a key stands for.
pub(crate) fn pid(key: Option<i64>) -> i32 {
    // 24 bits of the machine, 24 of the process, 24 of the thread, which is shifted away.
    key.map_or(-1, |key| (key & 0xff_ffff) as i32)
}

impl Processes {
    /// Reads who each event is of.
    ///
    /// # Errors
    /// None of its own.
    pub(crate) fn find(database: &Database) -> Result<Self> {
        let mut processes = Self::default();
        for (table, whose) in tables::EVENTS {
            // Waits and copies can be of the device of another process.
            let device = if *table == tables::KERNELS { "deviceId" } else { "" };
            let stopped = database.scan(table, &[whose, device], None, &mut |row| {
                processes.take(integer(row, 0).map(|id| id >> 24), integer(row, 1));
                Ok(())
            })?;
            processes.problem = processes.problem.take().or(stopped);
        }
        // Rows that do not say are those of the only process that there is.
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

    /// The rank of a process, and where it is said: for one process the file's name; for several, each alone on a device, the
    /// number of that.
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
