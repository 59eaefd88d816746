//! Whether intervals nest, and where slices are put.

use crate::lanes::{MAX_LANES, RESOLUTION, TrackLanes};

#[derive(Debug, Clone)]
pub(super) struct Interval {
    pub track: i64,
    pub begin: i64,
    pub end: i64,
    pub name: String,
}

/// Whether any two of a track lie apart or within each other.
pub(super) fn nest(intervals: &[Interval]) -> bool {
    let apart = |a: &Interval, b: &Interval| a.end <= b.begin || b.end <= a.begin;
    let within = |a: &Interval, b: &Interval| a.begin <= b.begin && b.end <= a.end;
    intervals.iter().enumerate().all(|(index, a)| {
        let others = intervals[..index].iter().filter(|b| b.track == a.track);
        others.into_iter().all(|b| apart(a, b) || within(a, b) || within(b, a))
    })
}

#[test]
fn ends_that_differ_by_the_resolution_are_taken_together() {
    let mut lanes = TrackLanes::default();
    let mut put = |ts, end| {
        let placed = lanes.find(ts, end).unwrap();
        lanes.end_before(placed.lane, placed.ts, |_| ());
        lanes.open(placed);
        (placed.lane, placed.ts, placed.end)
    };
    assert_eq!(put(0, 1000), (0, 0, 1000));
    // A child that ends after its parent, and a sibling that begins before the one before ended.
    assert_eq!(put(100, 500), (0, 100, 500));
    assert_eq!(put(500 - RESOLUTION, 1000 + RESOLUTION), (0, 500, 1000));
    // More than that is another lane, until it is over.
    assert_eq!(put(900, 2000), (1, 900, 2000));
    assert_eq!(put(1000, 3000), (0, 1000, 3000));
    assert_eq!(put(1500, 2000), (0, 1500, 2000));
    // What takes no time lies where it is.
    assert_eq!(put(2000, 2000), (0, 2000, 2000));
}

#[test]
fn there_are_so_many_lanes_and_no_more() {
    let mut lanes = TrackLanes::default();
    for lane in 0..MAX_LANES as i64 {
        let placed = lanes.find(100 * lane, 1_000_000 + 100 * lane).unwrap();
        assert_eq!(placed.lane as i64, lane);
        lanes.open(placed);
    }
    let late = 100 * MAX_LANES as i64;
    assert_eq!(lanes.find(late, 2_000_000), None);
    assert!(lanes.find(late, late + 10).is_some(), "what lies within another needs no lane");
}
