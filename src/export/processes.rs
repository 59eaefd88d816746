//! The processes of a run, and how their clocks are put on one axis.

use std::collections::BTreeMap;

use probe_client::Client;
use probe_common::error::{Error, Result};

use super::row::each;

/// A process of a run, or a trace that was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedProcess {
    /// The host that it ran on.
    pub(crate) host: String,
    /// The process id on that host.
    pub(crate) pid: i64,
    /// The rank.
    pub(crate) rank: Option<i64>,
    /// Ranks of the run.
    pub(crate) world_size: Option<i64>,
    /// The capture that it was imported from.
    pub(crate) capture: Option<String>,
    /// Added to the times of the process (ns).
    pub(crate) shift: i64,
    /// Whether its times are from an instant that is not known.
    pub(crate) is_relative: bool,
    /// When its first event began, where it was imported (ns).
    pub(super) first: Option<i64>,
}

impl RecordedProcess {
    /// The name of the process, for people.
    pub(crate) fn name(&self) -> String {
        let rank = self.rank.map_or_else(|| "process".to_owned(), |rank| format!("rank {rank}"));
        match &self.capture {
            Some(capture) => format!("{rank} ({capture})"),
            None => format!("{rank} ({}, pid {})", self.host, self.pid),
        }
    }

    /// The condition for the rows of this process, in SQL.
    pub(super) fn condition(&self) -> String {
        format!("pid = {} AND host = '{}'", self.pid, self.host.replace('\'', "''"))
    }
}

/// Checks that the run has all of `ranks`.
///
/// # Errors
/// A rank is missing.
pub(super) fn check_ranks(name: &str, processes: &[RecordedProcess], ranks: &[i64]) -> Result<()> {
    let mut known: Vec<i64> = processes.iter().filter_map(|process| process.rank).collect();
    known.sort_unstable();
    known.dedup();
    let Some(unknown) = ranks.iter().find(|rank| !known.contains(rank)) else { return Ok(()) };
    let hint = match (known.first(), known.last()) {
        (Some(first), Some(last)) if (last - first) as usize + 1 == known.len() && first < last => {
            format!("it has ranks {first} to {last}")
        }
        (Some(_), Some(_)) => {
            let listed: Vec<String> = known.iter().map(i64::to_string).collect();
            format!("it has rank {}", listed.join(", "))
        }
        _ => "none of its processes has a rank: leave --rank out".to_owned(),
    };
    Err(Error::usage(format!("{name} has no rank {unknown}")).hint(hint))
}

/// The processes of the run, and the traces that were imported.
pub(super) async fn processes(client: &mut Client) -> Result<Vec<RecordedProcess>> {
    let mut found: BTreeMap<(Option<i64>, String, i64, Option<String>), RecordedProcess> = BTreeMap::new();
    let mut add = |process: RecordedProcess| {
        let key = (process.rank, process.host.clone(), process.pid, process.capture.clone());
        found.entry(key).or_insert(process);
    };
    let mut agents = Vec::new();
    let sql = "SELECT host, pid, rank, world_size, clock_offset FROM probe.agents";
    each(client, sql, |row| {
        let (Some(host), Some(pid)) = (row.text(0), row.int(1)) else { return };
        agents.push((host.to_owned(), pid));
        add(RecordedProcess {
            host: host.to_owned(),
            pid,
            rank: row.int(2),
            world_size: row.int(3),
            capture: None,
            shift: row.float(4).map_or(0, |offset| -(offset * 1e9) as i64),
            is_relative: false,
            first: None,
        });
    })
    .await?;
    let sql = "SELECT host, pid, rank, world_size, capture, clock, CAST(ts AS BIGINT) FROM python.captures";
    each(client, sql, |row| {
        let (Some(host), Some(pid)) = (row.text(0), row.int(1)) else { return };
        if agents.iter().any(|(agent_host, number)| agent_host == host && *number == pid) {
            return;
        }
        add(RecordedProcess {
            host: host.to_owned(),
            pid,
            rank: row.int(2),
            world_size: row.int(3),
            capture: row.text(4).map(str::to_owned),
            shift: 0,
            is_relative: row.text(5) == Some("relative"),
            first: row.int(6),
        });
    })
    .await?;
    Ok(found.into_values().collect())
}

/// Puts clocks on one axis. Processes of one host have one clock, and their offsets differ by how long their reports took:
/// the largest offset has the least of that. With one host there is nothing to align.
pub(super) fn align(processes: &mut [RecordedProcess]) {
    let mut offsets: BTreeMap<String, i64> = BTreeMap::new();
    for process in processes.iter().filter(|process| process.capture.is_none()) {
        let least = offsets.entry(process.host.clone()).or_insert(process.shift);
        *least = (*least).min(process.shift);
    }
    let is_one = offsets.len() < 2;
    for process in processes.iter_mut().filter(|process| process.capture.is_none()) {
        process.shift = if is_one { 0 } else { offsets[&process.host] };
    }
    // A trace whose times are from no known instant begins with the first of the others.
    let begins = processes.iter().filter(|process| !process.is_relative).filter_map(|process| process.first).min();
    for process in processes.iter_mut().filter(|process| process.is_relative) {
        if let Some((begins, first)) = begins.zip(process.first) {
            process.shift = begins - first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host: &str, rank: i64, shift: i64) -> RecordedProcess {
        RecordedProcess {
            host: host.to_owned(),
            pid: 100 + rank,
            rank: Some(rank),
            world_size: None,
            capture: None,
            shift,
            is_relative: false,
            first: None,
        }
    }

    #[test]
    fn a_host_has_one_clock_and_the_report_that_was_fastest_says_how_it_differs() {
        // Offsets of 5, 2 and 9 were measured, less what their reports took.
        let mut several = [process("a", 0, -5), process("a", 1, -2), process("b", 2, -9)];
        align(&mut several);
        assert_eq!(several.map(|process| process.shift), [-5, -5, -9]);
        let mut one = [process("a", 0, -5), process("a", 1, -2)];
        align(&mut one);
        assert_eq!(one.map(|process| process.shift), [0, 0]);
    }

    #[test]
    fn traces_without_a_date_begin_with_the_first_of_those_that_have_one() {
        let trace = |capture: &str, is_relative, first| RecordedProcess {
            capture: Some(capture.to_owned()),
            is_relative,
            first: Some(first),
            ..process("unknown", 0, 0)
        };
        let mut traces = [trace("a", false, 7000), trace("b", true, 30), trace("c", false, 9000)];
        align(&mut traces);
        assert_eq!(traces.map(|process| process.shift), [0, 6970, 0]);
        let mut relative = [trace("a", true, 50), trace("b", true, 30)];
        align(&mut relative);
        assert_eq!(relative.map(|process| process.shift), [0, 0]);
    }
}
