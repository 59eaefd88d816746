//! `approx_percentile_cont` by group, which is computed here in a way of its own, against the exact answer.

use probe_proto::tables::torch_trace;
use probe_query::QueryEngine;
use probe_store::Store;

use crate::sql::data::Agent;
use crate::sql::{cells, rows};

const MODULES: usize = 40;

fn engine() -> QueryEngine {
    let store = Store::new(1 << 30);
    for rank in 0..3 {
        let mut agent = Agent::new(rank);
        for step in 0..40 {
            let batch: Vec<_> = (0..2000_i64)
                .map(|call| {
                    // Every module has its own scale, and one of seven rows has no duration.
                    let module = (call * 7 + step) as usize % MODULES;
                    let scatter = ((call * 2_654_435_761 + step * 40_503 + i64::from(rank)) % 10_007) as f64 / 10_007.0;
                    let row = agent.trace(step, Some(&format!("layers.{module}")), "forward", 0.0);
                    let duration = (call % 7 != 0).then_some((1.0 + module as f64) * scatter);
                    torch_trace::Row { duration, ..row }
                })
                .collect();
            agent.send(&store, batch);
        }
    }
    QueryEngine::new(store, Vec::new()).unwrap()
}

async fn numbers(engine: &QueryEngine, sql: &str) -> Vec<Vec<f64>> {
    let answer = cells(&rows(engine, sql, None).await.unwrap_or_else(|error| panic!("{sql}: {error}")));
    let number = |cell: &String| if cell == "NULL" { f64::NAN } else { cell.parse().unwrap() };
    answer.iter().map(|row| row.iter().map(number).collect()).collect()
}

#[tokio::test]
async fn groups_are_near_the_exact_answer() {
    let engine = engine();
    for (filter, order) in [("", ""), ("FILTER (WHERE step > 20)", ""), ("", "DESC")] {
        let of = |function: &str| format!("{function}(0.95) WITHIN GROUP (ORDER BY duration {order}) {filter}");
        let sql = format!(
            "SELECT substr(module, 8)::int AS n, {}, {} FROM python.torch_trace GROUP BY module ORDER BY n",
            of("approx_percentile_cont"),
            of("percentile_cont")
        );
        let answer = numbers(&engine, &sql).await;
        assert_eq!(answer.len(), MODULES);
        for row in answer {
            // A hundredth of the module's scale.
            assert!((row[1] - row[2]).abs() < 0.01 * (1.0 + row[0]), "{row:?}: {sql}");
        }
    }
}

#[tokio::test]
async fn small_groups_are_exact_and_empty_ones_null() {
    let engine = engine();
    // A group a row: more groups than rows of a batch, most of them of one value or none.
    let sql = "SELECT COUNT(*), COUNT(a), SUM((a = d)::int) FROM
        (SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY duration) AS a, MAX(duration) AS d
         FROM (SELECT *, row_number() OVER () AS n FROM python.torch_trace) GROUP BY n)";
    let answer = numbers(&engine, sql).await;
    let (all, known) = (3 * 40 * 2000, 3 * 40 * (2000 - 286));
    assert_eq!(answer, [[f64::from(all), f64::from(known), f64::from(known)]]);
    let nothing =
        "SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY allocated), COUNT(*) FROM python.torch_trace
        GROUP BY rank";
    assert!(numbers(&engine, nothing).await.iter().all(|row| row[0].is_nan() && row[1] == 80_000.0));
}

/// A capture makes calls longer than they usually are.
#[tokio::test]
async fn captured_steps_are_in_no_percentile_of_a_module() {
    let (store, mut agent) = (Store::new(1 << 30), Agent::new(0));
    let shape = Some(agent.strings.id("[32, 128]"));
    for (steps, captured, total) in [(0..8, Some(false), 1.0), (8..16, Some(true), 9.0), (16..20, None, 1.0)] {
        let row = |step| agent.trace(step, Some("GPT"), "forward", 1.0);
        let rows: Vec<_> = steps.map(row).collect();
        let total_duration = Some(total);
        let row = |row| torch_trace::Row { captured, total_duration, input_shape: shape, ..row };
        agent.send(&store, rows.into_iter().map(row));
    }
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    let sql = "SELECT calls, mean, p50, p95, p99, longest FROM python.module_profile";
    assert_eq!(numbers(&engine, sql).await, [[20.0, 4.2, 1.0, 1.0, 1.0, 1.0]]);
    let sql = "SELECT calls, mean, p50, p95 FROM python.shape_profile";
    assert_eq!(numbers(&engine, sql).await, [[20.0, 4.2, 1.0, 1.0]]);
}
