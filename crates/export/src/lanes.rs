//! Slices of a track on lanes, so that those of a lane nest properly: viewers draw nothing else.

/// Ends that differ by no more than this are taken as equal (ns): each end is recorded by itself, with a resolution of 2^-27 s.
pub(crate) const RESOLUTION: i64 = 16;

/// Most lanes of a track: further slices that overlap are counted and not drawn.
pub(crate) const MAX_LANES: usize = 64;

/// The ends of a track's open slices, by lane, outermost first.
#[derive(Debug, Default)]
pub(crate) struct TrackLanes {
    lanes: Vec<Vec<i64>>,
}

/// A lane for a slice, and the begin and end with which it nests there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlacedSlice {
    pub lane: usize,
    /// Begin of the slice; like `end`, it is within [`RESOLUTION`] of the recorded time.
    pub ts: i64,
    pub end: i64,
}

impl TrackLanes {
    /// Ends the slices of `lane` that are over at `ts`, the innermost first.
    pub(crate) fn end_before(&mut self, lane: usize, ts: i64, mut ended: impl FnMut(i64)) {
        let Some(open) = self.lanes.get_mut(lane) else { return };
        while let Some(end) = open.pop_if(|end| *end <= ts) {
            ended(end);
        }
    }

    /// The number of lanes.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The first lane on which a slice nests; None past [`MAX_LANES`]. Slices have to come in order of `ts`.
    pub(crate) fn find(&self, ts: i64, end: i64) -> Option<PlacedSlice> {
        for (lane, open) in self.lanes.iter().enumerate() {
            // Slices that end within the resolution after `ts` have ended, and this one begins at their end.
            let begins = open.iter().rev().copied().take_while(|around| *around <= ts + RESOLUTION && *around < end);
            let begins = begins.fold(ts, i64::max);
            match open.iter().rev().find(|around| **around > begins) {
                None => return Some(PlacedSlice { lane, ts: begins, end }),
                Some(around) if end <= around + RESOLUTION => {
                    return Some(PlacedSlice { lane, ts: begins, end: end.min(*around) });
                }
                Some(_) => {}
            }
        }
        (self.lanes.len() < MAX_LANES).then_some(PlacedSlice { lane: self.lanes.len(), ts, end })
    }

    /// Opens a slice on the lane that [`Self::find`] returned.
    pub(crate) fn open(&mut self, placed: PlacedSlice) {
        if placed.lane == self.lanes.len() {
            self.lanes.push(Vec::new());
        }
        self.lanes[placed.lane].push(placed.end);
    }
}
