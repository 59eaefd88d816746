//! Where rows come from: recording, or in tests something smaller.

use crate::recording;
use crate::sink::Sink;

/// Something that can be drained.
pub trait Source: Send + 'static {
    /// Puts everything that was recorded since the last call into `sink`.
    fn drain(&mut self, sink: &mut Sink);
    /// Nothing more will be recorded: what is complete of the last step is to come with the next drain.
    fn finish(&mut self);
}

/// The rings of this process.
#[derive(Debug)]
pub struct Recording;

impl Source for Recording {
    fn drain(&mut self, sink: &mut Sink) {
        recording::drain(sink);
    }
    fn finish(&mut self) {
        recording::flush_open();
    }
}
