//! Values that a pickle stores to refer to them again.

use std::collections::HashMap;

use super::heap::Value;

/// Values by their numbers, which count up from 0 in what picklers write.
#[derive(Debug, Default)]
pub(super) struct PickleMemo {
    dense: Vec<Value>,
    others: HashMap<u32, Value>,
}

impl PickleMemo {
    pub(super) fn len(&self) -> usize {
        self.dense.len() + self.others.len()
    }

    pub(super) fn get(&self, key: u32) -> Option<Value> {
        self.dense.get(key as usize).or_else(|| self.others.get(&key)).copied()
    }

    pub(super) fn set(&mut self, key: u32, value: Value) {
        if let Some(slot) = self.dense.get_mut(key as usize) {
            *slot = value;
        } else if key as usize == self.dense.len() && !self.others.contains_key(&key) {
            self.dense.push(value);
        } else {
            self.others.insert(key, value);
        }
    }
}
