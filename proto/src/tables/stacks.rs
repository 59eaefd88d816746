//! `python.stacks`: where threads were, at a request or at a detected hang.

use crate::table::{Text, Time};

crate::table! {
    python.stacks, Agent, "One row per frame of a thread's Python stack, for every capture (probe stack, probe flamegraph, a detected hang). The collector reads stacks from the memory of the processes on its node.";
    sort: [capture, ts];
    examples: [
        "SELECT rank, function, file, line, waits_for FROM python.stacks WHERE capture = (SELECT MAX(capture) FROM python.stacks) AND main AND depth = 0 ORDER BY rank",
        "SELECT function, file, SUM(samples) AS samples FROM python.stacks WHERE depth = 0 AND gil GROUP BY function, file ORDER BY samples DESC LIMIT 20",
    ];
    capture: i64, "", "Number of the capture in the run, from 1. One capture reads all processes at about the same time.";
    ts: Time, "", "When the process was read; of samples, when the first was taken.";
    thread: i32, "", "Number of the thread within its process and capture, from 0. With samples, each different stack of a thread has its own number.";
    thread_name: Option<Text>, "", "Its name in Python's threading; NULL where it has none.";
    os_thread: Option<i64>, "", "Its id in the kernel; NULL where the interpreter does not keep it (before Python 3.11).";
    main: bool, "", "Whether it is the main thread.";
    gil: bool, "", "Whether it holds the global interpreter lock.";
    running: bool, "", "Whether it runs on a core or is ready to, according to the kernel.";
    waits_for: Option<Text>, "", "What it waits for, when that is known: collective all_reduce, CUDA synchronize, DataLoader, lock, futex, sleep.";
    depth: i32, "", "Index of the frame: 0 is the innermost one, which runs.";
    function: Option<Text>, "", "Qualified name of the function; NULL in the one row of a thread that runs no Python now.";
    file: Option<Text>, "", "File of its code, as the interpreter has it.";
    line: Option<i32>, "", "The line that runs; NULL where it is not known.";
    user_code: bool, "", "Whether the file is neither of the standard library nor of an installed package.";
    samples: i64, "", "Samples in which the thread was seen with this stack; 1 for a single capture.";
    moving: bool, "", "Whether the thread changed while it was read: its frames may then be from different moments.";
    method: Text, "", "memory (read while it ran), paused (read while it was stopped), native (the same, with the frames of C and C++) or agent (asked of the process itself).";
}
