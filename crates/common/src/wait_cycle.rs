//! Finds who waits for each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// From how many a cycle is searched at most. Where many wait for each other, nearly each is in a cycle.
const MAX_STARTS: usize = 64;

/// The shortest cycle in `waits`, which says for each who waits for whom: each waits for the next one, and the last for the first.
pub fn shortest<K: Ord + Copy>(waits: &BTreeMap<K, BTreeSet<K>>) -> Option<Vec<K>> {
    // Many may wait for those in a cycle, and be in none.
    let waited_for: BTreeSet<K> = waits.values().flatten().copied().collect();
    let starts = waits.keys().filter(|start| waited_for.contains(start)).take(MAX_STARTS);
    let cycles = starts.filter_map(|start| through(*start, waits));
    cycles.min_by_key(Vec::len)
}

/// The shortest cycle through `start`.
fn through<K: Ord + Copy>(start: K, waits: &BTreeMap<K, BTreeSet<K>>) -> Option<Vec<K>> {
    let mut before = BTreeMap::<K, K>::new();
    let mut next = VecDeque::from([start]);
    while let Some(one) = next.pop_front() {
        for other in waits.get(&one).into_iter().flatten() {
            if *other == start {
                let mut cycle = vec![one];
                while let Some(earlier) = cycle.last().and_then(|last| before.get(last)) {
                    cycle.push(*earlier);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if !before.contains_key(other) {
                before.insert(*other, one);
                next.push_back(*other);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(waits: &[(i32, &[i32])]) -> Option<Vec<i32>> {
        shortest(&waits.iter().map(|(one, others)| (*one, others.iter().copied().collect())).collect())
    }

    #[test]
    fn the_shortest_cycle_is_found_and_a_chain_is_none() {
        assert_eq!(cycle(&[]), None);
        assert_eq!(cycle(&[(0, &[1, 2]), (1, &[2])]), None);
        assert_eq!(cycle(&[(0, &[1]), (1, &[0])]), Some(vec![0, 1]));
        assert_eq!(cycle(&[(0, &[1]), (1, &[2, 4]), (2, &[3]), (3, &[1]), (4, &[0])]), Some(vec![0, 1, 4]));
        assert_eq!(cycle(&[(0, &[1]), (1, &[2]), (2, &[3]), (3, &[2])]), Some(vec![2, 3]));
        assert_eq!(cycle(&[(7, &[7])]), Some(vec![7]));
        let before = (0..198).map(|one| (one, &[198][..]));
        let many: Vec<(i32, &[i32])> = before.chain([(198, &[199][..]), (199, &[198][..])]).collect();
        assert_eq!(cycle(&many), Some(vec![198, 199]));
    }
}
