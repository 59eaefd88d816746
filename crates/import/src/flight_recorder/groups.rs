//! The process groups of a dump: their names and ranks, and the process's progress in each.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::dump::{FlightDump, GroupStatus, MAX_GROUPS};
use super::operation::{FlightOperation, MAX_TEXT};

/// A group, as one process knows it.
#[derive(Debug, Default)]
pub(super) struct ProcessGroup {
    pub name: String,
    pub description: Option<String>,
    /// The process's own number of the group.
    pub number: Option<i64>,
    pub ranks: Option<Vec<i32>>,
    pub status: GroupStatus,
    pub last_seq: Option<i64>,
    pub operations: i64,
    pub pending: i64,
    pub newest: Option<i64>,
}

/// All groups of a dump.
#[derive(Debug)]
pub(super) struct DumpedGroups {
    by_name: BTreeMap<String, ProcessGroup>,
}

impl DumpedGroups {
    pub(super) fn new(
        dump: &FlightDump,
        operations: &[FlightOperation],
        left_out: &mut BTreeMap<Cow<'static, str>, u64>,
    ) -> Self {
        let mut groups = Self { by_name: BTreeMap::new() };
        for operation in operations {
            let Some(group) = groups.group(&operation.group) else { continue };
            group.description = group.description.take().or_else(|| operation.description.clone());
            group.number = operation.entry.pg_id.0;
            group.last_seq = group.last_seq.max(operation.collective_seq);
            group.newest = group.newest.max(Some(operation.created));
            group.operations += 1;
            group.pending += i64::from(operation.pending);
        }
        let only = groups.by_name.keys().next().filter(|_| groups.by_name.len() == 1).cloned();
        for (name, config) in dump.pg_config.iter().flat_map(|config| &config.items) {
            // gloo writes one entry without a name for all its groups: that of the last of them.
            let name = only.as_ref().filter(|_| name.0.is_empty()).unwrap_or(&name.0);
            let Some(group) = groups.group(name) else { continue };
            let description = config.desc.as_ref().map(|desc| &desc.0);
            let description = description.filter(|text| !text.is_empty() && text.len() <= MAX_TEXT);
            group.description = group.description.take().or_else(|| description.cloned());
            group.ranks = config.ranks.as_ref().map(|ranks| ranks.0.clone()).filter(|ranks| !ranks.is_empty());
        }
        groups.take_status(dump, left_out);
        groups
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ProcessGroup> {
        self.by_name.values()
    }

    /// Ranks of the default group.
    pub(super) fn world_size(&self) -> Option<i32> {
        let default = self.iter().find(|group| group.description.as_deref() == Some("default_pg"))?;
        i32::try_from(default.ranks.as_ref()?.len()).ok()
    }

    /// The group with this name; None where the name is empty or too long, or there are too many groups.
    fn group(&mut self, name: &str) -> Option<&mut ProcessGroup> {
        if name.is_empty() || name.len() > MAX_TEXT {
            return None;
        }
        if self.by_name.len() >= MAX_GROUPS && !self.by_name.contains_key(name) {
            return None;
        }
        let new = || ProcessGroup { name: name.to_owned(), ..ProcessGroup::default() };
        Some(self.by_name.entry(name.to_owned()).or_insert_with(new))
    }

    /// Adds the status of groups, which is by number.
    fn take_status(&mut self, dump: &FlightDump, left_out: &mut BTreeMap<Cow<'static, str>, u64>) {
        let more = dump.pg_config.as_ref().map_or(0, |config| config.more)
            + dump.pg_status.as_ref().map_or(0, |status| status.more);
        if more > 0 {
            left_out.insert("past the number of groups".into(), more);
        }
        let statuses: BTreeMap<i64, GroupStatus> = dump
            .pg_status
            .iter()
            .flat_map(|status| &status.items)
            .filter_map(|(name, status)| Some((name.0.parse().ok()?, *status)))
            .collect();
        if let Some(inferred) = self.in_order_of_making(dump, &statuses) {
            for (name, number) in inferred {
                if let Some(group) = self.by_name.get_mut(&name) {
                    group.number = Some(number);
                }
            }
        }
        let mut used = BTreeSet::new();
        for group in self.by_name.values_mut() {
            let Some((number, status)) = group.number.and_then(|number| statuses.get_key_value(&number)) else {
                continue;
            };
            group.status = *status;
            used.insert(*number);
        }
        let unnamed = statuses.len().saturating_sub(used.len()) as u64;
        if unnamed > 0 {
            left_out.insert("status of a group whose name is not known".into(), unnamed);
        }
    }

    /// The number of each group, by the order in which they were made: names that are numbers count groups of the whole job, and
    /// the process counts its own. None where the lists differ in length, or operations show other numbers.
    fn in_order_of_making(
        &self,
        dump: &FlightDump,
        statuses: &BTreeMap<i64, GroupStatus>,
    ) -> Option<Vec<(String, i64)>> {
        let config = &dump.pg_config.as_ref()?.items;
        let mut names: Vec<(u64, &str)> =
            config.keys().map(|name| Some((name.0.parse().ok()?, name.0.as_str()))).collect::<Option<_>>()?;
        names.sort_unstable();
        if names.len() != statuses.len() {
            return None;
        }
        let inferred: BTreeMap<&str, i64> = names.iter().map(|(_, name)| *name).zip(statuses.keys().copied()).collect();
        let agrees = |group: &ProcessGroup| {
            group.number.is_none_or(|number| inferred.get(group.name.as_str()).is_none_or(|other| *other == number))
        };
        let all_agree = self.by_name.values().all(agrees);
        all_agree.then(|| inferred.into_iter().map(|(name, number)| (name.to_owned(), number)).collect())
    }
}
