//! The facts of collectives that agents recorded.

use std::collections::{BTreeMap, BTreeSet};

use probe_client::Client;
use probe_common::error::Result;

use super::facts::{CollectiveCompletion, FactSource, HangFacts, IssuedCollective, ProcessGroup};
use crate::small_rows::{AnswerRow, rows};

/// An operation whose completion is not seen (NCCL's) may have finished if it was not issued so long (ns) before the process ended.
const NOT_SEEN: i64 = 10_000_000_000;
/// How many operations of a group are compared from the newest one on that all its ranks have issued.
const COMPARED: i64 = 4;
/// Groups that are asked for together.
const MAX_GROUPS: usize = 100;
/// The most operations of those groups that are read.
const MAX_OPERATIONS: usize = 200_000;

/// A process of a rank.
struct RankProcess {
    host: String,
    pid: i64,
    /// When it ended, or was last heard of (ns since 1970).
    over: i64,
}

/// Asks for the facts of the newest process of each rank that had connected by `before` (ns since 1970).
///
/// # Errors
/// The queries'.
pub(super) async fn ask(client: &mut Client, before: Option<i64>) -> Result<HangFacts> {
    let mut facts = HangFacts { source: FactSource::Rows, ..HangFacts::default() };
    let processes = RankProcesses::ask(client, before).await?;
    // A rank alone waits for no other rank that is known.
    if processes.of.len() < 2 {
        return Ok(facts);
    }
    facts.ranks = processes.of.keys().map(|rank| (*rank, 1)).collect();
    // What was evicted is older than what is there.
    let sql = "SELECT rank, host, pid FROM probe.drops WHERE table_name = 'python.nccl_trace' AND reason <> 'evicted'";
    facts.partial = rows(client, sql).await?.iter().filter_map(|row| processes.rank(row)).collect();
    let sql = format!(
        "SELECT rank, host, pid, group_name, MAX(seq), MAX(group_size), COUNT(*), \
         COUNT(*) FILTER (WHERE operation_type IN ('send', 'recv')) FROM python.nccl_trace WHERE {} \
         GROUP BY rank, host, pid, group_name",
        processes.condition()
    );
    let (mut sizes, mut with_messages) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for row in rows(client, &sql).await? {
        let (Some(rank), Some(name)) = (processes.rank(&row), row.text(3)) else { continue };
        facts.operations += row.int(6).unwrap_or_default();
        let size = row.int(5).and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
        // Two ranks of a group count its messages, and the others do not.
        if row.int(7) != Some(0) {
            with_messages.insert(name.clone());
        }
        let known = sizes.entry(name.clone()).or_default();
        *known = size.max(*known);
        let group = facts.groups.entry(name).or_default();
        group.ranks.insert(rank);
        group.last.insert(rank, row.int(4).unwrap_or_default());
    }
    facts.groups.retain(|name, _| !with_messages.contains(name));
    for (name, group) in &mut facts.groups {
        // A rank that has issued nothing on a group may not be in it, unless the group has all ranks.
        if sizes[name] == processes.of.len() {
            group.ranks.extend(processes.of.keys());
        }
        group.listed = sizes[name] == group.ranks.len();
    }
    let names: Vec<String> = facts.groups.keys().cloned().collect();
    for some in names.chunks(MAX_GROUPS) {
        fill(client, some, &mut facts.groups, &processes).await?;
    }
    Ok(facts)
}

/// The newest process of each rank.
struct RankProcesses {
    of: BTreeMap<i32, RankProcess>,
}

impl RankProcesses {
    async fn ask(client: &mut Client, before: Option<i64>) -> Result<Self> {
        let sql = "SELECT rank, host, pid, CAST(COALESCE(ended, last_seen) AS BIGINT), first_seen FROM probe.agents \
                   WHERE rank IS NOT NULL ORDER BY first_seen";
        let mut newest = BTreeMap::new();
        for row in rows(client, sql).await? {
            let Some(rank) = row.int(0).and_then(|rank| i32::try_from(rank).ok()) else { continue };
            let process = RankProcess {
                host: row.text(1).unwrap_or_default(),
                pid: row.int(2).unwrap_or_default(),
                over: row.int(3).unwrap_or_default(),
            };
            if before.is_none_or(|before| row.int(4).is_some_and(|seen| seen <= before)) {
                newest.insert(rank, process);
            }
        }
        Ok(Self { of: newest })
    }

    /// The condition for their rows, and for few others: of processes with the same number on other hosts.
    fn condition(&self) -> String {
        let pids: Vec<String> = self.of.values().map(|process| process.pid.to_string()).collect();
        format!("pid IN ({})", pids.join(", "))
    }

    /// The rank of a row that begins with rank, host and pid; None where it is of another process.
    fn rank(&self, row: &AnswerRow) -> Option<i32> {
        let rank = row.int(0).and_then(|rank| i32::try_from(rank).ok())?;
        let process = self.of.get(&rank)?;
        (row.int(2) == Some(process.pid) && row.text(1).as_ref() == Some(&process.host)).then_some(rank)
    }
}

/// Fills in the operations of groups that may stop them: those that have not finished, and what all ranks did as the newest ones.
async fn fill(
    client: &mut Client,
    names: &[String],
    groups: &mut BTreeMap<String, ProcessGroup>,
    processes: &RankProcesses,
) -> Result<()> {
    let newest_of_all = |name: &String| {
        let group = &groups[name];
        let everyone = group.ranks.iter().all(|rank| group.last.contains_key(rank));
        let newest = group.last.values().min().copied().filter(|_| everyone).unwrap_or(-1);
        format!("('{}', {newest})", name.replace('\'', "''"))
    };
    let newest: Vec<String> = names.iter().map(newest_of_all).collect();
    let sql = format!(
        "SELECT rank, host, pid, n.group_name, seq, operation_type, dtype, bytes, ts, status FROM python.nccl_trace n \
         JOIN (VALUES {}) AS newest (group_name, of_all) ON n.group_name = newest.group_name WHERE {} \
         AND (status IN ('pending', 'failed') OR seq >= of_all) AND seq <= of_all + {COMPARED} ORDER BY ts LIMIT {MAX_OPERATIONS}",
        newest.join(", "),
        processes.condition()
    );
    for row in rows(client, &sql).await? {
        let (Some(rank), Some(name)) = (processes.rank(&row), row.text(3)) else { continue };
        let issued = row.int(8).unwrap_or_default();
        let age = processes.of[&rank].over.saturating_sub(issued);
        let completion = match row.text(9).as_deref() {
            Some("pending" | "failed") => CollectiveCompletion::Unfinished,
            Some("issued") if age >= NOT_SEEN => CollectiveCompletion::NotSeen,
            _ => CollectiveCompletion::Finished,
        };
        let (element_type, bytes) = (row.text(6), row.int(7));
        let size = bytes.map(|bytes| format!("{bytes} B")).unwrap_or_default();
        groups.entry(name).or_default().collectives.push(IssuedCollective {
            rank,
            seq: row.int(4).unwrap_or_default(),
            operation_type: row.text(5).unwrap_or_default(),
            tensors: element_type.iter().cloned().chain([size]).collect::<Vec<_>>().join(", "),
            bytes,
            element_type,
            issued,
            line: None,
            completion,
        });
    }
    Ok(())
}
