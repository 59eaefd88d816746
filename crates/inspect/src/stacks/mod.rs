//! Reads the stacks of Python processes from their memory, without their help.
//!
//! [`StackReader`] reads one process, [`sampler`] reads it many times, and [`agent`] asks the process itself where reading is not
//! allowed ([`permission`] says why). [`fold`] groups threads that have the same stack. Stacks are returned as messages of the
//! control service ([`v1::ProcessStacks`](probe_proto::v1::ProcessStacks)).

pub mod agent;
pub mod flame;
pub mod fold;
mod launcher;
pub mod main_thread;
pub mod page;
mod part;
pub mod permission;
pub mod processes;
mod reader;
mod roots;
pub mod sampler;
mod source;
mod waits;
pub mod without_agent;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, StackMethod};

pub use launcher::is_launcher;
pub use part::part;
pub use reader::{HAS_NATIVE, StackReader};

/// A process to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedProcess {
    pub host: Arc<str>,
    pub pid: i32,
    pub rank: Option<i32>,
}

impl InspectedProcess {
    /// The process before it is read, without threads.
    pub fn unread(&self, method: StackMethod) -> ProcessStacks {
        ProcessStacks {
            host: self.host.to_string(),
            pid: u32::try_from(self.pid).unwrap_or_default(),
            rank: self.rank,
            method: method.into(),
            ..ProcessStacks::default()
        }
    }

    /// A process whose stacks could not be read, with the reason.
    pub fn failed(&self, method: StackMethod, error: &Error) -> ProcessStacks {
        let hint = error.hint_text().unwrap_or_default().to_owned();
        ProcessStacks { problem: error.to_string(), hint, ..self.unread(method) }
    }
}

/// Whether a frame is the agent's own: of a function that it put around one of torch's, or of a thread of its own.
fn is_of_agent(frame: &StackFrame) -> bool {
    frame.file.contains("/probe_agent/")
}

/// How the process was read: the value of `python.stacks.method`.
pub fn method_name(process: &ProcessStacks) -> &'static str {
    match process.method() {
        StackMethod::Paused => "paused",
        StackMethod::Agent => "agent",
        StackMethod::Native => "native",
        StackMethod::Memory | StackMethod::Auto => "memory",
    }
}

/// Readers that are kept, because finding the interpreter in a process takes far longer than reading it.
#[derive(Default)]
pub struct StackReaders(Mutex<HashMap<ReaderKey, Arc<Mutex<StackReader>>>>);

/// A process, and whether its frames of C and C++ are wanted.
type ReaderKey = (i32, bool);

impl std::fmt::Debug for StackReaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Readers")
    }
}

/// Most readers that are kept: more than a node has ranks. Readers of processes that are gone are dropped first.
const MAX_READERS: usize = 256;

impl StackReaders {
    /// Reads one process once. Blocks.
    pub fn read(&self, subject: &InspectedProcess, method: StackMethod) -> ProcessStacks {
        let native = method == StackMethod::Native;
        let read = self.reader_of((subject.pid, native)).and_then(|reader| {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.capture(method == StackMethod::Paused)
        });
        match read {
            Ok(captured) => {
                ProcessStacks { host: subject.host.to_string(), rank: subject.rank, method: method.into(), ..captured }
            }
            Err(error) => subject.failed(method, &error),
        }
    }

    /// Reads all subjects at about one time, a thread each. Blocks.
    pub fn read_all(&self, subjects: &[InspectedProcess], method: StackMethod) -> Vec<ProcessStacks> {
        each(subjects, method, |subject| self.read(subject, method))
    }

    /// The reader of a process.
    pub fn reader_of(&self, way: ReaderKey) -> Result<Arc<Mutex<StackReader>>> {
        {
            let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match readers.get(&way) {
                // A reader that is locked is reading the process, so the process is there.
                Some(reader) if reader.try_lock().map_or(true, |reader| reader.is_current()) => {
                    return Ok(Arc::clone(reader));
                }
                Some(_) => drop(readers.remove(&way)),
                None => {}
            }
        }
        let reader = Arc::new(Mutex::new(StackReader::open(way.0, way.1)?));
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() >= MAX_READERS {
            readers.retain(|_, reader| reader.try_lock().map_or(true, |reader| reader.is_current()));
        }
        if readers.len() < MAX_READERS {
            readers.insert(way, Arc::clone(&reader));
        }
        Ok(reader)
    }
}

/// Does `work` for all subjects at once, a thread each. Where `work` panics, the process counts as one that could not be read.
pub fn each(
    subjects: &[InspectedProcess],
    method: StackMethod,
    work: impl Fn(&InspectedProcess) -> ProcessStacks + Sync,
) -> Vec<ProcessStacks> {
    let work = &work;
    std::thread::scope(|scope| {
        let running: Vec<_> = subjects.iter().map(|subject| scope.spawn(move || work(subject))).collect();
        let ended = subjects.iter().zip(running).map(|(subject, thread)| {
            thread.join().unwrap_or_else(|_| {
                let what = format!("the memory of process {} could not be interpreted", subject.pid);
                subject.failed(method, &Error::failed(what))
            })
        });
        ended.collect()
    })
}
