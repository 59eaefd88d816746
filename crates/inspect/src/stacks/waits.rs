//! What a thread waits for, told from the library functions that it is in and from the system call it is in.

use probe_proto::v1::StackFrame;

/// Functions of torch that wait, wherever one stands under the user's code, what says most first: the end of the file's
/// path (or a directory in it), the function ("" is any), what it waits for ("…" stands for the function's name).
const TORCH: &[(&str, &str, &str)] = &[
    ("torch/distributed/distributed_c10d.py", "init_process_group", "init_process_group"),
    ("torch/distributed/distributed_c10d.py", "new_group", "new_group"),
    ("torch/distributed/distributed_c10d.py", "_store_based_barrier", "init_process_group"),
    ("torch/distributed/distributed_c10d.py", "destroy_process_group", "destroy_process_group"),
    ("torch/distributed/distributed_c10d.py", "", "collective …"),
    ("torch/distributed/_functional_collectives.py", "", "collective …"),
    ("torch/distributed/rendezvous.py", "", "rendezvous"),
    ("torch/cuda/__init__.py", "synchronize", "CUDA synchronize"),
    ("torch/cuda/streams.py", "synchronize", "CUDA synchronize"),
    ("torch/utils/data/dataloader.py", "", "DataLoader"),
    ("torch/_inductor/", "", "torch.compile"),
    ("torch/_dynamo/convert_frame.py", "", "torch.compile"),
    ("torch/serialization.py", "", "torch.serialization …"),
];

/// Functions of C and C++, which only native frames have.
const NATIVE: &[(&str, &str, &str)] = &[
    ("", "cudaStreamSynchronize", "CUDA synchronize"),
    ("", "cudaDeviceSynchronize", "CUDA synchronize"),
    ("", "cudaEventSynchronize", "CUDA synchronize"),
    ("", "cuStreamSynchronize", "CUDA synchronize"),
    ("", "cuCtxSynchronize", "CUDA synchronize"),
    ("", "cuEventSynchronize", "CUDA synchronize"),
    ("", "c10::cuda::stream_synchronize", "CUDA synchronize"),
    ("", "c10d::ProcessGroupNCCL::WorkNCCL::synchronizeInternal", "collective of NCCL"),
    ("", "c10d::TCPStore::wait", "rendezvous"),
    ("", "c10d::TCPStore::get", "rendezvous"),
];

/// Functions of the standard library that wait, in the form of `TORCH`; used where no function of torch says more.
const LIBRARY: &[(&str, &str, &str)] = &[
    ("/queue.py", "", "queue …"),
    ("/multiprocessing/queues.py", "", "queue …"),
    ("/concurrent/futures/_base.py", "", "future …"),
    ("/threading.py", "wait", "condition or event"),
    ("/threading.py", "join", "thread to end"),
    ("/threading.py", "_wait_for_tstate_lock", "thread to end"),
    ("/threading.py", "acquire", "lock"),
    ("/subprocess.py", "", "child process"),
    ("/multiprocessing/popen_fork.py", "", "child process"),
    ("/multiprocessing/connection.py", "", "pipe"),
    ("/ssl.py", "", "network"),
    ("/socket.py", "", "network"),
    ("/selectors.py", "", "poll"),
];

/// What a thread waits for; empty where that is not known. `state` is the kernel's letter, and `system_call` a number. A thread
/// that runs can wait all the same: CUDA's waits keep the core.
pub(super) fn waits_for(frames: &[StackFrame], state: Option<char>, system_call: Option<i64>) -> String {
    let under = frames.iter().take_while(|frame| !frame.user_code);
    if let Some(what) = say(TORCH, under.clone()).or_else(|| say(NATIVE, under.clone())) {
        return what;
    }
    if state == Some('R') {
        return String::new();
    }
    if let Some(what) = say(LIBRARY, under.clone()) {
        return what;
    }
    let call = match (system_call, state) {
        (Some(number), _) => kernel(number),
        (None, Some('D')) => "disk or device",
        (None, Some('T' | 't')) => "SIGCONT: it is stopped",
        (None, _) => "",
    };
    let backward = under.clone().any(|frame| function(frame) == "_engine_run_backward");
    match (backward, call) {
        (true, "") => "backward pass in C++".into(),
        (true, call) => format!("backward pass in C++ ({call})"),
        (false, call) => call.into(),
    }
}

/// The text of the first rule that fits any of the frames.
fn say<'a>(rules: &[(&str, &str, &str)], frames: impl Iterator<Item = &'a StackFrame> + Clone) -> Option<String> {
    rules.iter().find_map(|(file, of, what)| {
        let fits = |frame: &&StackFrame| {
            let there = if file.ends_with('/') { frame.file.contains(file) } else { frame.file.ends_with(file) };
            // The top level of a file of Python is being imported, and waits for nothing.
            there && if of.is_empty() { function(frame) != "<module>" } else { *of == function(frame) }
        };
        frames.clone().find(fits).map(|frame| what.replace('…', function(frame)))
    })
}

/// The last part of a frame's qualified name: of `Condition.wait` it is `wait`.
fn function(frame: &StackFrame) -> &str {
    frame.function.rsplit('.').next().unwrap_or(&frame.function)
}

/// What a system call waits for; empty where it does not wait.
fn kernel(number: i64) -> &'static str {
    const FUTEX: i64 = libc::SYS_futex;
    const CLOCK_NANOSLEEP: i64 = libc::SYS_clock_nanosleep;
    const NANOSLEEP: i64 = libc::SYS_nanosleep;
    const PSELECT: i64 = libc::SYS_pselect6;
    const PPOLL: i64 = libc::SYS_ppoll;
    const EPOLL: i64 = libc::SYS_epoll_pwait;
    const READ: i64 = libc::SYS_read;
    const RECEIVE: i64 = libc::SYS_recvfrom;
    const RECEIVE_MESSAGE: i64 = libc::SYS_recvmsg;
    const WRITE: i64 = libc::SYS_write;
    const SEND: i64 = libc::SYS_sendto;
    const ACCEPT: i64 = libc::SYS_accept4;
    const CONNECT: i64 = libc::SYS_connect;
    const WAIT: i64 = libc::SYS_wait4;
    const WAIT_ID: i64 = libc::SYS_waitid;
    const FLOCK: i64 = libc::SYS_flock;
    const FSYNC: i64 = libc::SYS_fsync;
    const IOCTL: i64 = libc::SYS_ioctl;
    match number {
        // Locks, conditions and the GIL are futexes.
        FUTEX => "futex",
        CLOCK_NANOSLEEP | NANOSLEEP => "sleep",
        PSELECT | PPOLL | EPOLL => "poll",
        READ | RECEIVE | RECEIVE_MESSAGE => "read",
        WRITE | SEND => "write",
        ACCEPT | CONNECT => "network",
        WAIT | WAIT_ID => "child process",
        FLOCK => "file lock",
        FSYNC => "disk",
        IOCTL => "device",
        number => older(number),
    }
}

/// What a system call waits for that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn older(number: i64) -> &'static str {
    match number {
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => "poll",
        libc::SYS_accept => "network",
        _ => "",
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: i64) -> &'static str {
    ""
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::user_code::is_user_code;

    fn stack(frames: &[(&str, &str)]) -> Vec<StackFrame> {
        let frame = |(function, file): &(&str, &str)| StackFrame {
            function: (*function).into(),
            file: (*file).into(),
            user_code: is_user_code(file),
            ..StackFrame::default()
        };
        frames.iter().map(frame).collect()
    }

    const PACKAGES: &str = "/v/lib/python3.11/site-packages/";

    #[test]
    fn torch_says_more_than_the_library_and_both_more_than_the_kernel() {
        let c10d = format!("{PACKAGES}torch/distributed/distributed_c10d.py");
        let stack_of = stack(&[
            ("all_reduce", &c10d),
            ("wrapper", "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"),
            ("train", "/train.py"),
        ]);
        assert_eq!(waits_for(&stack_of, Some('S'), Some(libc::SYS_futex)), "collective all_reduce");
        let loader = format!("{PACKAGES}torch/utils/data/dataloader.py");
        let polling = stack(&[
            ("_PollLikeSelector.select", "/usr/lib/python3.11/selectors.py"),
            ("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
            ("_MultiProcessingDataLoaderIter._try_get_data", &loader),
            ("<module>", "/train.py"),
        ]);
        assert_eq!(waits_for(&polling, Some('S'), None), "DataLoader");
        assert_eq!(waits_for(&polling[..2], Some('S'), None), "queue get");
        let plain = stack(&[("<module>", "/train.py")]);
        assert_eq!(waits_for(&plain, Some('S'), Some(libc::SYS_futex)), "futex");
        assert_eq!(waits_for(&plain, Some('R'), None), "");
        assert_eq!(waits_for(&plain, Some('D'), None), "disk or device");
    }

    #[test]
    fn what_stands_above_the_users_code_says_nothing() {
        let run = stack(&[
            ("train", "/train.py"),
            ("run", "/usr/lib/python3.11/threading.py"),
            ("join", "/usr/lib/python3.11/threading.py"),
        ]);
        assert_eq!(waits_for(&run, Some('S'), None), "");
    }

    #[test]
    fn an_import_waits_for_nothing() {
        let inductor = format!("{PACKAGES}torch/_inductor/config.py");
        let importing =
            stack(&[("<module>", &inductor), ("_find_and_load", "<frozen importlib._bootstrap>"), ("main", "/t.py")]);
        assert_eq!(waits_for(&importing, Some('R'), None), "");
        let compiling =
            stack(&[("compile_fx", &format!("{PACKAGES}torch/_inductor/compile_fx.py")), ("main", "/t.py")]);
        assert_eq!(waits_for(&compiling, Some('R'), None), "torch.compile");
    }

    #[test]
    fn a_backward_pass_waits_in_cpp() {
        let graph = format!("{PACKAGES}torch/autograd/graph.py");
        let frames = stack(&[("_engine_run_backward", &graph), ("<module>", "/train.py")]);
        assert_eq!(waits_for(&frames, Some('S'), Some(libc::SYS_futex)), "backward pass in C++ (futex)");
        assert_eq!(waits_for(&frames, Some('R'), None), "");
    }

    #[test]
    fn native_frames_say_what_python_has_no_function_for() {
        let frames = stack(&[("poll", "/usr/lib/libc.so.6"), ("cudaStreamSynchronize", "/x/libcudart.so.12")]);
        assert_eq!(waits_for(&frames, Some('R'), None), "");
        let native = frames.into_iter().map(|frame| StackFrame { user_code: false, ..frame }).collect::<Vec<_>>();
        assert_eq!(waits_for(&native, Some('R'), None), "CUDA synchronize");
    }

    #[test]
    fn cuda_waits_keep_the_core() {
        let frames = stack(&[("synchronize", &format!("{PACKAGES}torch/cuda/__init__.py")), ("<module>", "/train.py")]);
        assert_eq!(waits_for(&frames, Some('R'), None), "CUDA synchronize");
    }
}
