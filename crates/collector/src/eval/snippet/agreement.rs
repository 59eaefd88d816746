//! Whether ranks that wait at a boundary wait at the same one, and which of them have to go on where they don't.
//!
//! Torch's own numbers of the process groups decide: between the same two steps every rank has issued the same
//! collectives. A rank's own count of steps may differ from the others' for good, where it was attached to later or
//! where its optimizer stepped alone; it is looked at where the groups' numbers say nothing, and where they agree at
//! more than one boundary (ranks that exchange gradients in one of several steps).

use std::collections::BTreeMap;

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
}

impl BoundaryAgreement {
    /// Decides how a round goes on. `arrived`: where each rank waits, by its index. `offsets`: what is added to each rank's
    /// own count of steps to get a count that all share, where it is known.
    pub(super) fn next(&mut self, arrived: &[Arrived], offsets: &[Option<i64>]) -> NextRound {
        self.rounds += 1;
        let behind = behind(arrived);
        let next = if behind.is_empty() { self.by_steps(arrived, offsets) } else { NextRound::On(behind) };
        match next {
            NextRound::On(indexes) if indexes.len() == arrived.len() => NextRound::Never(
                "each rank is further than another on some process group, so they are never at the same place".into(),
            ),
            NextRound::On(_) if self.rounds >= MAX_ROUNDS => NextRound::Never(format!(
                "in {MAX_ROUNDS} steps the ranks did not come to the same number of collectives"
            )),
            next => next,
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
        // Where going on brings the ranks no nearer, their counts differ and not their boundaries.
        if apart == 0 || self.apart.is_some_and(|before| apart >= before) {
            return NextRound::Go;
        }
        self.apart = Some(apart);
        NextRound::On((0..counts.len()).filter(|index| counts[*index].is_some_and(|count| count < *most)).collect())
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

    fn once(arrived: &[Arrived]) -> NextRound {
        BoundaryAgreement::default().next(arrived, &vec![Some(0); arrived.len()])
    }

    #[test]
    fn ranks_that_count_steps_from_elsewhere_meet_by_their_collectives() {
        let unknown = [None, None];
        let mut agreement = BoundaryAgreement::default();
        assert_eq!(agreement.next(&[at(40, &[("0", 90)]), at(3, &[("0", 88)])], &unknown), NextRound::On(vec![1]));
        assert_eq!(agreement.next(&[at(40, &[("0", 90)]), at(4, &[("0", 90)])], &unknown), NextRound::Go);
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
        let both = |zero: (i64, u64), one: (i64, u64)| [at(zero.0, &[("0", zero.1)]), at(one.0, &[("0", one.1)])];
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
