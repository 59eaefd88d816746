//! How many bytes a collective moves over each link.

/// Bytes that each link carries, over the operation's bytes, in a group of `ranks`, as nccl-tests defines it. `operation` is
/// torch's name (`all_gather_into_tensor`) or a library's (`AllGather`).
pub fn bus_factor(operation: &str, ranks: i64) -> f64 {
    let plain: String = operation.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let ranks = ranks.max(1) as f64;
    let shared = (ranks - 1.0) / ranks;
    if plain.contains("allreduce") {
        2.0 * shared
    } else if ["allgather", "reducescatter", "alltoall", "gather", "scatter"].iter().any(|kind| plain.contains(kind)) {
        shared
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (operation, ranks, factor) in [
            ("all_reduce", 2, 1.0),
            ("all_reduce_coalesced", 4, 1.5),
            ("all_gather_into_tensor", 4, 0.75),
            ("AllGather", 4, 0.75),
            ("broadcast", 8, 1.0),
            ("reduce", 8, 1.0),
            ("barrier", 1, 1.0),
        ] {
            assert!((bus_factor(operation, ranks) - factor).abs() < 1e-12, "{operation}");
        }
    }
}
