//! One count of steps for all ranks of a run.
//!
//! Each process counts its own steps. Where these counts differ (after an attach, or where an optimizer stepped on one
//! rank alone), tables that have a step are replaced by queries in which it is that of the lowest rank, without the
//! processes of which that is not known.

use std::sync::LazyLock;

use probe_client::Client;
use probe_common::error::Result;
use probe_inspect::stacks::fold::{ProcessLabel, names};
use probe_proto::table::TableSource;
use probe_proto::v1::RankState;
use probe_query::relations;

use crate::replaced_tables::replace_tables;
use crate::small_rows::rows;

/// A process whose steps are known to be those of the lowest rank, `offset` steps later.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ShiftedProcess {
    host: String,
    pid: i64,
    offset: i64,
}

/// How the steps of a run's processes are counted together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SharedSteps {
    /// None where a number is the same step on all processes, as far as is known.
    processes: Option<Vec<ShiftedProcess>>,
    /// Ranks that are left out, because their step offset is unknown.
    pub(crate) unknown: Vec<i32>,
    /// Processes that are left out, because their ranks were started anew.
    pub(crate) earlier: usize,
}

/// Tables and views in which a row belongs to a step of a process. `probe.agents` is not among
/// them: it has how a process ended, also of one that is left out.
static WITH_STEPS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let has = |columns: &[probe_proto::table::Column], name: &str| columns.iter().any(|column| column.name == name);
    let with_steps = relations().filter(|table| has(table.columns, "step"));
    let of_process = with_steps.filter(|table| {
        let is_of_process = ["host", "pid", "rank"].iter().all(|name| has(table.columns, name));
        matches!(table.source, TableSource::Agent) || (is_of_process && table.schema != "probe")
    });
    of_process.map(probe_proto::table::Table::full_name).collect()
});

impl SharedSteps {
    /// Reads the offsets of the processes of a run.
    ///
    /// # Errors
    /// The query's.
    pub(crate) async fn read(client: &mut Client) -> Result<Self> {
        let sql = "SELECT host, pid, rank, generation, step_offset FROM python.step_offsets ORDER BY rank";
        let mut shared = Self::default();
        let mut processes = Vec::new();
        for row in rows(client, sql).await? {
            let (host, pid) = (row.text(0).unwrap_or_default(), row.int(1).unwrap_or_default());
            match (row.int(3), row.int(4)) {
                (Some(0), Some(offset)) => processes.push(ShiftedProcess { host, pid, offset }),
                (Some(0), None) => shared.unknown.extend(row.int(2).and_then(|rank| i32::try_from(rank).ok())),
                _ => shared.earlier += 1,
            }
        }
        let is_one_count = processes.iter().all(|process| process.offset == 0);
        if !is_one_count || !shared.unknown.is_empty() || shared.earlier > 0 {
            shared.processes = Some(processes);
        }
        Ok(shared)
    }

    /// Where it is not known how the steps of any process are counted.
    pub(crate) fn not_known() -> Self {
        Self { processes: Some(Vec::new()), ..Self::default() }
    }

    /// `sql` with the shared count of steps instead of each process's own.
    pub(crate) fn rewrite(&self, sql: &str) -> String {
        let Some(processes) = &self.processes else { return sql.to_owned() };
        replace_tables(sql, &WITH_STEPS, |table| shifted(table, processes))
    }

    /// A condition that is true in the same steps of all processes. `condition` makes that of a process from its offset.
    pub(crate) fn condition(&self, condition: impl Fn(i64) -> String) -> String {
        let Some(processes) = self.processes.as_ref().filter(|all| all.iter().any(|one| one.offset != 0)) else {
            return condition(0);
        };
        let shifted = processes.iter().filter(|process| process.offset != 0);
        let cases: Vec<String> =
            shifted.map(|process| format!("WHEN {} THEN {}", is(process), condition(process.offset))).collect();
        format!("CASE {} ELSE {} END", cases.join(" "), condition(0))
    }

    /// The steps that a rank has finished, by the shared count; None where it is not known.
    pub(crate) fn count(&self, rank: &RankState) -> Option<i64> {
        let Some(processes) = self.processes.as_ref().filter(|_| rank.rank.is_some()) else { return Some(rank.step) };
        let is_this = |process: &&ShiftedProcess| process.host == rank.host && process.pid == i64::from(rank.pid);
        Some(rank.step + processes.iter().find(is_this)?.offset)
    }

    /// The ranks whose steps are not known to be those of the others, for people; None where all are known.
    pub(crate) fn not_shared(&self) -> Option<String> {
        let ranks = names(&self.unknown.iter().map(|rank| ProcessLabel::Rank(*rank)).collect::<Vec<_>>());
        let whose = if self.unknown.len() == 1 { "its" } else { "their" };
        (!self.unknown.is_empty()).then(|| {
            format!(
                "{ranks}: it is not known which of {whose} steps are those of the other ranks (python.step_offsets)"
            )
        })
    }

    /// The processes that are left out, for people; None without any.
    pub(crate) fn left_out(&self) -> Option<String> {
        let mut parts: Vec<String> = self.not_shared().into_iter().collect();
        match self.earlier {
            0 => {}
            1 => parts.push("1 process whose rank was started anew later".to_owned()),
            count => parts.push(format!("{count} processes whose ranks were started anew later")),
        }
        (!parts.is_empty()).then(|| format!("left out: {}", parts.join("; ")))
    }
}

fn is(process: &ShiftedProcess) -> String {
    format!("(pid = {} AND host = '{}')", process.pid, process.host.replace('\'', "''"))
}

/// A table whose rows have the shared count, without the processes of which it is not known.
fn shifted(table: &str, processes: &[ShiftedProcess]) -> String {
    let shifts: Vec<String> = processes
        .iter()
        .filter(|process| process.offset != 0)
        .map(|process| format!("WHEN {} THEN {}", is(process), process.offset))
        .collect();
    let known: Vec<String> = std::iter::once("rank IS NULL".to_owned()).chain(processes.iter().map(is)).collect();
    let step = match shifts.is_empty() {
        true => "*".to_owned(),
        false => format!("* REPLACE (step + CASE {} ELSE 0 END AS step)", shifts.join(" ")),
    };
    format!("(SELECT {step} FROM {table} WHERE {})", known.join(" OR "))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Processes 0, 1, … of host n, with these offsets.
    pub(crate) fn shared(offsets: &[i64]) -> SharedSteps {
        let process =
            |(index, offset): (usize, &i64)| ShiftedProcess { host: "n".into(), pid: index as i64, offset: *offset };
        SharedSteps { processes: Some(offsets.iter().enumerate().map(process).collect()), ..SharedSteps::default() }
    }

    #[test]
    fn tables_with_steps_are_replaced_and_nothing_else() {
        let sql = "SELECT 'python.steps_' FROM python.steps s, python.steps, b.python.steps, python.environments, probe.agents";
        assert_eq!(
            shared(&[0, -5]).rewrite(sql),
            "SELECT 'python.steps_' FROM (SELECT * REPLACE (step + CASE WHEN (pid = 1 AND host = 'n') THEN -5 ELSE 0 END AS step) \
             FROM python.steps WHERE rank IS NULL OR (pid = 0 AND host = 'n') OR (pid = 1 AND host = 'n')) s, \
             (SELECT * REPLACE (step + CASE WHEN (pid = 1 AND host = 'n') THEN -5 ELSE 0 END AS step) \
             FROM python.steps WHERE rank IS NULL OR (pid = 0 AND host = 'n') OR (pid = 1 AND host = 'n')) AS steps, \
             b.python.steps, python.environments, probe.agents"
        );
        assert_eq!(SharedSteps::default().rewrite(sql), sql);
    }

    #[test]
    fn a_window_is_that_of_each_process() {
        let window = |shift: i64| format!("step >= {}", 10 - shift);
        assert_eq!(shared(&[0, 0]).condition(window), "step >= 10");
        assert_eq!(
            shared(&[0, -5]).condition(window),
            "CASE WHEN (pid = 1 AND host = 'n') THEN step >= 15 ELSE step >= 10 END"
        );
    }
}
