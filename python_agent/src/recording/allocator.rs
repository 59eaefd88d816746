//! What torch's caching allocator reports of a device.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use probe_trace::payload::MEMORY_VALUES as COUNT;

/// Number of the first [`VALUES`] that are also read at modules: what is allocated, its peak, and what is reserved.
pub(super) const OF_MODULES: usize = 3;
/// The keys of each value in the dictionary of `torch._C._cuda_memoryStats`: statistic, and below `all` its aspect. Without an
/// aspect the statistic is a plain number.
const VALUES: [(&str, &str); COUNT] = [
    ("allocated_bytes", "current"),
    ("allocated_bytes", "peak"),
    ("reserved_bytes", "current"),
    ("reserved_bytes", "peak"),
    ("active_bytes", "current"),
    ("inactive_split_bytes", "current"),
    ("num_alloc_retries", ""),
    ("num_ooms", ""),
    ("num_device_alloc", ""),
    ("num_device_free", ""),
];

/// The first of [`VALUES`]; `u64::MAX` for one that the allocator does not report.
pub(super) fn values<const N: usize>(statistics: &Bound<'_, PyDict>) -> PyResult<[u64; N]> {
    let mut values = [u64::MAX; N];
    for (value, (statistic, aspect)) in values.iter_mut().zip(VALUES) {
        let Some(found) = statistics.get_item(statistic)? else { continue };
        *value =
            if aspect.is_empty() { found.extract()? } else { found.get_item("all")?.get_item(aspect)?.extract()? };
    }
    Ok(values)
}
