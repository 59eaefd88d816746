//! What can be set while training runs, and what is in force.

use std::collections::BTreeMap;
use std::sync::Mutex;

use probe_proto::config::{self, Detail};

use crate::recording;
use crate::shared::lock;

/// Key to value in force; keys that nobody has set are at their default.
static SET: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Checks all of `values`, then applies them; the error says what is allowed, and then nothing was applied.
pub fn apply<'a>(values: impl IntoIterator<Item = (&'a String, &'a String)> + Clone) -> Result<(), String> {
    for (key, value) in values.clone() {
        config::check(key, value)?;
    }
    for (key, value) in values {
        if key == config::DETAIL
            && let Some(detail) = Detail::parse(value)
        {
            recording::set_detail(detail);
        }
        lock(&SET).insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Every key with the value in force.
pub fn in_force() -> BTreeMap<String, String> {
    let set = lock(&SET);
    let value = |key: &config::Key| set.get(key.name).cloned().unwrap_or_else(|| key.values[0].to_owned());
    config::KEYS.iter().map(|key| (key.name.to_owned(), value(key))).collect()
}
