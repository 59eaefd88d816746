//! Memory snapshots of torch, as `probe import` reads them.

/// Reads any bytes as a snapshot: they are read, or refused with a message.
pub fn memory_snapshot(data: &[u8]) {
    if let Err(why) = probe_import::read_memory_snapshot(data) {
        assert!(!why.is_empty());
    }
}
