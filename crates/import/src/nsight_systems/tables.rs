//! Tables of an export, by the names that all versions have in common.

pub(crate) const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
pub(crate) const COPIES: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
pub(crate) const SETS: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
pub(crate) const WAITS: &str = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
pub(crate) const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
pub(crate) const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
pub(crate) const RANGES: &str = "NVTX_EVENTS";

/// Tables whose rows are read, with the column that has the process.
pub(crate) const EVENTS: &[(&str, &str)] = &[
    (KERNELS, "globalPid"),
    (COPIES, "globalPid"),
    (SETS, "globalPid"),
    (WAITS, "globalPid"),
    (GRAPHS, "globalPid"),
    (CALLS, "globalTid"),
    (RANGES, "globalTid"),
];

/// Tables whose rows become no rows here, with a description.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    ("OSRT_API", "call of the operating system"),
    ("SCHED_EVENTS", "thread scheduled"),
    ("COMPOSITE_EVENTS", "sample of a processor"),
    ("CUPTI_ACTIVITY_KIND_OVERHEAD", "work of the profiler"),
    ("PROFILER_OVERHEAD", "work of the profiler"),
    ("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUDA event"),
    ("CUDA_GRAPH_EVENTS", "change of a CUDA graph"),
    ("CUDA_GRAPH_NODE_EVENTS", "change of a CUDA graph"),
    ("CUDA_GPU_MEMORY_USAGE_EVENTS", "memory"),
    ("CUDA_UM_CPU_PAGE_FAULT_EVENTS", "page fault"),
    ("CUDA_UM_GPU_PAGE_FAULT_EVENTS", "page fault"),
    ("CUBLAS_EVENTS", "call of cuBLAS"),
    ("CUDNN_EVENTS", "call of cuDNN"),
    ("GPU_METRICS", "counter"),
    ("GENERIC_EVENTS", "event of another source"),
    ("MPI_COLLECTIVES_EVENTS", "call of MPI"),
    ("MPI_P2P_EVENTS", "call of MPI"),
    ("MPI_START_WAIT_EVENTS", "call of MPI"),
    ("MPI_OTHER_EVENTS", "call of MPI"),
];
