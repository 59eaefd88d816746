//! Process ids that are unique in a run.
//!
//! Processes of two hosts may have the same id: in containers it is often a small number. Where they have, the ids of later hosts
//! are raised by more than any id, so that a query can tell processes apart by the id alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use probe_query::relations;

use crate::replaced_tables::replace_tables;

/// More than any process id of Linux (`PID_MAX_LIMIT` in its `include/linux/threads.h`).
const PIDS_OF_A_HOST: i64 = 1 << 22;

/// Tables and views whose rows belong to a process.
static OF_PROCESSES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let has = |table: &probe_proto::table::Table, name: &str| table.all_columns().any(|column| column.name == name);
    let of_processes = relations().filter(|table| has(table, "host") && has(table, "pid"));
    of_processes.map(probe_proto::table::Table::full_name).collect()
});

/// By how much the process ids of each host are raised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UniquePids {
    /// Empty where ids are unique as they are. The first host's are not raised.
    raised: BTreeMap<String, i64>,
}

impl UniquePids {
    /// Makes the ids of these processes, each a host and an id, unique.
    pub(crate) fn of<'a>(processes: impl Iterator<Item = (&'a str, i64)>) -> Self {
        let processes: BTreeSet<(&str, i64)> = processes.collect();
        let pids: BTreeSet<i64> = processes.iter().map(|(_, pid)| *pid).collect();
        if pids.len() == processes.len() {
            return Self::default();
        }
        let hosts: BTreeSet<&str> = processes.iter().map(|(host, _)| *host).collect();
        let raised = hosts.into_iter().zip(0..).skip(1);
        Self { raised: raised.map(|(host, number)| (host.to_owned(), number * PIDS_OF_A_HOST)).collect() }
    }

    /// The unique id of a process.
    pub(crate) fn pid(&self, host: &str, pid: i64) -> i64 {
        pid + self.raised.get(host).copied().unwrap_or(0)
    }

    /// `sql` with unique ids in all tables.
    pub(crate) fn rewrite(&self, sql: &str) -> String {
        if self.raised.is_empty() {
            return sql.to_owned();
        }
        let raised = self.raised.iter();
        let raised = raised.map(|(host, by)| format!("WHEN '{}' THEN {by}", host.replace('\'', "''")));
        let by = format!("CASE host {} ELSE 0 END", raised.collect::<Vec<_>>().join(" "));
        replace_tables(sql, &OF_PROCESSES, |table| format!("(SELECT * REPLACE (pid + {by} AS pid) FROM {table})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_ids_stay_as_they_are() {
        let pids = UniquePids::of([("a", 7), ("b", 8), ("a", 9)].into_iter());
        assert_eq!(pids.pid("b", 8), 8);
        assert_eq!(pids.rewrite("SELECT pid FROM python.steps"), "SELECT pid FROM python.steps");
    }

    #[test]
    fn ids_of_later_hosts_are_raised() {
        let pids = UniquePids::of([("b's", 7), ("a", 7), ("a", 9)].into_iter());
        assert_eq!([pids.pid("a", 7), pids.pid("a", 9), pids.pid("b's", 7)], [7, 9, PIDS_OF_A_HOST + 7]);
        assert_eq!(
            pids.rewrite("SELECT 1 FROM python.steps AS s, gpu.no_table"),
            "SELECT 1 FROM (SELECT * REPLACE (pid + CASE host WHEN 'b''s' THEN 4194304 ELSE 0 END AS pid) \
             FROM python.steps) AS s, gpu.no_table"
        );
    }
}
