//! `python.environment`: the conditions that a measurement was made under.

use crate::table::{Text, Time};

crate::table! {
    python.environment, Agent, "The conditions of a measurement: one row per process when training begins, and another one when a condition changes.";
    sort: [ts];
    examples: [
        "SELECT rank, torch_version, cuda_version, gpu_models, parameters, default_dtype, autocast_dtype, num_workers, batch_shape FROM python.environment ORDER BY rank, ts DESC",
        "SELECT cudnn_benchmark, deterministic_algorithms, float32_matmul_precision, torch_threads, cpu_cores, COUNT(*) AS processes FROM python.environment GROUP BY ALL",
    ];
    ts: Time, "", "When it was noted.";
    step: i64, "", "Optimizer steps finished then.";
    python_version: Option<Text>, "", "Version of the interpreter.";
    platform: Option<Text>, "", "Operating system and architecture: Linux-6.8.0-x86_64.";
    cpu_model: Option<Text>, "", "Model of the processor.";
    cpu_cores: Option<i32>, "", "Logical cores that this process may run on.";
    machine_cores: Option<i32>, "", "Logical cores of the machine.";
    machine_memory: Option<f64>, "MB", "Memory of the machine, in 10^6 bytes.";
    torch_version: Option<Text>, "", "Version of torch.";
    cuda_version: Option<Text>, "", "Version of CUDA that torch was built with; NULL for one without.";
    cudnn_version: Option<i64>, "", "Version of cuDNN in use; NULL until CUDA is initialised.";
    gpu_count: Option<i32>, "", "Devices that the process can use. NULL until the program initialises CUDA; the agent never does.";
    gpu_models: Option<Text>, "", "Their models, each once; NULL until CUDA is initialised.";
    cuda_visible_devices: Option<Text>, "", "CUDA_VISIBLE_DEVICES; NULL where it is not set.";
    default_dtype: Option<Text>, "", "torch.get_default_dtype().";
    autocast: Option<bool>, "", "Whether autocast was on when the model was first called; NULL before that.";
    autocast_dtype: Option<Text>, "", "Autocast's type then; NULL where it was off.";
    cudnn_benchmark: Option<bool>, "", "torch.backends.cudnn.benchmark.";
    cudnn_deterministic: Option<bool>, "", "torch.backends.cudnn.deterministic.";
    deterministic_algorithms: Option<bool>, "", "torch.are_deterministic_algorithms_enabled().";
    float32_matmul_precision: Option<Text>, "", "torch.get_float32_matmul_precision(): highest, high (TF32) or medium (bfloat16).";
    matmul_tf32: Option<bool>, "", "torch.backends.cuda.matmul.allow_tf32.";
    cudnn_tf32: Option<bool>, "", "torch.backends.cudnn.allow_tf32.";
    anomaly_detection: Option<bool>, "", "torch.is_anomaly_enabled(): every operation of the backward pass is traced and checked for NaN. Read with the other switches: when a model is first called, a DataLoader is iterated, and after every 256 steps.";
    torch_profiler: Option<bool>, "", "Whether a profiler of torch was on, the program's own or that of a capture.";
    cuda_launch_blocking: Option<Text>, "", "CUDA_LAUNCH_BLOCKING; NULL where it is not set.";
    nccl_debug: Option<Text>, "", "NCCL_DEBUG; NULL where it is not set.";
    torch_distributed_debug: Option<Text>, "", "TORCH_DISTRIBUTED_DEBUG; NULL where it is not set.";
    cpu_quota: Option<f64>, "", "Processors that its cgroup may use at a time, by quota (cpu.max); NULL where there is no limit.";
    memory_limit: Option<f64>, "MB", "Memory that its cgroup may use (memory.max), in 10^6 bytes; NULL where there is no limit.";
    torch_threads: Option<i32>, "", "torch.get_num_threads().";
    interop_threads: Option<i32>, "", "torch.get_num_interop_threads().";
    model: Option<Text>, "", "Class of the outermost module with the most parameters that was called, without wrappers; NULL before a model was called.";
    wrapper: Option<Text>, "", "Wrappers around the model, or the class it was turned into: DistributedDataParallel, FullyShardedDataParallel, FSDPModule, OptimizedModule, Fabric's _FabricModule; several with + between.";
    find_unused_parameters: Option<bool>, "", "DistributedDataParallel's find_unused_parameters; this column and the three below are NULL without that wrapper.";
    static_graph: Option<bool>, "", "Its static_graph.";
    gradient_as_bucket_view: Option<bool>, "", "Its gradient_as_bucket_view.";
    bucket_cap: Option<i64>, "B", "Size of its buckets (bucket_cap_mb).";
    parameters: Option<i64>, "", "Its parameters, each counted once.";
    trainable_parameters: Option<i64>, "", "Those of them that require a gradient.";
    parameter_bytes: Option<i64>, "B", "Their size.";
    parameter_dtype: Option<Text>, "", "Their type; several with + between.";
    memory_format: Option<Text>, "", "Memory format of its four- and five-dimensional parameters (convolution kernels): contiguous, channels_last, or both with + between. NULL if it has none for which the two differ.";
    device: Option<Text>, "", "Device of its first parameter.";
    batch_shape: Option<Text>, "", "Shape of the first tensor that the model was given, as last seen.";
    optimizer: Option<Text>, "", "Class of the first optimizer that stepped.";
    optimizer_fused: Option<bool>, "", "Its fused, as given; NULL leaves the choice to torch.";
    optimizer_foreach: Option<bool>, "", "Its foreach, as given; NULL leaves the choice to torch.";
    optimizers_gone: Option<i64>, "", "How many of torch's optimizers had stepped and were gone: about one for each step if the program makes a new one each time. Noted before the 32nd step of an optimizer, then before the 64th, 128th and so on. NULL before that.";
    optimizer_steps: Option<i64>, "", "How many steps of optimizers had been made then; NULL where none is gone.";
    unoptimized_parameters: Option<i64>, "", "Size of the parameters of called modules that got a gradient in the steps just before and are in no optimizer of torch's, so that they never change. Noted before the 32nd step of an optimizer, and then before every 256th. NULL before that, and if no parameter is in an optimizer, which may work on copies of them.";
    unoptimized_parameter: Option<Text>, "", "Name of the first of them, below its outermost module; NULL where there is none.";
    dataset: Option<Text>, "", "Class of the training DataLoader's dataset: of the first one that was iterated with gradients on, else of the first one.";
    sampler: Option<Text>, "", "Class of its sampler: RandomSampler is shuffle=True.";
    batch_size: Option<i64>, "", "Its batch_size; NULL where it has a batch sampler or none.";
    num_workers: Option<i32>, "", "Its num_workers.";
    prefetch_factor: Option<i32>, "", "Its prefetch_factor; NULL without workers.";
    pin_memory: Option<bool>, "", "Its pin_memory, as asked for.";
    persistent_workers: Option<bool>, "", "Its persistent_workers.";
    drop_last: Option<bool>, "", "Its drop_last.";
    start_method: Option<Text>, "", "How its workers are started: fork, spawn, forkserver; NULL without workers.";
}
