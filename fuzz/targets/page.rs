//! CSV pages of Nsight Compute, as `probe import` reads them.

/// Reads any bytes as a page: it has no more records or rows than bytes.
pub fn page(data: &[u8]) {
    match probe_import::read_page(data) {
        Ok((records, rows)) => assert!(records <= data.len() as u64 && rows <= data.len() as u64),
        // Bytes that begin like gzip and are none.
        Err(_) => assert!(data.starts_with(&[0x1f, 0x8b])),
    }
}
