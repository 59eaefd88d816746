//! Names of device activities, as in other captures.

/// The name of a copy: `Memcpy HtoD (Pinned -> Device)`.
pub(crate) fn copy_name(kind: Option<i64>, from: Option<i64>, to: Option<i64>) -> String {
    let way = match kind {
        Some(1) => "HtoD",
        Some(2) => "DtoH",
        Some(3) => "HtoA",
        Some(4) => "AtoH",
        Some(5) => "AtoA",
        Some(6) => "AtoD",
        Some(7) => "DtoA",
        Some(8) => "DtoD",
        Some(9) => "HtoH",
        Some(10) => "PtoP",
        // Pages of managed memory that move by themselves.
        Some(11) => "UvmHtoD",
        Some(12) => "UvmDtoH",
        Some(13) => "UvmDtoD",
        _ => "Unknown",
    };
    match (memory(from), memory(to)) {
        (Some(from), Some(to)) => format!("Memcpy {way} ({from} -> {to})"),
        _ => format!("Memcpy {way}"),
    }
}

/// The name of a set: `Memset (Device)`.
pub(crate) fn set_name(kind: Option<i64>) -> String {
    memory(kind).map_or_else(|| "Memset".to_owned(), |memory| format!("Memset ({memory})"))
}

/// The name of a wait.
pub(crate) fn wait_name(kind: Option<i64>) -> &'static str {
    match kind {
        Some(1) => "Event Sync",
        Some(2) => "Stream Wait Event",
        Some(3) => "Stream Sync",
        Some(4) => "Context Sync",
        _ => "Unknown Sync",
    }
}

fn memory(kind: Option<i64>) -> Option<&'static str> {
    Some(match kind? {
        0 => "Pageable",
        1 => "Pinned",
        2 => "Device",
        3 => "Array",
        4 => "Managed",
        5 => "Device Static",
        6 => "Managed Static",
        _ => "Unknown",
    })
}

/// A call of the runtime without the version that the profiler puts behind it: cudaLaunchKernel_v7000. Calls of the driver have
/// versions of their own (cuMemAlloc_v2).
pub(crate) fn call_name(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((call, version))
            if call.starts_with("cuda") && version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            call
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_other_captures() {
        assert_eq!(copy_name(Some(1), Some(1), Some(2)), "Memcpy HtoD (Pinned -> Device)");
        assert_eq!(copy_name(Some(8), None, Some(2)), "Memcpy DtoD");
        assert_eq!(set_name(Some(2)), "Memset (Device)");
        assert_eq!(wait_name(Some(2)), "Stream Wait Event");
        assert_eq!(call_name("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
        for own in ["cuMemAlloc_v2", "cudaMemcpy", "cudaGraph_v2", "_v7000"] {
            assert_eq!(call_name(own), own);
        }
    }
}
