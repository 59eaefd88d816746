//! Stacks as rows: the columns of `python.stacks`, for programs.

use probe_common::error::Result;
use probe_inspect::stacks::method_name;
use probe_proto::v1::{ProcessStacks, StackFrame, StacksAnswer, ThreadStack};

use crate::output::{OutputFormat, rows};

/// A frame with its process and thread; a thread without frames is one row.
struct StackFrameRow<'a> {
    process: &'a ProcessStacks,
    thread: &'a ThreadStack,
    number: i64,
    depth: i64,
    frame: Option<&'a StackFrame>,
}

/// Writes the rows to standard output.
pub(super) fn show(answer: &StacksAnswer, format: OutputFormat) -> Result<()> {
    let mut all = Vec::new();
    for process in &answer.processes {
        for (thread, number) in process.threads.iter().zip(0..) {
            let nothing = std::iter::once(None).filter(|_| thread.frames.is_empty());
            let frames = thread.frames.iter().map(Some).chain(nothing);
            all.extend(frames.zip(0..).map(|(frame, depth)| StackFrameRow { process, thread, number, depth, frame }));
        }
        if !process.problem.is_empty() {
            super::super::report::note(format_args!("process {}: {}", process.pid, process.problem));
            if !process.hint.is_empty() {
                super::super::report::hint(&process.hint);
            }
        }
    }
    let some = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());

    let each = || all.iter();
    let capture = (answer.capture > 0).then_some(answer.capture);
    rows::show(
        vec![
            ("host", rows::text(each().map(|row| Some(&row.process.host)))),
            ("pid", rows::integers(each().map(|row| Some(i64::from(row.process.pid))))),
            ("rank", rows::integers(each().map(|row| row.process.rank.map(i64::from)))),
            ("capture", rows::integers(each().map(|_| capture))),
            ("ts", rows::times(each().map(|_| Some(answer.unix_ns)))),
            ("thread", rows::integers(each().map(|row| Some(row.number)))),
            ("thread_name", rows::text(each().map(|row| some(&row.thread.name)))),
            ("os_thread", rows::integers(each().map(|row| row.thread.os_thread.map(i64::from)))),
            ("main", rows::flags(each().map(|row| row.thread.main))),
            ("gil", rows::flags(each().map(|row| row.thread.gil))),
            ("running", rows::flags(each().map(|row| row.thread.running))),
            ("waits_for", rows::text(each().map(|row| some(&row.thread.waits_for)))),
            ("depth", rows::integers(each().map(|row| Some(row.depth)))),
            ("function", rows::text(each().map(|row| row.frame.map(|frame| &frame.function)))),
            ("file", rows::text(each().map(|row| row.frame.map(|frame| &frame.file)))),
            ("line", rows::integers(each().map(|row| row.frame.and_then(|frame| frame.line).map(i64::from)))),
            ("user_code", rows::flags(each().map(|row| row.frame.is_some_and(|frame| frame.user_code)))),
            ("samples", rows::integers(each().map(|row| i64::try_from(row.thread.samples).ok()))),
            ("moving", rows::flags(each().map(|row| row.thread.moving))),
            ("method", rows::text(each().map(|row| Some(method_name(row.process))))),
        ],
        format,
    )
}
