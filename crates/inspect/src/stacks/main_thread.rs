//! One sample of a process: where its main thread is, and which thread holds the global interpreter lock.

use probe_common::error::Result;
use probe_proto::v1::{StackFrame, ThreadStack};

use super::roots::{self, ThreadRoots};
use super::{StackReader, is_of_agent};

/// A sample of a process: its main thread, and the thread that holds the lock.
#[derive(Debug)]
pub struct MainThread {
    pub thread: ThreadStack,
    /// The thread that holds the global interpreter lock, where it is another one.
    pub gil_holder: Option<ThreadStack>,
}

impl MainThread {
    /// The innermost frame of the user's code.
    pub fn user_frame(&self) -> Option<&StackFrame> {
        user_frame(&self.thread)
    }

    /// The innermost frame, where the user's code has called a library. Functions that the agent put around the library's do not
    /// count.
    pub fn library_frame(&self) -> Option<&StackFrame> {
        self.thread.frames.iter().find(|frame| !is_of_agent(frame)).filter(|frame| !frame.user_code)
    }

    /// Where the thread that holds the lock is: in the user's code, where it has any.
    pub fn holder_frame(&self) -> Option<&StackFrame> {
        let holder = self.gil_holder.as_ref()?;
        user_frame(holder).or_else(|| holder.frames.first())
    }
}

fn user_frame(thread: &ThreadStack) -> Option<&StackFrame> {
    thread.frames.iter().find(|frame| frame.user_code)
}

/// Samples one process again and again, and leaves torn readings out.
#[derive(Debug, Default)]
pub struct MainThreads(ThreadRoots);

impl MainThreads {
    /// Reads the process once while it runs; None where the reading was torn, or there is no main thread with a stack.
    ///
    /// # Errors
    /// The process can't be read, or has ended.
    pub fn sample(&mut self, reader: &mut StackReader) -> Result<Option<MainThread>> {
        let mut threads = reader.sample()?;
        for _ in 0..roots::AGAIN {
            if threads.iter().filter(|thread| thread.main).all(|thread| self.0.is_plausible(thread)) {
                break;
            }
            threads = reader.sample()?;
        }
        Ok(self.choose(threads))
    }

    fn choose(&mut self, mut threads: Vec<ThreadStack>) -> Option<MainThread> {
        let index = threads.iter().position(|thread| thread.main)?;
        let thread = threads.swap_remove(index);
        if thread.frames.is_empty() || !self.0.is_whole(&thread) {
            return None;
        }
        Some(MainThread { thread, gil_holder: threads.into_iter().find(|thread| thread.gil) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(main: bool, gil: bool, frames: &[(&str, bool)]) -> ThreadStack {
        let frame = |(function, user_code): &(&str, bool)| StackFrame {
            function: (*function).into(),
            user_code: *user_code,
            ..StackFrame::default()
        };
        ThreadStack { main, gil, frames: frames.iter().map(frame).collect(), ..ThreadStack::default() }
    }

    #[test]
    fn a_sample_says_where_the_main_thread_is_and_who_holds_the_lock() {
        let mut threads = MainThreads::default();
        let main = thread(true, false, &[("item", false), ("train", true), ("<module>", true)]);
        let other = thread(false, true, &[("dumps", false), ("write", true), ("run", false)]);
        let seen = threads.choose(vec![other, main]).unwrap();
        let names = |frame: Option<&StackFrame>| frame.map(|frame| frame.function.clone()).unwrap_or_default();
        assert_eq!(
            [seen.user_frame(), seen.library_frame(), seen.holder_frame()].map(names),
            ["train", "item", "write"]
        );
        // Its outermost function is another one: frames of two moments.
        assert!(threads.choose(vec![thread(true, true, &[("train", true)])]).is_none());
        let alone = threads.choose(vec![thread(true, true, &[("train", true), ("<module>", true)])]).unwrap();
        assert_eq!([alone.library_frame(), alone.holder_frame()].map(names), ["", ""]);
        assert!(threads.choose(vec![thread(false, true, &[("run", false)])]).is_none());
        let mut around = thread(true, true, &[("_timed.<locals>.wait", false), ("wait", false), ("<module>", true)]);
        around.frames[0].file = "/venv/lib/python3.11/site-packages/probe_agent/torch/synchronize.py".into();
        assert_eq!(names(threads.choose(vec![around]).unwrap().library_frame()), "wait");
    }
}
