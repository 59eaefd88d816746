//! Dumps of NCCL's inspector, as `probe import` reads them.

/// Reads any bytes as such a file: it has no more objects than bytes, or is refused.
pub fn nccl_inspector(data: &[u8]) {
    if let Ok(objects) = probe_import::read_nccl_inspector(data, &std::env::temp_dir()) {
        assert!(objects <= data.len() as u64);
    }
}
