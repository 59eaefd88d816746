//! Dumps of the Flight Recorder, as `probe import` reads them: pickle and JSON.

/// A dump, or what looks like one: it is read, or refused in words.
pub fn flight_recorder(data: &[u8]) {
    if let Err(why) = probe_import::read_flight_recorder(data) {
        assert!(!why.is_empty());
    }
}
