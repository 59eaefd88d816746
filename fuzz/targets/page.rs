//! CSV pages of Nsight Compute, as `probe import` reads them.

/// Text of a page: whatever it is, its records are read, and a row is a field of one.
pub fn page(data: &[u8]) {
    match probe_import::read_page(data) {
        Ok((records, rows)) => assert!(records <= data.len() as u64 && rows <= data.len() as u64),
        // What begins like gzip and is none.
        Err(_) => assert!(data.starts_with(&[0x1f, 0x8b])),
    }
}
