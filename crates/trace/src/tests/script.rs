//! Made-up training steps: calls of modules, a backward pass and the optimizer.

use proptest::prelude::*;

use crate::record::{RecordKind, RingRecord};

/// A training step as a script would record it.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) now: u64,
    pub(super) sequence: u64,
    pub(super) steps: u64,
    pub(super) records: Vec<RingRecord>,
    /// Sequence numbers so far, and the modules whose calls made them.
    pub(super) made: Vec<(u64, u64)>,
}

impl Script {
    pub(super) fn put(&mut self, kind: RecordKind, payload: u64, a: u64, b: u64) {
        self.records.push(RingRecord::new(kind, payload, self.now, a, b));
    }
    pub(super) fn pass(&mut self, ticks: u64) {
        self.now += ticks;
    }
    /// A call of `module` that computes, makes `nodes` nodes, and calls what is in `tree` below it.
    pub(super) fn call(&mut self, tree: &Tree) {
        self.put(RecordKind::Enter, self.sequence, tree.module, 7);
        self.pass(tree.before);
        for _ in 0..tree.nodes {
            self.made.push((self.sequence, tree.module));
            self.sequence += 1;
            self.pass(3);
        }
        for child in &tree.children {
            self.call(child);
            self.pass(tree.between);
        }
        self.put(RecordKind::Exit, self.sequence, tree.module, 0);
    }
    /// The backward pass over everything made, newest first, an `AccumulateGrad` after each node.
    pub(super) fn backward(&mut self, ticks: u64) {
        self.put(RecordKind::BackwardBegin, 0, 0, 0);
        self.pass(11);
        let (first, mut last) = (self.now, 0);
        for (sequence, _) in std::mem::take(&mut self.made).into_iter().rev() {
            for number in [sequence, u64::MAX] {
                self.put(RecordKind::NodeStart, 0, number, 0);
                self.pass(ticks);
                self.put(RecordKind::NodeEnd, 0, 0, 0);
                last = self.now;
                self.pass(2);
            }
        }
        self.pass(50);
        self.put(RecordKind::BackwardEnd, 0, if last == 0 { 0 } else { first }, last);
    }
    pub(super) fn step(&mut self) {
        self.put(RecordKind::OptimizerBegin, 1, 0, 0);
        self.pass(40);
        self.steps += 1;
        self.put(RecordKind::OptimizerEnd, 1, 1, self.steps);
    }
}

#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) module: u64,
    pub(super) before: u64,
    pub(super) between: u64,
    pub(super) nodes: u8,
    pub(super) children: Vec<Tree>,
}

pub(super) fn tree() -> impl Strategy<Value = Tree> {
    let leaf = (1..20_u64, 1..100_u64, 1..50_u64, 0..4_u8);
    let leaf =
        leaf.prop_map(|(module, before, between, nodes)| Tree { module, before, between, nodes, children: Vec::new() });
    leaf.prop_recursive(4, 24, 4, |inner| {
        ((20..40_u64, 1..100_u64, 1..50_u64, 0..4_u8), prop::collection::vec(inner, 0..4))
            .prop_map(|((module, before, between, nodes), children)| Tree { module, before, between, nodes, children })
    })
}
