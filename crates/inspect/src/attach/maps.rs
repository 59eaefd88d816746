//! Reads the memory mappings of a process.

use std::fs;
use std::ops::Range;

/// A mapping of a file, or of nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemoryMapping {
    pub(super) addresses: Range<u64>,
    pub(super) executable: bool,
    /// Offset in the file at which the mapping begins.
    pub(super) offset: u64,
    /// Path of the file as the process sees it; empty for memory that is no file's.
    pub(super) path: String,
}

impl MemoryMapping {
    /// The file's name without its directories.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Size of a page (bytes), of which all mappings are multiples: mostly 4 KiB, up to 64 on aarch64. All processes have the
/// kernel's.
pub(super) fn page_size() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

/// All mappings of a process, in the order of their addresses.
pub(super) fn mappings_of(pid: i32) -> std::io::Result<Vec<MemoryMapping>> {
    // Read as bytes, because a path need not be UTF-8.
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
}

/// Reads a line such as `7f00-7f10 r-xp 00001000 fe:00 123   /usr/lib/libc.so.6`.
fn parse(line: &str) -> Option<MemoryMapping> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (addresses, permissions) = (hexadecimal(from)?..hexadecimal(to)?, words.next()?);
    let offset = hexadecimal(words.next()?)?;
    let path = words.nth(2).unwrap_or_default().trim_start().to_owned();
    Some(MemoryMapping { addresses, executable: permissions.contains('x'), offset, path })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let mapping = parse("7f00-7f10 r-xp 00001000 fe:00 123    /usr/lib/a b.so (deleted)").unwrap();
        assert_eq!((mapping.addresses.clone(), mapping.executable, mapping.offset), (0x7f00..0x7f10, true, 0x1000));
        assert_eq!(mapping.name(), "a b.so (deleted)");
        assert_eq!(parse("7f00-7f10 rw-p 00000000 00:00 0").unwrap().path, "");
        assert_eq!(parse("no mapping"), None);
    }
}
