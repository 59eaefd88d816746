//! What is open when no more records come: where a process was when it died.

use probe_proto::encode::StringTable;
use probe_proto::stage::Stage;

use super::analyser::Analyser;
use super::drops::INCOMPLETE;
use super::frame::ThreadFrame;
use super::kind::TORCH_TRACE;
use super::symbol_lookup::SymbolLookup;
use super::thread::AnalysedThread;
use crate::row_buffer::RowBuffer;

/// The innermost frame that is open on a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFrame {
    /// Operating-system id of the thread.
    pub thread: i64,
    /// The module, optimizer or data set; None if the frame is of another kind, or its name is not known.
    pub module: Option<String>,
    /// The stage as in `python.torch_trace`, or `data`, `checkpoint` or `snippet`.
    pub stage: &'static str,
    /// The current step.
    pub step: i64,
    /// When the frame was entered (nanoseconds since 1970).
    pub since_ns: i64,
}

impl<N: SymbolLookup> Analyser<N> {
    /// The innermost frame of each thread that has one, the one entered last first.
    pub fn open(&self, strings: &StringTable) -> Vec<OpenFrame> {
        let mut open: Vec<OpenFrame> =
            self.threads.iter().filter_map(|thread| self.innermost(thread, strings)).collect();
        open.sort_by_key(|one| std::cmp::Reverse(one.since_ns));
        open
    }

    fn innermost(&self, thread: &AnalysedThread, strings: &StringTable) -> Option<OpenFrame> {
        let module = |call| {
            let name = self.modules.get(self.calls.get(call)?.module)?.name?;
            strings.get(name).map(str::to_owned)
        };
        let newest = thread.not_before(0);
        let (module, stage, since) = match thread.frames.last()? {
            ThreadFrame::Module { call, .. } => {
                let known = self.calls.get(*call);
                let stage = match known {
                    Some(call) if call.recompute => Stage::Recompute.as_str(),
                    _ if self.trained && thread.is_validating() => Stage::Validation.as_str(),
                    _ => Stage::Forward.as_str(),
                };
                (module(*call), stage, known.map_or(newest, |call| call.begin))
            }
            ThreadFrame::Node { owner } => (module(*owner), Stage::Backward.as_str(), newest),
            ThreadFrame::Pass(pass) => (None, Stage::Backward.as_str(), pass.begin),
            ThreadFrame::Optimizer { begin, class, .. } => (self.names.optimizer(*class), Stage::Step.as_str(), *begin),
            ThreadFrame::Data { begin, class, .. } => {
                (self.names.class(*class).map(|name| name.to_string()), "data", *begin)
            }
            ThreadFrame::Suspended => (None, "snippet", newest),
            ThreadFrame::Checkpoint { begin } => (None, "checkpoint", *begin),
        };
        let since_ns = self.clock.as_ref().map_or(0, |clock| clock.unix_ns(since));
        Some(OpenFrame { thread: thread.id, module, stage, step: self.step, since_ns })
    }

    /// Ends the analysis when no more records come: rows that are held are released, and intervals that never ended are counted
    /// as dropped. Half an interval is no row.
    pub fn give_up(&mut self, sink: &mut RowBuffer) {
        self.flush_reads(sink);
        let frames = self.threads.iter().flat_map(|thread| &thread.frames);
        let missing = frames.map(|frame| match frame {
            ThreadFrame::Module { call, hidden: false, .. }
                if self.calls.get(*call).is_some_and(|call| call.detail) =>
            {
                1
            }
            ThreadFrame::Pass(pass) => pass.work.len() as u64,
            _ => 0,
        });
        let missing: u64 = missing.sum();
        if missing > 0 {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
        sink.release();
        self.report_groups(u64::MAX, sink);
        if let Some(clock) = self.clock.as_ref().filter(|_| self.newest > 0) {
            sink.last_record_ns = clock.unix_ns(self.newest);
        }
    }
}
