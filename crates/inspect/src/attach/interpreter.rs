//! The Python interpreter of another process: its version, and the addresses of what attaching needs.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use probe_common::error::{Error, Result};

use super::image::{ElfImage, ElfSymbols};
use super::machine;
use super::maps::{self, MemoryMapping};
use crate::stacks::permission::memory_not_opened;

/// How a statement gets into an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectionMethod {
    /// By the interpreter's own protocol (PEP 768): a script's path and a flag are written to its memory.
    RemoteDebugging,
    /// By borrowing a thread.
    Borrowing,
}

/// The Python interpreter of another process.
#[derive(Debug)]
pub struct Interpreter {
    /// The version of Python. 3.11 and later have it in a symbol; before, it is in the file's name. None if that has no version.
    pub version: Option<(u8, u8)>,
    /// The file that is mapped: the library, or the program.
    pub path: String,
    /// Address of `_PyRuntime`.
    pub(super) runtime: u64,
    /// None where threads need not be borrowed, or can't be on this machine.
    addresses: Option<InjectionAddresses>,
}

/// The addresses in the process that a borrowed thread needs.
#[derive(Debug)]
pub(super) struct InjectionAddresses {
    /// `Py_AddPendingCall` and `PyRun_SimpleString`.
    pub(super) add_pending_call: u64,
    pub(super) run_string: u64,
    /// The function that evaluates bytecode.
    pub(super) evaluation: Range<u64>,
    /// Any instruction that stops for a debugger, and any that enters the kernel.
    pub(super) trap: u64,
    pub(super) system_call: u64,
}

impl Interpreter {
    /// Looks for the interpreter in process `pid`.
    ///
    /// # Errors
    /// The process is no Python one, its files can't be read, or it is older than 3.9.
    pub fn find(pid: i32) -> Result<Self> {
        let maps = maps::mappings_of(pid).map_err(|error| memory_not_opened(pid, error))?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default().to_string_lossy().into_owned();
        // The library first: if there is one, the program only loads it.
        let library =
            |mapping: &&MemoryMapping| mapping.name().starts_with("libpython") && mapping.name().contains(".so");
        // Or neither, where the program was started through its loader.
        let started = |mapping: &&MemoryMapping| mapping.name().starts_with("python3");
        let found = maps.iter().find(library);
        let found = found.or_else(|| maps.iter().find(|mapping| mapping.path == program && !is_loader(mapping)));
        let found = found.or_else(|| maps.iter().find(started));
        let no_python = || {
            Error::failed(format!("process {pid} is not a Python process")).hint("probe list shows those that train")
        };
        let first = found.ok_or_else(no_python)?;
        let image = ElfImage::read(pid, first, first.path == program)?;
        let symbols = image.symbols()?;
        let Some(runtime) = symbols.find("_PyRuntime") else { return Err(no_python()) };
        let memory = File::open(format!("/proc/{pid}/mem")).map_err(|error| memory_not_opened(pid, error))?;
        let version = version(&symbols, &memory, first, &program);
        // New in 3.9, as the oldest that the agent knows.
        if version.is_some_and(|version| version < (3, 9)) || symbols.find("PyModule_AddType").is_none() {
            return Err(Error::failed(format!(
                "process {pid} runs a Python before 3.9, which the agent does not know"
            )));
        }
        let mut interpreter = Self { version, path: first.path.clone(), runtime: runtime.start, addresses: None };
        if interpreter.method() == InjectionMethod::Borrowing && machine::IS_KNOWN {
            interpreter.addresses = Some(InjectionAddresses::find(pid, first, &symbols, &memory, &maps)?);
        }
        Ok(interpreter)
    }

    /// How a statement gets into this interpreter.
    pub fn method(&self) -> InjectionMethod {
        if self.version.is_some_and(|version| version >= (3, 14)) {
            InjectionMethod::RemoteDebugging
        } else {
            InjectionMethod::Borrowing
        }
    }

    /// The addresses that a borrowed thread needs.
    ///
    /// # Errors
    /// Threads can't be borrowed on this machine.
    pub(super) fn addresses(&self) -> Result<&InjectionAddresses> {
        self.addresses.as_ref().ok_or_else(|| {
            let (version, machine) = (self.version_text(), std::env::consts::ARCH);
            Error::failed(format!("attaching to Python {version} works on x86-64 and aarch64, and this is {machine}"))
                .hint("Python 3.14 and later can be attached to on any machine; probe run records from the start")
        })
    }

    /// The version as messages have it: `3.11`.
    pub fn version_text(&self) -> String {
        self.version.map_or_else(|| "before 3.11".into(), |(major, minor)| format!("{major}.{minor}"))
    }
}

impl InjectionAddresses {
    fn find(
        pid: i32,
        first: &MemoryMapping,
        symbols: &ElfSymbols<'_>,
        memory: &File,
        maps: &[MemoryMapping],
    ) -> Result<Self> {
        let missing = |what: &str| Error::failed(format!("{} of process {pid} has no {what}", first.path));
        let function = |name: &str| symbols.find(name).ok_or_else(|| missing(name));
        // From files, because where a process's own memory has one that its file has not, a debugger waits for it.
        let of_library = || {
            let library = maps.iter().find(|mapping| is_c_library(mapping))?;
            ElfImage::read(pid, library, false).ok()?.symbols().ok()?.find_code(machine::find_trap)
        };
        let trap = symbols.find_code(machine::find_trap).or_else(of_library);
        Ok(Self {
            add_pending_call: function("Py_AddPendingCall")?.start,
            run_string: function("PyRun_SimpleString")?.start,
            evaluation: function("_PyEval_EvalFrameDefault")?,
            trap: trap.ok_or_else(|| missing("instruction that traps"))?,
            system_call: entrance(memory, maps).ok_or_else(|| missing("instruction that enters the kernel"))?,
        })
    }
}

fn is_loader(mapping: &MemoryMapping) -> bool {
    mapping.name().starts_with("ld-")
}

/// The interpreter's version. `Py_Version` of 3.11 and later has it in its upper two bytes; before, names of files do
/// (libpython3.9.so.1.0).
fn version(symbols: &ElfSymbols<'_>, memory: &File, first: &MemoryMapping, program: &str) -> Option<(u8, u8)> {
    if let Some(symbol) = symbols.find("Py_Version") {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, symbol.start).ok()?;
        let number = u32::from_ne_bytes(bytes);
        return Some(((number >> 24) as u8, (number >> 16) as u8));
    }
    [first.name(), program].into_iter().find_map(|name| {
        let (_, after) = name.rsplit_once("python3.")?;
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        Some((3, after[..digits].parse().ok()?))
    })
}

/// The address of an instruction that enters the kernel: the C library has many. The search reads the process's own memory,
/// because that is what it will execute.
fn entrance(memory: &File, maps: &[MemoryMapping]) -> Option<u64> {
    let library = maps.iter().filter(|mapping| mapping.executable && is_c_library(mapping));
    let own = maps.iter().filter(|mapping| mapping.executable && mapping.path.starts_with('/'));
    library.chain(own).find_map(|mapping| {
        let size = mapping.addresses.end.checked_sub(mapping.addresses.start)?.min(16 << 20);
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        memory.read_exact_at(&mut bytes, mapping.addresses.start).ok()?;
        Some(mapping.addresses.start + machine::find_system_call(&bytes)? as u64)
    })
}

fn is_c_library(mapping: &MemoryMapping) -> bool {
    ["libc.", "libc-", "ld-musl"].iter().any(|name| mapping.name().starts_with(name))
}
