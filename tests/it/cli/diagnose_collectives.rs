//! `probe diagnose` about collectives: those that are many, small or rare, and barriers.

use probe_proto::tables::{environment, nccl_trace, steps};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, begins, of_rule, of_rules, says};
use crate::sql::data::Agent;

/// This collective in each step.
pub(super) fn one_a_step(agent: &mut Agent, store: &Store, row: nccl_trace::Row) {
    agent.send(store, (0..STEPS).map(|step| nccl_trace::Row { step, seq: step, ..row }));
}

/// So many collectives a step of so many bytes.
fn collectives(count: i64, bytes: i64) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = agent.environment();
        agent.send(store, [environment::Row { parameter_bytes: Some(1 << 20), ..row }]);
        for step in 0..STEPS {
            let row = agent.collective(step, 0, "all_reduce");
            agent.send(store, (0..count).map(|of| nccl_trace::Row { seq: step * count + of, bytes, ..row }));
        }
    }
}

#[test]
fn gradients_that_are_reduced_in_each_micro_step_are_told_from_those_that_are_not() {
    let waits = |row: &mut steps::Row| row.comm_time = 0.004;
    let said = of_rules("reduced-each-micro-step", STEPS, waits, collectives(4, 1 << 20));
    says(&said, "reduced-each-micro-step", "found: every rank reduces all gradients in each of 4 micro steps");
    begins(&of_rule("reduced-each-micro-step", STEPS, waits, collectives(1, 1 << 20)), "silent");
}

#[test]
fn many_small_collectives_are_told_from_few_and_from_large_ones() {
    let waits = |row: &mut steps::Row| row.comm_time = 0.004;
    let said = of_rules("many-small-collectives", STEPS, waits, collectives(50, 20_000));
    says(&said, "many-small-collectives", "found: every rank issues 50 collectives a step");
    begins(&of_rule("many-small-collectives", STEPS, waits, collectives(4, 20_000)), "silent");
    begins(&of_rule("many-small-collectives", STEPS, waits, collectives(50, 1 << 20)), "silent");
}

/// A barrier in every `every`th step, in which the rank that waits least is for so many milliseconds.
fn barriers(every: i64, milliseconds: f64) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let late = f64::from(1 - agent.identity.rank.unwrap());
        let row = nccl_trace::Row {
            duration_ms: Some(milliseconds + 5.0 * late),
            status: agent.strings.id("completed"),
            ..agent.collective(0, 0, "barrier")
        };
        let steps = (0..STEPS).filter(|step| step % every == 0);
        agent.send(store, steps.map(|step| nccl_trace::Row { step, seq: step, ..row }));
    }
}

#[test]
fn a_barrier_in_each_step_costs_what_the_last_rank_spends_in_it() {
    let waits = |row: &mut steps::Row| row.comm_time = 0.006;
    let said = |steps, every, milliseconds| of_rule("barrier-in-steps", steps, waits, barriers(every, milliseconds));
    begins(&said(STEPS, 1, 2.0), "found: every rank calls barrier 1 times a step, for 2.0 ms");
    // The wait for a slow rank is no barrier's: without it, the next collective waits.
    begins(&said(STEPS, 1, 0.05), "silent: it would save 0.2 %");
    begins(&said(STEPS, 10, 2.0), "silent: share is at least");
    begins(&said(30, 1, 2.0), "open: 30 steps after the warm-up are too few");
}

#[test]
fn broadcasts_in_each_step_are_told_from_rare_ones() {
    let waits = |row: &mut steps::Row| row.comm_time = 0.006;
    let sends = |every: i64| {
        move |agent: &mut Agent, store: &Store| {
            let row = agent.collective(0, 0, "broadcast");
            let steps = (0..STEPS).filter(|step| step % every == 0);
            agent.send(store, steps.map(|step| nccl_trace::Row { step, seq: step, ..row }));
        }
    };
    let said = |more: &dyn Fn(&mut Agent, &Store)| of_rule("broadcasts-in-steps", STEPS, waits, more);
    begins(&said(&sends(1)), "found: every rank broadcasts 1.05 MB a step, for 2.0 ms");
    begins(&said(&sends(10)), "silent");
    begins(&said(&collectives(1, 1 << 20)), "silent");
}

#[test]
fn transfers_that_take_longer_are_told_from_a_rank_that_comes_later() {
    type Took = fn(rank: i32, step: i64) -> Option<f64>;
    let of = |took: Took, backend: &'static str, longer: f64| {
        let sends = move |agent: &mut Agent, store: &Store| {
            let backend = agent.strings.id(backend);
            let row = nccl_trace::Row { backend, ..agent.collective(0, 0, "all_reduce") };
            let rank = agent.identity.rank.unwrap_or_default();
            let row = |step: i64| nccl_trace::Row { step, seq: step, duration_ms: took(rank, step), ..row };
            agent.send(store, (0..240).map(row));
        };
        let change = |row: &mut steps::Row| row.comm_time += if row.step < 140 { 0.0 } else { longer };
        of_rule("slower-collectives", 240, change, sends)
    };
    // Rank 0 waits for the other one.
    let jumps: Took = |rank, step| Some(if step < 140 { 2.0 } else { 6.0 } + f64::from(1 - rank) * 3.0);
    let found = "found: all_reduce of 1.05 MB takes 6 ms since step 140 and took 2 ms before, also on the rank that comes last and waits for no other: ";
    let said = of(jumps, "nccl", 0.004);
    begins(&said, found);
    assert!(
        said.contains(": that costs its group 20 % of a step, and steps take 4.0 ms longer since then; do: "),
        "{said}"
    );
    let hidden = of(jumps, "nccl", 0.0);
    assert!(hidden.contains(" of a step, which may be hidden behind what is computed; do: "), "{hidden}");
    // The host computes these, and may have less time for it.
    begins(&of(jumps, "gloo", 0.004), "silent");
    let later: Took = |rank, step| Some(if rank == 1 || step < 140 { 2.0 } else { 6.0 });
    begins(&of(later, "nccl", 0.004), "silent");
    let unknown: Took = |rank, step| (rank == 0).then_some(if step < 140 { 2.0 } else { 6.0 });
    begins(&of(unknown, "nccl", 0.004), "silent");
    let drifts: Took = |_, step| Some(2.0 + step as f64 / 60.0);
    begins(&of(drifts, "nccl", 0.004), "silent");
    let for_a_while: Took = |_, step| Some(if (100..160).contains(&step) { 6.0 } else { 2.0 });
    begins(&of(for_a_while, "nccl", 0.004), "silent");
    let varies: Took = |_, step| Some(if step % 7 < 3 { 6.0 } else { 2.0 });
    begins(&of(varies, "nccl", 0.004), "silent");
    begins(&of(|_, _| Some(2.0), "nccl", 0.004), "silent");
    begins(&of(|_, _| None, "nccl", 0.004), "open: python.nccl_trace.duration_ms is not recorded");
}
