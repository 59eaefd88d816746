//! An ELF file that is mapped in a process: where its symbols are there. Read through the process's own root, so that a
//! container's libraries are those that are looked at.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::program_header::{PF_X, PT_LOAD, ProgramHeader};
use probe_common::error::{Error, Result};

use super::maps::{self, Mapping};

/// Larger files are no interpreters.
const LARGEST: u64 = 1 << 30;
/// The headers of a file and its parts are at its beginning.
const HEADERS: u64 = 64 << 10;
/// Where a header (of 64 bits) says where sections are, and how many.
const SECTIONS: [Range<usize>; 2] = [0x28..0x30, 0x3c..0x40];

/// What is loaded of the file, and where it is.
pub(super) struct Image {
    bytes: Vec<u8>,
    /// What is added to an address of the file.
    bias: u64,
}

impl Image {
    /// The file behind `name`d mappings. `first` is the one with the lowest address.
    pub(super) fn read(pid: i32, first: &Mapping, is_program: bool) -> Result<Self> {
        let path = place(pid, first, is_program);
        let unreadable = |why: String| Error::failed(format!("{} of process {pid} can't be read: {why}", first.path));
        let size = fs::metadata(&path).map_err(|error| unreadable(error.to_string()))?.len();
        if size > LARGEST {
            return Err(unreadable(format!("{size} bytes are too many")));
        }
        let (bytes, parts) = read_loaded(&path, size).map_err(|error| unreadable(error.to_string()))?;
        let size = maps::page_size();
        let page = |address: u64| address & !(size - 1);
        let loaded = parts.iter().find(|part| part.p_type == PT_LOAD && page(part.p_offset) == first.offset);
        let Some(loaded) = loaded else { return Err(unreadable("it is not what is mapped".into())) };
        let bias = first.addresses.start.wrapping_sub(page(loaded.p_vaddr));
        Ok(Self { bytes, bias })
    }

    /// What can be looked up in it.
    pub(super) fn symbols(&self) -> Result<Symbols<'_>> {
        let elf = Elf::parse(&self.bytes).map_err(Error::caused)?;
        Ok(Symbols { image: self, elf })
    }
}

/// A file's beginning, as far as it is loaded, and which parts are. Its header says that there are no sections then: what
/// they say is for debuggers, and with their symbols most of an interpreter's file.
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
        SECTIONS.into_iter().for_each(|place| bytes[place].fill(0));
    }
    Ok((bytes, parts))
}

/// Where the file can be opened from here. The kernel gives the very file that is mapped to administrators only; everybody
/// gets a path, as it is within the process's root, or beyond that where the process is in a chroot.
fn place(pid: i32, first: &Mapping, is_program: bool) -> PathBuf {
    if is_program {
        return format!("/proc/{pid}/exe").into();
    }
    let Range { start, end } = first.addresses;
    let mapped = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let path = Path::new(&first.path);
    let jail = fs::read_link(&root).unwrap_or_default();
    let within = path.strip_prefix(jail).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
    let places = [mapped, root.join(within)];
    let found = places.into_iter().find(|place| fs::metadata(place).is_ok_and(|file| file.is_file()));
    found.unwrap_or_else(|| root.join(path.strip_prefix("/").unwrap_or(path)))
}

/// See [`Image::symbols`].
pub(super) struct Symbols<'a> {
    image: &'a Image,
    elf: Elf<'a>,
}

impl Symbols<'_> {
    /// Where an exported function or variable is in the process.
    pub(super) fn find(&self, name: &str) -> Option<Range<u64>> {
        let symbol = self.elf.dynsyms.iter().find(|symbol| {
            symbol.st_value != 0 && symbol.st_shndx != 0 && self.elf.dynstrtab.get_at(symbol.st_name) == Some(name)
        })?;
        let start = self.image.bias.wrapping_add(symbol.st_value);
        Some(start..start.wrapping_add(symbol.st_size))
    }

    /// Where in its executable part `find` finds something.
    pub(super) fn find_code(&self, find: impl Fn(&[u8]) -> Option<usize>) -> Option<u64> {
        let executable =
            self.elf.program_headers.iter().filter(|part| part.p_type == PT_LOAD && part.p_flags & PF_X != 0);
        executable
            .filter_map(|part| {
                let bytes = self.image.bytes.get(part.file_range())?;
                let place = find(bytes)?;
                Some(self.image.bias.wrapping_add(part.p_vaddr).wrapping_add(place as u64))
            })
            .next()
    }
}
