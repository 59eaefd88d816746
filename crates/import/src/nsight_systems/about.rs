//! What an export says about itself and the machine.

use std::collections::{BTreeMap, BTreeSet};

use probe_common::error::Result;
use serde_json::Value;

use super::database::{Database, integer};

/// Names of devices, and entries about the machine, that are kept.
const MAX_ENTRIES: usize = 1024;
/// What a start may be, so that no sum overflows (nanoseconds).
const MAX_START: i64 = i64::MAX / 4;

/// Entries that are versions: where they are, their name there, and here.
const VERSIONS: &[(&str, &str)] = &[
    ("EXPORT_PRODUCT_VERSION", "nsight_systems"),
    ("EXPORT_SCHEMA_VERSION", "schema"),
    ("CudaDriverVersion", "cuda_driver"),
    ("NvDriverVersion", "nvidia_driver"),
];

/// What is known of a file as a whole.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// When the session began (nanoseconds from 1970), which all times are from.
    pub start: Option<i64>,
    pub host: Option<String>,
    pub devices: BTreeSet<String>,
    pub versions: BTreeMap<&'static str, Value>,
}

impl About {
    /// Reads it. What can't be read is not known.
    ///
    /// # Errors
    /// None of its own.
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

    /// Versions in JSON.
    pub(crate) fn versions(&self) -> Option<String> {
        (!self.versions.is_empty()).then(|| serde_json::to_string(&self.versions).unwrap_or_default())
    }

    /// Names of devices in one text.
    pub(crate) fn devices(&self) -> Option<String> {
        let names: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}
