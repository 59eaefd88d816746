//! Asks the process itself where its threads are, for processes whose memory may not be read. The answer takes the GIL, so there
//! is none from a process that hangs with the GIL held.

use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, StackMethod, ThreadStack};
use serde::Deserialize;

use super::InspectedProcess;
use super::waits::waits_for;
use probe_common::user_code::is_user_code;

/// The snippet: prints a JSON array of the threads but its own, innermost frame first, and uses no names of the training code.
/// The agent's native code follows the frames: up to CPython 3.11, `f_back` of another thread's frame corrupts the interpreter if
/// garbage is collected meanwhile.
pub const CODE: &str = r#"
def _stacks():
    import json, threading
    from probe_agent import _native
    known = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, stack in _native.stacks().items():
        if ident == threading.get_ident():
            continue
        thread, frames = known.get(ident), []
        for frame in stack[:1000]:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            frames.append([name, code.co_filename, frame.f_lineno or 0])
        found.append({
            "name": thread.name if thread else "",
            "os_thread": thread.native_id if thread else None,
            "main": thread is threading.main_thread(),
            "frames": frames,
        })
    print(json.dumps(found))
_stacks()
"#;

#[derive(Debug, Deserialize)]
struct AgentThread {
    name: String,
    os_thread: Option<u32>,
    main: bool,
    frames: Vec<(String, String, u32)>,
}

/// Reads what [`CODE`] printed in a process.
///
/// # Errors
/// The text is not what [`CODE`] prints.
pub fn understand(subject: &InspectedProcess, printed: &[u8]) -> Result<ProcessStacks> {
    let threads: Vec<AgentThread> = serde_json::from_slice(printed)
        .map_err(|error| Error::failed(format!("process {} gave an unexpected answer", subject.pid)).because(error))?;
    let mut threads: Vec<ThreadStack> = threads.into_iter().map(AgentThread::into_message).collect();
    threads.sort_by_key(|thread| !thread.main);
    Ok(ProcessStacks { threads, samples: 1, ..subject.unread(StackMethod::Agent) })
}

impl AgentThread {
    fn into_message(self) -> ThreadStack {
        let frame = |(function, file, line): (String, String, u32)| StackFrame {
            function,
            user_code: is_user_code(&file),
            file,
            line: (line > 0).then_some(line),
            source: String::new(),
        };
        let frames: Vec<StackFrame> = self.frames.into_iter().map(frame).collect();
        ThreadStack {
            name: self.name,
            os_thread: self.os_thread,
            main: self.main,
            waits_for: waits_for(&frames, None, None),
            samples: 1,
            frames,
            ..ThreadStack::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_understood_and_anything_else_is_an_error() {
        let subject = InspectedProcess { host: "node1".into(), pid: 7, rank: Some(1) };
        let printed = br#"[{"name":"T","os_thread":9,"main":false,"frames":[]},
            {"name":"MainThread","os_thread":7,"main":true,"frames":[["f","/t.py",3],["<module>","/t.py",0]]}]"#;
        let stacks = understand(&subject, printed).unwrap();
        assert_eq!(stacks.method(), StackMethod::Agent);
        assert!(stacks.threads[0].main);
        assert_eq!((stacks.threads[0].frames[0].line, stacks.threads[0].frames[1].line), (Some(3), None));
        assert!(understand(&subject, b"hello").is_err());
    }
}
