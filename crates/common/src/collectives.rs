//! What is known of collectives by their names.

/// Collectives whose tensors have the same size and type on all ranks, by the names of torch.distributed and of its process groups.
const EQUAL: [&str; 8] = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "_all_gather_base",
    "_reduce_scatter_base",
    "barrier",
];

/// Whether all ranks must give the operation tensors of the same size and type. Others may have another size on each rank.
pub fn has_equal_tensors(operation_type: &str) -> bool {
    EQUAL.contains(&operation_type)
}
