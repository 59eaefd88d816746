//! Whether ranks that wait at a boundary wait at the same one, and which of them have to go on where they don't.
//!
//! Torch's own numbers of the process groups decide: between the same two steps every rank has issued the same
//! collectives. A rank's own count of steps may differ from the others' for good, where it was attached to later or
//! where its optimizer stepped alone; it is looked at where the groups' numbers say nothing, and where they agree at
//! more than one boundary (ranks that exchange gradients in one of several steps).
//!
//! Where it is not known how a rank's count compares with the others', equal numbers are not enough: they stay equal for as long
//! as there is no collective. The last step before the boundary must have issued one, on each rank. Only one step ends with a
//! certain number, so these ranks wait after the same step.

use std::collections::{BTreeMap, BTreeSet};

use probe_proto::v1::Arrived;

/// How many times ranks are sent on before the snippet is refused because they do not meet.
const MAX_ROUNDS: usize = 16;

/// What comes next, once every rank waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRound {
    /// All wait at the same boundary.
    Go,
    /// The ranks with these indexes have to go on to their next boundary.
    On(Vec<usize>),
    /// The ranks do not meet, and why.
    Never(String),
}

/// What earlier rounds have shown.
#[derive(Debug, Default)]
pub(super) struct BoundaryAgreement {
    rounds: usize,
    /// The largest difference between the counts of steps when the groups' numbers last agreed.
    apart: Option<i64>,
    /// By the index of a rank.
    ranks: Vec<WaitingRank>,
}

/// What is known of one rank.
#[derive(Debug, Clone, Default)]
struct WaitingRank {
    /// Where it waited last; None before the first round.
    at: Option<Arrived>,
    /// The groups on which it issued collectives in the step before that.
    moved: BTreeSet<String>,
}

impl WaitingRank {
    /// Notes where the rank waits now. Returns whether that is after another step than before: a step may have several boundaries.
    fn arrives(&mut self, at: &Arrived) -> bool {
        let Some(before) = self.at.as_ref().filter(|before| before.step != at.step) else {
            return self.at.replace(at.clone()).is_none();
        };
        let number = |name: &str| before.groups.iter().find(|group| group.name == name).map(|group| group.sequence);
        let moved = at.groups.iter().filter(|group| number(&group.name).is_some_and(|before| before < group.sequence));
        self.moved = match at.step == before.step.saturating_add(1) {
            true => moved.map(|group| group.name.clone()).collect(),
            false => BTreeSet::new(),
        };
        self.at = Some(at.clone());
        true
    }
}

impl BoundaryAgreement {
    /// Decides how a round goes on. `arrived`: where each rank waits, by its index. `offsets`: what is added to each rank's
    /// own count of steps to get a count that all share, where it is known.
    pub(super) fn next(&mut self, arrived: &[Arrived], offsets: &[Option<i64>]) -> NextRound {
        self.ranks.resize(arrived.len(), WaitingRank::default());
        let has_stepped = self.ranks.iter_mut().zip(arrived).fold(false, |any, (rank, at)| rank.arrives(at) | any);
        self.rounds += usize::from(has_stepped);
        let behind = behind(arrived);
        if behind.len() == arrived.len() {
            return NextRound::Never(
                "each rank is further than another on some process group, so they are never at the same place".into(),
            );
        }
        let next = if behind.is_empty() { self.by_steps(arrived, offsets) } else { NextRound::On(behind) };
        let is_last = self.rounds >= MAX_ROUNDS;
        match next {
            NextRound::On(_) if is_last => NextRound::Never(format!(
                "in {MAX_ROUNDS} steps the ranks did not come to the same number of collectives"
            )),
            NextRound::Go => self.by_proof(arrived, offsets, is_last),
            next => next,
        }
    }

    /// Decides where nothing contradicts that all wait at the same boundary: whether something shows that they do.
    fn by_proof(&self, arrived: &[Arrived], offsets: &[Option<i64>], is_last: bool) -> NextRound {
        let steps = self.rounds;
        if are_linked(offsets, |index, group| self.ranks[index].moved.contains(group), arrived) {
            NextRound::Go
        } else if is_last || !are_linked(offsets, |_, _| true, arrived) {
            NextRound::Never(format!(
                "nothing shows that the ranks wait at the same step: their counts of steps began at different times, and no \
                 collective linked all of them in {steps} {}",
                if steps == 1 { "step" } else { "steps" }
            ))
        } else {
            NextRound::On((0..arrived.len()).collect())
        }
    }

    fn by_steps(&mut self, arrived: &[Arrived], offsets: &[Option<i64>]) -> NextRound {
        let counts: Vec<Option<i64>> = arrived
            .iter()
            .zip(offsets)
            .map(|(at, offset)| offset.map(|offset| at.step.saturating_add(offset)))
            .collect();
        let (least, most) = (counts.iter().flatten().min(), counts.iter().flatten().max());
        let (Some(least), Some(most)) = (least, most) else { return NextRound::Go };
        let apart = most.saturating_sub(*least);
        if apart == 0 {
            self.apart = None;
            return NextRound::Go;
        }
        // Where going on brings the ranks no nearer, their counts differ and not their boundaries.
        if self.apart.is_some_and(|before| apart >= before) {
            return NextRound::Go;
        }
        self.apart = Some(apart);
        NextRound::On((0..counts.len()).filter(|index| counts[*index].is_some_and(|count| count < *most)).collect())
    }
}

/// Whether all ranks are linked: those whose counts of steps can be compared to one another, and those of a group to one another
/// of which `counts` is true for the rank's index and the group.
fn are_linked(offsets: &[Option<i64>], counts: impl Fn(usize, &str) -> bool, arrived: &[Arrived]) -> bool {
    // The links of each rank: names of groups, and None for the counts that can be compared.
    let links: Vec<BTreeSet<Option<&str>>> = arrived
        .iter()
        .enumerate()
        .map(|(index, at)| {
            let names = at.groups.iter().map(|group| group.name.as_str()).filter(|name| counts(index, name));
            names.map(Some).chain(offsets[index].map(|_| None)).collect()
        })
        .collect();
    let mut reached = links.first().cloned().unwrap_or_default();
    let mut left: Vec<&BTreeSet<_>> = links.iter().skip(1).collect();
    loop {
        let before = left.len();
        left.retain(|rank| {
            let is_linked = !rank.is_disjoint(&reached);
            if is_linked {
                reached.extend(rank.iter().copied());
            }
            !is_linked
        });
        if left.is_empty() || left.len() == before {
            return left.is_empty();
        }
    }
}

/// Indexes of the ranks that have issued fewer collectives than another on a group of both.
fn behind(arrived: &[Arrived]) -> Vec<usize> {
    let mut furthest = BTreeMap::<&str, u64>::new();
    for group in arrived.iter().flat_map(|at| &at.groups) {
        let most = furthest.entry(&group.name).or_default();
        *most = group.sequence.max(*most);
    }
    let is_behind = |at: &Arrived| at.groups.iter().any(|group| group.sequence < furthest[group.name.as_str()]);
    (0..arrived.len()).filter(|index| is_behind(&arrived[*index])).collect()
}

#[cfg(test)]
mod tests {
    use probe_proto::v1::GroupPosition;

    use super::*;

    fn at(step: i64, groups: &[(&str, u64)]) -> Arrived {
        let groups = groups.iter().map(|(name, sequence)| GroupPosition { name: (*name).into(), sequence: *sequence });
        Arrived { step, groups: groups.collect(), nexts: 0 }
    }

    /// Two ranks, by their steps and their numbers on the group that both are in.
    fn both(zero: (i64, u64), one: (i64, u64)) -> [Arrived; 2] {
        [at(zero.0, &[("0", zero.1)]), at(one.0, &[("0", one.1)])]
    }

    fn once(arrived: &[Arrived]) -> NextRound {
        BoundaryAgreement::default().next(arrived, &vec![Some(0); arrived.len()])
    }

    #[test]
    fn ranks_that_count_steps_from_elsewhere_meet_by_their_collectives() {
        let unknown = [None, None];
        let mut agreement = BoundaryAgreement::default();
        assert_eq!(agreement.next(&both((40, 90), (3, 88)), &unknown), NextRound::On(vec![1]));
        // Rank 0 may have been at 90 for many steps.
        assert_eq!(agreement.next(&both((40, 90), (4, 90)), &unknown), NextRound::On(vec![0, 1]));
        assert_eq!(agreement.next(&both((41, 92), (5, 92)), &unknown), NextRound::Go);
    }

    #[test]
    fn where_counts_cannot_be_compared_each_rank_must_come_from_a_collective() {
        let mut agreement = BoundaryAgreement::default();
        let mut next = |zero, one| agreement.next(&both(zero, one), &[Some(0), None]);
        // They exchange gradients in one of three steps.
        assert_eq!(next((10, 7), (3, 7)), NextRound::On(vec![0, 1]));
        assert_eq!(next((11, 7), (4, 7)), NextRound::On(vec![0, 1]));
        assert_eq!(next((12, 8), (5, 8)), NextRound::Go);
    }

    #[test]
    fn boundaries_within_a_step_are_no_steps() {
        let mut agreement = BoundaryAgreement::default();
        let mut next = |zero, one| agreement.next(&both(zero, one), &[None, None]);
        // All batches of an accumulation are requested first.
        for _ in 0..3 * MAX_ROUNDS {
            assert_eq!(next((10, 7), (3, 7)), NextRound::On(vec![0, 1]));
        }
        assert_eq!(next((11, 8), (4, 8)), NextRound::Go);
    }

    #[test]
    fn a_rank_that_came_from_no_collective_is_not_taken_for_one_that_did() {
        let mut agreement = BoundaryAgreement::default();
        let mut next = |zero, one| agreement.next(&both(zero, one), &[None, None]);
        assert_eq!(next((10, 7), (3, 8)), NextRound::On(vec![0]));
        // Rank 0 comes from collective 8, and rank 1 may be some steps after it.
        assert_eq!(next((11, 8), (3, 8)), NextRound::On(vec![0, 1]));
        assert_eq!(next((12, 8), (4, 8)), NextRound::On(vec![0, 1]));
        // A step that was not seen from one boundary to the next proves nothing.
        assert_eq!(next((14, 9), (5, 9)), NextRound::On(vec![0, 1]));
        assert_eq!(next((15, 10), (6, 10)), NextRound::Go);
    }

    #[test]
    fn ranks_are_linked_by_others_and_not_run_where_they_are_not() {
        let grid = |step, sequence| {
            let rank = |groups: &[&str]| at(step, &groups.iter().map(|group| (*group, sequence)).collect::<Vec<_>>());
            [rank(&["row 0", "column 0"]), rank(&["row 0", "column 1"]), rank(&["row 1", "column 1"])]
        };
        let mut agreement = BoundaryAgreement::default();
        assert_eq!(agreement.next(&grid(5, 1), &[None; 3]), NextRound::On(vec![0, 1, 2]));
        assert_eq!(agreement.next(&grid(6, 2), &[None; 3]), NextRound::Go);
        // No group at all, groups that nothing links, groups that stay at their number.
        let never =
            |arrived: &[Arrived], offsets: &[Option<i64>]| match BoundaryAgreement::default().next(arrived, offsets) {
                NextRound::Never(why) => {
                    assert!(why.contains("nothing shows that the ranks wait at the same step"), "{why}")
                }
                next => panic!("{next:?}"),
            };
        never(&[at(5, &[]), at(5, &[])], &[Some(0), None]);
        never(&[at(5, &[("a", 1)]), at(5, &[("b", 1)])], &[None, None]);
        let mut agreement = BoundaryAgreement::default();
        let rounds = (0..).map(|step| agreement.next(&[at(step, &[("0", 1)]), at(step, &[("0", 1)])], &[None, None]));
        assert_eq!(rounds.take_while(|next| matches!(next, NextRound::On(_))).count(), MAX_ROUNDS - 1);
    }

    #[test]
    fn groups_of_some_ranks_are_compared_among_those() {
        let row = |step, group: &str, column: u64| at(step, &[("0", 2), (group, column)]);
        assert_eq!(once(&[row(5, "a", 7), row(5, "a", 7), row(5, "b", 9), row(5, "b", 9)]), NextRound::Go);
        assert_eq!(once(&[row(5, "a", 7), row(5, "a", 6), row(5, "b", 9), row(5, "b", 9)]), NextRound::On(vec![1]));
    }

    #[test]
    fn steps_without_collectives_are_told_apart_by_their_numbers() {
        let mut agreement = BoundaryAgreement::default();
        let (far, near) = (at(12, &[("0", 3)]), |step| at(step, &[("0", 3)]));
        assert_eq!(agreement.next(&[far.clone(), near(10)], &[Some(0); 2]), NextRound::On(vec![1]));
        assert_eq!(agreement.next(&[far.clone(), near(11)], &[Some(0); 2]), NextRound::On(vec![1]));
        assert_eq!(agreement.next(&[far, near(12)], &[Some(0); 2]), NextRound::Go);
    }

    #[test]
    fn a_rank_whose_optimizer_stepped_alone_keeps_its_own_count() {
        let mut agreement = BoundaryAgreement::default();
        assert_eq!(agreement.next(&both((30, 8), (20, 8)), &[Some(0); 2]), NextRound::On(vec![1]));
        assert_eq!(agreement.next(&both((30, 8), (21, 9)), &[Some(0); 2]), NextRound::On(vec![0]));
        assert_eq!(agreement.next(&both((31, 9), (21, 9)), &[Some(0); 2]), NextRound::Go);
    }

    #[test]
    fn ranks_that_never_meet_are_not_sent_on_for_ever() {
        let crossed = [at(1, &[("a", 1), ("b", 2)]), at(1, &[("a", 2), ("b", 1)])];
        assert!(matches!(once(&crossed), NextRound::Never(_)));
        let mut agreement = BoundaryAgreement::default();
        let next = (0..).map(|round| agreement.next(&[at(round, &[("0", 1)]), at(round, &[("0", 0)])], &[Some(0); 2]));
        let all: Vec<NextRound> = next.take_while(|next| matches!(next, NextRound::On(_))).collect();
        assert_eq!(all.len(), MAX_ROUNDS - 1);
    }
}
