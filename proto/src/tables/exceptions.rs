//! `python.exceptions`: what ended threads and processes, and what ran out of memory.

use crate::table::{Text, Time};

crate::table! {
    python.exceptions, Agent, "One row per uncaught exception of any thread, and per out-of-memory exception in a call of an outermost module.";
    sort: [step, ts];
    examples: [
        "SELECT rank, step, exception, message, module, stage, file, line FROM python.exceptions WHERE uncaught ORDER BY ts",
        "SELECT rank, ts, module, stage, message, memory FROM python.exceptions WHERE out_of_memory ORDER BY ts",
    ];
    step: i64, "", "Optimizer steps finished when it was raised.";
    ts: Time, "", "When it was recorded: when it ended its thread, or when it left the outermost module.";
    exception: Text, "", "Its class, with the module unless it is a builtin: torch.OutOfMemoryError.";
    message: Text, "", "What it says; the first 4096 bytes.";
    traceback: Text, "", "As Python prints it, causes and all; of one that is longer than 16384 bytes the beginning and the end.";
    uncaught: bool, "", "Whether it was uncaught. An exception that left a module may be caught later; otherwise it has a second row.";
    main: bool, "", "Whether it was raised in the main thread, where it ends the process.";
    module: Option<Text>, "", "Innermost module in whose call it was raised, as python.torch_trace names it; NULL outside of all modules.";
    stage: Option<Text>, "", "forward, backward, step (optimizer) or recompute, by the functions that it left; NULL outside of them.";
    function: Option<Text>, "", "Function of the innermost line of user code that it left.";
    file: Option<Text>, "", "File of that line.";
    line: Option<i32>, "", "Its number.";
    out_of_memory: bool, "", "Whether it means that memory ran out, on a device (torch.OutOfMemoryError) or on the host (MemoryError, torch's allocator).";
    memory: Option<Text>, "", "For an out-of-memory exception: the process's memory and the free memory on the host, and with CUDA the summary of torch's allocator.";
    thread: i64, "", "Operating-system id of its thread.";
    thread_name: Text, "", "Its name in Python's threading.";
}
