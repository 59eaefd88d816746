//! Dumps of the Flight Recorder, as `probe import` reads them: pickle and JSON.

/// Reads any bytes as a dump: they are read, or refused with a message.
pub fn flight_recorder(data: &[u8]) {
    if let Err(why) = probe_import::read_flight_recorder(data) {
        assert!(!why.is_empty());
    }
}
