//! ELF files (System V ABI, chapters 4 and 5): their kind, their loader, and the libraries that they need.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// An ELF file of this machine's kind.
pub(crate) struct Elf<'a> {
    file: &'a File,
    segments: Vec<Segment>,
}

/// Kind of a file.
pub(crate) enum Kind<'a> {
    /// This machine's.
    Own(Elf<'a>),
    /// For another processor or word size.
    Foreign,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

impl<'a> Elf<'a> {
    /// Reads the headers; none if it is no ELF file, or damaged.
    pub(crate) fn open(file: &'a File) -> Option<Kind<'a>> {
        let header: [u8; 64] = read_at(file, 0)?;
        if !header.starts_with(b"\x7fELF") {
            return None;
        }
        let is_own = header[4] == ELFCLASS64 && header[5] == ELFDATA2LSB && u16_at(&header, 18) == MACHINE;
        if !is_own {
            return Some(Kind::Foreign);
        }
        let (table, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        let mut segments = Vec::new();
        for index in 0..u64::from(count) {
            let entry: [u8; 56] = read_at(file, table.checked_add(index * u64::from(size))?)?;
            segments.push(Segment {
                kind: u32_at(&entry, 0),
                offset: u64_at(&entry, 8),
                address: u64_at(&entry, 16),
                len: u64_at(&entry, 32),
            });
        }
        Some(Kind::Own(Self { file, segments }))
    }

    /// Whether it names a loader.
    pub(crate) fn has_loader(&self) -> bool {
        self.segment(PT_INTERP).is_some()
    }

    /// Path of its loader.
    pub(crate) fn loader(&self) -> Option<String> {
        self.string_at(self.segment(PT_INTERP)?.offset)
    }

    /// Whether it is a library: it has a name as one.
    pub(crate) fn is_library(&self) -> bool {
        self.dynamic().any(|(tag, _)| tag == DT_SONAME)
    }

    /// Names of the libraries that it needs.
    pub(crate) fn needed(&self) -> Vec<String> {
        let Some((_, names)) = self.dynamic().find(|(tag, _)| *tag == DT_STRTAB) else { return Vec::new() };
        let needed = self.dynamic().filter(|(tag, _)| *tag == DT_NEEDED);
        needed.filter_map(|(_, name)| self.string_at(self.offset_of(names)?.checked_add(name)?)).collect()
    }

    fn segment(&self, kind: u32) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.kind == kind)
    }

    /// Tags and values of the dynamic section.
    fn dynamic(&self) -> impl Iterator<Item = (u64, u64)> {
        let (at, len) = self.segment(PT_DYNAMIC).map_or((0, 0), |segment| (segment.offset, segment.len));
        let entries = (0..len.min(MAX_DYNAMIC) / 16).map_while(move |index| {
            let entry: [u8; 16] = read_at(self.file, at.checked_add(index * 16)?)?;
            Some((u64_at(&entry, 0), u64_at(&entry, 8)))
        });
        entries.take_while(|(tag, _)| *tag != DT_NULL)
    }

    /// Place in the file of what is loaded at an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            segment.kind == PT_LOAD && address.checked_sub(segment.address).is_some_and(|at| at < segment.len)
        };
        let segment = self.segments.iter().find(holds)?;
        segment.offset.checked_add(address - segment.address)
    }

    fn string_at(&self, offset: u64) -> Option<String> {
        let mut bytes = [0; MAX_NAME];
        let len = self.file.read_at(&mut bytes, offset).ok()?;
        let end = bytes[..len].iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

fn read_at<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;
/// `EM_X86_64` or `EM_AARCH64`.
pub(crate) const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
/// Bytes of a dynamic section that are looked at, and of a name.
const MAX_DYNAMIC: u64 = 1 << 16;
const MAX_NAME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn own(file: &File) -> Elf<'_> {
        match Elf::open(file) {
            Some(Kind::Own(elf)) => elf,
            _ => panic!("an ELF file of this machine"),
        }
    }

    #[test]
    fn this_test_names_its_loader_and_libraries() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let elf = own(&file);
        assert!(elf.has_loader() && !elf.is_library());
        assert!(elf.loader().is_some_and(|path| path.starts_with("/lib")), "{:?}", elf.loader());
        assert!(elf.needed().iter().any(|name| name.starts_with("libc.")), "{:?}", elf.needed());
    }

    #[test]
    fn damaged_headers_are_read_without_panic() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        // Headers that lead anywhere.
        for at in 0..64 + 56 * 4 {
            let mut bytes = whole[..4096].to_vec();
            bytes[at] ^= 0xff;
            std::fs::write(path.path(), &bytes).unwrap();
            let file = File::open(path.path()).unwrap();
            if let Some(Kind::Own(elf)) = Elf::open(&file) {
                let _ = (elf.loader(), elf.is_library(), elf.needed());
            }
        }
    }
}
