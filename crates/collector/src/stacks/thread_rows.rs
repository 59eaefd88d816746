//! The rows of `python.stacks`: one a frame.

use probe_inspect::stacks::method_name;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::stacks;
use probe_proto::v1::{ProcessStacks, ThreadStack};

/// What the rows of one thread are made of.
pub(super) struct ThreadRows<'a> {
    pub(super) capture: i64,
    pub(super) unix_ns: i64,
    pub(super) process: &'a ProcessStacks,
    pub(super) thread: &'a ThreadStack,
    pub(super) number: i32,
}

impl ThreadRows<'_> {
    pub(super) fn push(&self, rows: &mut BatchBuilder, texts: &mut StringTable) {
        let thread = self.thread;
        let mut text = |text: &str| (!text.is_empty()).then(|| texts.id(text));
        let (thread_name, waits_for) = (text(&thread.name), text(&thread.waits_for));
        let method = method_name(self.process);
        let nothing = std::iter::once(None).filter(|_| thread.frames.is_empty());
        let frames = thread.frames.iter().map(Some).chain(nothing);
        for (frame, depth) in frames.zip(0_i32..) {
            let row = stacks::Row {
                capture: self.capture,
                ts: Time(self.unix_ns),
                thread: self.number,
                thread_name,
                os_thread: thread.os_thread.map(i64::from),
                main: thread.main,
                gil: thread.gil,
                running: thread.running,
                waits_for,
                depth,
                function: frame.map(|frame| texts.id(&frame.function)),
                file: frame.map(|frame| texts.id(&frame.file)),
                line: frame.and_then(|frame| frame.line).and_then(|line| i32::try_from(line).ok()),
                user_code: frame.is_some_and(|frame| frame.user_code),
                samples: i64::try_from(thread.samples).unwrap_or(i64::MAX),
                moving: thread.moving,
                method: texts.id(method),
            };
            rows.push(row);
        }
    }
}
