//! Child processes, DataLoader workers above all, and what memory they hold.

use std::fs;

/// Threads whose children are looked for, at most: each costs a file to open.
const MAX_THREADS: usize = 256;

/// The children of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Children {
    pub(super) count: i32,
    pub(super) resident_pages: u64,
}

/// Looks for them. A child belongs to the thread that made it, so every thread is asked. None where the kernel does
/// not tell (it was built without), or where there are too many threads to ask.
pub(super) fn look() -> Option<Children> {
    let mut found = Children { count: 0, resident_pages: 0 };
    for (place, thread) in fs::read_dir("/proc/self/task").ok()?.flatten().enumerate() {
        if place >= MAX_THREADS {
            return None;
        }
        let children = match fs::read_to_string(thread.path().join("children")) {
            Ok(children) => children,
            // The thread has ended meanwhile.
            Err(_) if !thread.path().exists() => continue,
            Err(_) => return None,
        };
        for child in children.split_ascii_whitespace() {
            // One that has ended meanwhile holds nothing.
            let Ok(statm) = fs::read(format!("/proc/{child}/statm")) else { continue };
            found.count += 1;
            found.resident_pages += super::proc::resident_pages(&statm).unwrap_or_default();
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_and_its_memory_counted() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let found = look();
        drop(child.stdin.take());
        child.wait().expect("its end");
        // Not every kernel tells.
        if let Some(found) = found {
            assert!(found.count >= 1 && found.resident_pages > 0, "{found:?}");
        }
    }
}
