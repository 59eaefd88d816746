//! XPlane traces, as `probe import` reads them.

/// Reads any bytes as a trace, as far as possible: there are no more events than bytes.
pub fn planes(data: &[u8]) {
    let directory = std::env::temp_dir();
    match probe_import::read_planes(data, &directory) {
        Ok((events, _)) => assert!(events <= data.len() as u64),
        Err(error) => panic!("{error}"),
    }
}
