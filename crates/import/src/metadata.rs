//! What a trace says about itself beside its events.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::number::quantity;

/// Longest value that is looked at (bytes); lists of devices and groups are far smaller.
const MAX_VALUE: usize = 4 << 20;

/// Metadata at the top level of the file.
#[derive(Debug, Default)]
pub(crate) struct TraceMetadata {
    /// The base that times are added to (nanoseconds from 1970).
    pub base: Option<i64>,
    pub rank: Option<i32>,
    pub world_size: Option<i32>,
    pub host: Option<String>,
    pub devices: BTreeSet<String>,
    pub versions: BTreeMap<String, Value>,
}

impl TraceMetadata {
    /// Takes the value of a top-level key, if the key is known.
    pub(crate) fn add(&mut self, key: &str, text: &[u8]) {
        if text.len() > MAX_VALUE {
            return;
        }
        let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
        match key {
            "baseTimeNanoseconds" => self.base = whole(&value),
            "host_name" => self.host = value.as_str().map(str::to_owned),
            "distributedInfo" => {
                let number = |name: &str| value.get(name).and_then(whole).and_then(|value| i32::try_from(value).ok());
                self.rank = number("rank").filter(|rank| *rank >= 0);
                self.world_size = number("world_size").filter(|size| *size > 0);
                if let Some(version) = value.get("nccl_version") {
                    self.versions.insert("nccl".into(), version.clone());
                }
            }
            "deviceProperties" | "computeProperties" => {
                let devices = value.as_array().into_iter().flatten();
                let names = devices.filter_map(|device| device.get("name")?.as_str());
                self.devices.extend(names.take(1024).map(str::to_owned));
            }
            _ if key == "schemaVersion" => drop(self.versions.insert("schema".into(), value)),
            _ if key.ends_with("_version") && (value.is_number() || value.is_string()) && self.versions.len() < 32 => {
                self.versions.insert(key.trim_end_matches("_version").to_owned(), value);
            }
            _ => {}
        }
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

/// A whole number, also one that is written as text.
fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => quantity(text),
        Value::Number(number) => quantity(&number.to_string()),
        _ => None,
    }
}

/// The rank in a file's name: rank-3, rank_3, rank=3, rank3, worker3. The rank on a machine (local_rank3) is another.
pub(crate) fn rank_in_name(name: &str) -> Option<i32> {
    let lower = name.to_ascii_lowercase();
    ["rank", "worker"].iter().find_map(|word| {
        lower.match_indices(word).find_map(|(offset, _)| {
            let before = &lower[..offset];
            if before.ends_with(|c: char| c.is_ascii_alphanumeric())
                || before.trim_end_matches(['-', '_', '.', ' ']).ends_with("local")
            {
                return None;
            }
            let rest = lower[offset + word.len()..].trim_start_matches(['-', '_', '=', '.', ' ']);
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::rank_in_name;

    #[test]
    fn a_rank_in_a_name_is_a_word_of_its_own() {
        for (name, rank) in [
            ("rank3.json", Some(3)),
            ("trace_rank-12.json.gz", Some(12)),
            ("rank=6.json", Some(6)),
            ("rank.7.json", Some(7)),
            ("Rank 9.json", Some(9)),
            ("host_worker2.pt.trace.json", Some(2)),
            ("local_rank2_rank10.json", Some(10)),
            ("local_rank2.json", None),
            ("localrank2.json", None),
            ("frank5.json", None),
            ("coworker2.json", None),
            ("ranks.json", None),
        ] {
            assert_eq!(rank_in_name(name), rank, "{name}");
        }
    }
}
