//! Exports of Nsight Systems, as `probe import` reads them.

/// Reads any bytes as a database: it is read, as far as possible, or refused.
pub fn nsight_systems(data: &[u8]) {
    let _ = probe_import::read_nsight_systems(data, &std::env::temp_dir());
}
