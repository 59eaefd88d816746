//! A diagnosis of a run of which rows were lost: it says so, and does not decide what needs them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::drops;
use probe_store::{RecordBatchBuilder, Store, SystemTable};

use super::diagnosed_runs::{begins, said};
use crate::cli::support::Home;
use crate::sql::data::{Agent, START};

const STEPS: i64 = 120;

/// Losses: table, reason, rows, and the step in which the last one was lost.
#[derive(Debug)]
struct Drops(Vec<(&'static str, &'static str, i64, i64)>);

impl SystemTable for Drops {
    fn table(&self) -> &'static Table {
        &drops::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let (mut builder, mut strings) = (RecordBatchBuilder::new(&drops::TABLE), StringTable::default());
        let identity = Agent::new(0).identity;
        for (table, reason, rows, step) in &self.0 {
            builder.push(drops::Row {
                run: strings.id("gpt@1"),
                host: strings.id(&identity.host),
                pid: identity.pid,
                rank: identity.rank,
                table_name: strings.id(table),
                reason: strings.id(reason),
                at: strings.id("agent"),
                rows: *rows,
                last_seen: Time(START + step * 1_000_000_000),
            });
        }
        builder.finish(&strings)
    }
}

fn run_with(lost: Vec<(&'static str, &'static str, i64, i64)>) -> Home {
    let (home, store) = (Home::empty(), Store::new(1 << 30));
    super::diagnosed_runs::steps_of(&store, 2, STEPS, |_, _| (), |_, _| ());
    store.write(&home.record("gpt@1", |_| ()), &[Arc::new(Drops(lost))]).unwrap();
    home
}

const RULES: &str = "rows-lost,garbage-collection,python-in-forward";

#[test]
fn rules_that_need_lost_rows_are_not_decided() {
    let home = run_with(vec![("python.steps", "ring full", 30, STEPS - 1)]);
    let answers = said(&home, ["gpt", "diagnose", "--json", "--rule", RULES]);
    begins(&answers["rows-lost"], "found: rank 0 lost 20.0 % of the rows");
    begins(&answers["garbage-collection"], "open: 20.0 % of the rows of python.steps are lost (probe.drops says why)");
    let judged = home.probe(["gpt", "diagnose", "--no-ask", "--fail-on", "warn", "--rule", RULES]);
    assert_eq!(judged.status.code(), Some(7), "{}", String::from_utf8_lossy(&judged.stdout));
}

#[test]
fn few_lost_rows_evicted_ones_and_those_before_these_steps_are_no_reason() {
    let lost = vec![
        ("python.steps", "ring full", 1, STEPS - 1),
        ("python.steps", "evicted", 100_000, STEPS - 1),
        ("python.torch_trace", "ring full", 5000, -10),
    ];
    let home = run_with(lost);
    let answers = said(&home, ["gpt", "diagnose", "--json", "--rule", RULES]);
    begins(&answers["rows-lost"], "silent");
    begins(&answers["garbage-collection"], "silent");
    assert_eq!(
        home.probe(["gpt", "diagnose", "--no-ask", "--fail-on", "warn", "--rule", RULES]).status.code(),
        Some(0)
    );
}
