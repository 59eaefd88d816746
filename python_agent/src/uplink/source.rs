//! Where rows come from: recording, or in tests something smaller.

use probe_proto::config::Detail;

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
    fn drain(&mut self, _sink: &mut Sink) {}
    fn finish(&mut self) {}
}

/// Sets which steps carry module detail, from the next one on.
pub fn set_detail(detail: Detail) {
    crate::shared::DETAIL_WANTED.store(detail == Detail::EveryStep, std::sync::atomic::Ordering::Relaxed);
}
