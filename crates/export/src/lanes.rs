//! Slices of a track on lanes, so that those of a lane nest properly: viewers draw nothing else.

/// Times are recorded with a resolution of 2^-27 s, each end by itself: ends that lie so near belong together (ns).
pub(crate) const RESOLUTION: i64 = 16;

/// Lanes of a track: more slices that overlap are not drawn, and counted.
pub(crate) const MAX_LANES: usize = 64;

/// Open slices of a track, by lane, outermost first: their ends.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Vec<i64>>,
}

/// Where a slice goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub lane: usize,
    /// It begins and ends here, within [`RESOLUTION`] of what was asked.
    pub ts: i64,
    pub end: i64,
}

impl Lanes {
    /// Ends the slices of `lane` that are over at `ts`, the innermost first.
    pub(crate) fn end_before(&mut self, lane: usize, ts: i64, mut ended: impl FnMut(i64)) {
        let Some(open) = self.lanes.get_mut(lane) else { return };
        while let Some(end) = open.pop_if(|end| *end <= ts) {
            ended(end);
        }
    }

    /// How many lanes there are.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The first lane on which a slice nests; None past [`MAX_LANES`]. Slices have to come in order of `ts`.
    pub(crate) fn find(&self, ts: i64, end: i64) -> Option<Placed> {
        for (lane, open) in self.lanes.iter().enumerate() {
            // Those that are over but for the resolution are over, and this one begins where they end.
            let begins = open.iter().rev().copied().take_while(|around| *around <= ts + RESOLUTION && *around < end);
            let begins = begins.fold(ts, i64::max);
            match open.iter().rev().find(|around| **around > begins) {
                None => return Some(Placed { lane, ts: begins, end }),
                Some(around) if end <= around + RESOLUTION => {
                    return Some(Placed { lane, ts: begins, end: end.min(*around) });
                }
                Some(_) => {}
            }
        }
        (self.lanes.len() < MAX_LANES).then_some(Placed { lane: self.lanes.len(), ts, end })
    }

    /// Puts a slice where it was found to nest.
    pub(crate) fn open(&mut self, placed: Placed) {
        if placed.lane == self.lanes.len() {
            self.lanes.push(Vec::new());
        }
        self.lanes[placed.lane].push(placed.end);
    }
}
