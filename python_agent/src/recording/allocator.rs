//! What torch's caching allocator says of a device.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use probe_trace::payload::MEMORY_VALUES as COUNT;

/// The first of them are also asked for at modules: what is allocated, its peak, and what is reserved.
pub(super) const OF_MODULES: usize = 3;
/// Where a value is in the dictionary of `torch._C._cuda_memoryStats`: statistic, and below `all` its aspect; without an
/// aspect it is a plain number.
const VALUES: [(&str, &str); COUNT] = [
    ("allocated_bytes", "current"),
    ("allocated_bytes", "peak"),
    ("reserved_bytes", "current"),
    ("reserved_bytes", "peak"),
    ("active_bytes", "current"),
    ("inactive_split_bytes", "current"),
    ("num_alloc_retries", ""),
    ("num_ooms", ""),
];

/// The first of [`VALUES`], `u64::MAX` for what the allocator does not say.
pub(super) fn values<const N: usize>(statistics: &Bound<'_, PyDict>) -> PyResult<[u64; N]> {
    let mut values = [u64::MAX; N];
    for (value, (statistic, aspect)) in values.iter_mut().zip(VALUES) {
        let Some(found) = statistics.get_item(statistic)? else { continue };
        *value =
            if aspect.is_empty() { found.extract()? } else { found.get_item("all")?.get_item(aspect)?.extract()? };
    }
    Ok(values)
}
