//! XPlane traces, as `probe import` reads them.

/// A trace, or what looks like one: it is read as far as it goes, and no bytes have more events than there are of them.
pub fn planes(data: &[u8]) {
    let directory = std::env::temp_dir();
    match probe_import::read_planes(data, &directory) {
        Ok((events, _)) => assert!(events <= data.len() as u64),
        Err(error) => panic!("{error}"),
    }
}
