//! An ELF file that is mapped in a process, and the addresses of its symbols there. The file is read through the process's
//! own root, so that for a container it is the container's library.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::program_header::{PF_X, PT_LOAD, ProgramHeader};
use probe_common::error::{Error, Result};

use super::maps::{self, MemoryMapping};

/// Size above which a file is no interpreter (bytes).
const MAX_FILE_BYTES: u64 = 1 << 30;
/// The beginning of a file, which has the headers of the file and its parts (bytes).
const HEADERS: u64 = 64 << 10;
/// The bytes of a header (of 64 bits) that say where the sections are, and how many.
const SECTIONS: [Range<usize>; 2] = [0x28..0x30, 0x3c..0x40];

/// The loaded part of a file, and where it is mapped.
pub(super) struct ElfImage {
    bytes: Vec<u8>,
    /// Address in the process less address in the file.
    bias: u64,
}

impl ElfImage {
    /// Reads the file behind mappings of one name, of which `first` has the lowest address.
    pub(super) fn read(pid: i32, first: &MemoryMapping, is_program: bool) -> Result<Self> {
        let path = path_of(pid, first, is_program);
        let unreadable = || Error::failed(format!("{} of process {pid} can't be read", first.path));
        let size = fs::metadata(&path).map_err(|error| unreadable().because(error))?.len();
        if size > MAX_FILE_BYTES {
            return Err(unreadable().because(format!("{size} bytes are too many")));
        }
        let (bytes, parts) = read_loaded(&path, size).map_err(|error| unreadable().because(error))?;
        let size = maps::page_size();
        let page = |address: u64| address & !(size - 1);
        let loaded = parts.iter().find(|part| part.p_type == PT_LOAD && page(part.p_offset) == first.offset);
        let Some(loaded) = loaded else { return Err(unreadable().because("it is not what is mapped")) };
        let bias = first.addresses.start.wrapping_sub(page(loaded.p_vaddr));
        Ok(Self { bytes, bias })
    }

    /// The symbols of the file.
    pub(super) fn symbols(&self) -> Result<ElfSymbols<'_>> {
        let elf = Elf::parse(&self.bytes).map_err(Error::caused)?;
        Ok(ElfSymbols { image: self, elf })
    }
}

/// Reads a file up to the end of its last loaded part, and lists its parts. The header in the bytes says that there are no
/// sections: they are for debuggers, and with their symbols they are most of an interpreter's file.
fn read_loaded(path: &Path, size: u64) -> goblin::error::Result<(Vec<u8>, Vec<ProgramHeader>)> {
    let file = File::open(path)?;
    let mut bytes = vec![0; HEADERS.min(size) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let header = Elf::parse_header(&bytes)?;
    let context = Ctx::new(header.container()?, header.endianness()?);
    let parts = ProgramHeader::parse(&bytes, header.e_phoff as usize, header.e_phnum as usize, context)?;
    let loaded = parts.iter().filter(|part| part.p_type == PT_LOAD);
    let end = loaded.map(|part| part.p_offset.saturating_add(part.p_filesz)).max().unwrap_or(0);
    let begun = bytes.len();
    bytes.resize(end.clamp(begun as u64, size) as usize, 0);
    file.read_exact_at(&mut bytes[begun..], begun as u64)?;
    if context.container.is_big() {
        SECTIONS.into_iter().for_each(|range| bytes[range].fill(0));
    }
    Ok((bytes, parts))
}

/// The path by which the file can be opened from here. The kernel gives the very file that is mapped to administrators
/// only; other users get a path within the process's root, or one beyond that where the process is in a chroot.
fn path_of(pid: i32, first: &MemoryMapping, is_program: bool) -> PathBuf {
    if is_program {
        return format!("/proc/{pid}/exe").into();
    }
    let Range { start, end } = first.addresses;
    let mapped = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let path = Path::new(&first.path);
    let jail = fs::read_link(&root).unwrap_or_default();
    let within = path.strip_prefix(jail).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
    let candidates = [mapped, root.join(within)];
    let found = candidates.into_iter().find(|candidate| fs::metadata(candidate).is_ok_and(|file| file.is_file()));
    found.unwrap_or_else(|| root.join(path.strip_prefix("/").unwrap_or(path)))
}

/// The exported functions and variables of an [`ElfImage`].
pub(super) struct ElfSymbols<'a> {
    image: &'a ElfImage,
    elf: Elf<'a>,
}

impl ElfSymbols<'_> {
    /// The addresses of an exported function or variable in the process.
    pub(super) fn find(&self, name: &str) -> Option<Range<u64>> {
        let symbol = self.elf.dynsyms.iter().find(|symbol| {
            symbol.st_value != 0 && symbol.st_shndx != 0 && self.elf.dynstrtab.get_at(symbol.st_name) == Some(name)
        })?;
        let start = self.image.bias.wrapping_add(symbol.st_value);
        Some(start..start.wrapping_add(symbol.st_size))
    }

    /// The address of the first match of `find` in an executable part.
    pub(super) fn find_code(&self, find: impl Fn(&[u8]) -> Option<usize>) -> Option<u64> {
        let executable =
            self.elf.program_headers.iter().filter(|part| part.p_type == PT_LOAD && part.p_flags & PF_X != 0);
        executable
            .filter_map(|part| {
                let bytes = self.image.bytes.get(part.file_range())?;
                let offset = find(bytes)?;
                Some(self.image.bias.wrapping_add(part.p_vaddr).wrapping_add(offset as u64))
            })
            .next()
    }
}
