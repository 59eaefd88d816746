//! Facts of an export about itself and the machine.

use std::collections::{BTreeMap, BTreeSet};

use probe_common::error::Result;
use serde_json::Value;

use super::database::{Database, integer};

/// Most names of devices, and most entries about the machine, that are kept.
const MAX_ENTRIES: usize = 1024;
/// Largest start, so that no sum overflows (nanoseconds).
const MAX_START: i64 = i64::MAX / 4;

/// Entries that are versions: their name in the export, and the name here.
const VERSIONS: &[(&str, &str)] = &[
    ("EXPORT_PRODUCT_VERSION", "nsight_systems"),
    ("EXPORT_SCHEMA_VERSION", "schema"),
    ("CudaDriverVersion", "cuda_driver"),
    ("NvDriverVersion", "nvidia_driver"),
];

/// Facts of a file as a whole.
#[derive(Debug, Default)]
pub(crate) struct FileFacts {
    /// The begin of the session (nanoseconds from 1970), from which all times count.
    pub start: Option<i64>,
    pub host: Option<String>,
    pub devices: BTreeSet<String>,
    pub versions: BTreeMap<&'static str, Value>,
}

impl FileFacts {
    /// Reads the facts. Those that can't be read are not known.
    ///
    /// # Errors
    /// None at present.
    pub(crate) fn read(database: &Database) -> Result<Self> {
        let mut about = Self::default();
        database.scan("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], None, &mut |row| {
            about.start = about.start.or(integer(row, 0)).filter(|start| (1..=MAX_START).contains(start));
            Ok(())
        })?;
        for table in ["EXPORT_META_DATA", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"] {
            database.scan(table, &["name", "value"], None, &mut |row| {
                let (Some(name), Some(value)) = (database.text(row, 0), database.text(row, 1)) else { return Ok(()) };
                if value.is_empty() || value.len() > 256 {
                    return Ok(());
                }
                if name == "Hostname" {
                    about.host.get_or_insert(value.to_string());
                } else if let Some((_, here)) = VERSIONS.iter().find(|(there, _)| *there == name) {
                    about.versions.insert(here, Value::from(&*value));
                }
                Ok(())
            })?;
        }
        database.scan("TARGET_INFO_GPU", &["name"], None, &mut |row| {
            if let Some(name) = database.text(row, 0).filter(|name| name.len() <= 256)
                && about.devices.len() < MAX_ENTRIES
            {
                about.devices.insert(name.into_owned());
            }
            Ok(())
        })?;
        Ok(about)
    }

    /// Versions as JSON.
    pub(crate) fn versions(&self) -> Option<String> {
        (!self.versions.is_empty()).then(|| serde_json::to_string(&self.versions).unwrap_or_default())
    }

    /// Names of devices, with commas.
    pub(crate) fn devices(&self) -> Option<String> {
        let names: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}
