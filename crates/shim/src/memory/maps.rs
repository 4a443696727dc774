//! Memory mappings of the process (`/proc/self/maps`).
//!
//! Nothing here allocates: it also runs between fork and the first instruction of the child.
#![allow(unsafe_code)]

use rdmesh_preload::OwnFd;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::process::{Pid, getpid};

/// One mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) shared: bool,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Device and inode of the file; zero for anonymous memory.
    pub(crate) file: (u64, u64),
    /// Made of huge pages, where the kernel says so.
    pub(crate) huge: bool,
    /// The heap that `brk` makes, or part of it.
    pub(crate) heap: bool,
}

/// An open `/proc/self/maps`.
pub(crate) struct Maps<F = OwnedFd>(F);

impl Maps {
    pub(crate) fn open() -> io::Result<Self> {
        rustix::fs::openat(CWD, c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }
}

impl<F: AsFd> Maps<F> {
    /// Calls `visit` for every mapping that overlaps `from..to`, in order.
    pub(crate) fn visit(&self, from: u64, to: u64, mut visit: impl FnMut(Vma)) -> io::Result<()> {
        let mut at = from;
        while at < to {
            match self.query(at) {
                Ok(Some(vma)) if vma.start < to => {
                    at = vma.end;
                    visit(vma);
                }
                Ok(_) => return Ok(()),
                Err(_) => {
                    return self.read(|vma| {
                        if vma.start < to && vma.end > at {
                            visit(vma)
                        }
                    });
                }
            }
        }
        Ok(())
    }

    /// The mapping that covers `address`, or the next one; an error on kernels before 6.11.
    pub(crate) fn query(&self, address: u64) -> io::Result<Option<Vma>> {
        let Some(vma) = self.query_with(address, &mut [])? else { return Ok(None) };
        // The heap is private and anonymous, and known by its name. A longer one is another's.
        if vma.shared || vma.file.1 != 0 {
            return Ok(Some(vma));
        }
        match self.query_with(address, &mut [0; 16]) {
            Err(Errno::NAMETOOLONG) => Ok(Some(vma)),
            named => named,
        }
    }

    /// The same; whether it is the heap is found out where there is room for its name.
    fn query_with(&self, address: u64, name: &mut [u8]) -> io::Result<Option<Vma>> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT,
            addr: address,
            vma_name_size: name.len() as u32,
            vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
            ..Query::default()
        };
        let fd = self.0.as_fd().as_raw_fd();
        // SAFETY: the struct is the one of this request, with its size and that of the name in it.
        if unsafe { libc::syscall(libc::SYS_ioctl, fd, PROCMAP_QUERY, &raw mut query) } == 0 {
            let len = name.len().min(query.vma_name_size as usize);
            return Ok(Some(query.vma(name[..len].split(|&byte| byte == 0).next().unwrap_or_default())));
        }
        // SAFETY: this thread's errno.
        match Errno::from_raw_os_error(unsafe { *libc::__errno_location() }) {
            Errno::NOENT => Ok(None),
            errno => Err(errno),
        }
    }

    /// Calls `visit` for every mapping.
    pub(crate) fn read(&self, mut visit: impl FnMut(Vma)) -> io::Result<()> {
        rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Start(0))?;
        let mut buffer = [0u8; 8192];
        let mut kept = 0;
        loop {
            let len = io::retry_on_intr(|| io::read(&self.0, &mut buffer[kept..]))?;
            let filled = kept + len;
            if len == 0 {
                return Ok(());
            }
            let mut from = 0;
            while let Some(end) = buffer[from..filled].iter().position(|&byte| byte == b'\n') {
                if let Some(vma) = parse(&buffer[from..from + end]) {
                    visit(vma);
                }
                from += end + 1;
            }
            buffer.copy_within(from..filled, 0);
            kept = filled - from;
            if kept == buffer.len() {
                // A name longer than any path: its line's head is what counts.
                kept = 128;
            }
        }
    }
}

/// An open `/proc/self/maps`, kept from one registration to the next.
pub(super) struct KeptMaps {
    maps: Maps<OwnFd>,
    /// Device and inode.
    file: (u64, u64),
    process: Pid,
}

impl KeptMaps {
    /// That of this process, opened if `kept` is not that, or not any more.
    pub(super) fn get(kept: &mut Option<Self>) -> io::Result<&Maps<OwnFd>> {
        if let Some(stale) = kept.take_if(|kept| kept.process != getpid()) {
            drop(stale);
        }
        if let Some(lost) = kept.take_if(|kept| identity(&kept.maps) != Ok(kept.file)) {
            lost.maps.0.abandon();
        }
        let kept = match kept {
            Some(kept) => kept,
            none => {
                let maps = Maps(OwnFd::new(Maps::open()?.0));
                let file = identity(&maps)?;
                none.insert(Self { maps, file, process: getpid() })
            }
        };
        Ok(&kept.maps)
    }
}

fn identity(maps: &Maps<OwnFd>) -> io::Result<(u64, u64)> {
    rustix::fs::fstat(maps.0.as_fd()).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Parses a line of `/proc/self/maps`.
fn parse(line: &[u8]) -> Option<Vma> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let (start, end) = pair(fields.next()?, b'-', 16)?;
    let flags = fields.next()?;
    let offset = number(fields.next()?, 16)?;
    let (major, minor) = pair(fields.next()?, b':', 16)?;
    let inode = number(fields.next()?, 10)?;
    let name = fields.next().unwrap_or_default();
    Some(Vma {
        start,
        end,
        readable: flags.first() == Some(&b'r'),
        writable: flags.get(1) == Some(&b'w'),
        executable: flags.get(2) == Some(&b'x'),
        shared: flags.get(3) == Some(&b's'),
        offset,
        file: (rustix::fs::makedev(major as u32, minor as u32), inode),
        huge: name.starts_with(b"/anon_hugepage"),
        heap: name == HEAP_NAME,
    })
}

fn pair(field: &[u8], separator: u8, radix: u64) -> Option<(u64, u64)> {
    let at = field.iter().position(|&byte| byte == separator)?;
    Some((number(&field[..at], radix)?, number(&field[at + 1..], radix)?))
}

fn number(digits: &[u8], radix: u64) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = (digit as char).to_digit(radix as u32)?;
        value.checked_mul(radix)?.checked_add(u64::from(digit))
    })
}

/// `struct procmap_query`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const HEAP_NAME: &[u8] = b"[heap]";
const SMALL_PAGE_MAX: u64 = 65_536;

impl Query {
    fn vma(&self, name: &[u8]) -> Vma {
        Vma {
            start: self.vma_start,
            end: self.vma_end,
            readable: self.vma_flags & 1 != 0,
            writable: self.vma_flags & 2 != 0,
            executable: self.vma_flags & 4 != 0,
            shared: self.vma_flags & 8 != 0,
            offset: self.vma_offset,
            file: (rustix::fs::makedev(self.dev_major, self.dev_minor), self.inode),
            huge: self.vma_page_size > SMALL_PAGE_MAX,
            heap: name == HEAP_NAME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let vma =
            parse(b"7f00a000-7f00c000 rw-s 00001000 fd:01 4711                       /tmp/a file (deleted)").unwrap();
        assert_eq!((vma.start, vma.end, vma.offset), (0x7f00_a000, 0x7f00_c000, 0x1000));
        assert!(vma.readable && vma.writable && !vma.executable && vma.shared);
        assert_eq!(vma.file, (rustix::fs::makedev(0xfd, 1), 4711));
        assert!(parse(b"7f00a000-7f00c000 ---p 00000000 00:00 0").is_some_and(|vma| !vma.readable && !vma.shared));
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn a_kept_list_is_this_process_s_and_survives_a_lost_descriptor() {
        let here = 0u8;
        let address = &raw const here as u64;
        let mut kept = None;
        let lists_here = |kept: &mut Option<KeptMaps>| {
            let (mut found, maps) = (false, KeptMaps::get(kept).unwrap());
            maps.visit(address, address + 1, |vma| found = vma.start <= address && address < vma.end).unwrap();
            (found, maps.0.as_fd().as_raw_fd())
        };
        let (found, first) = lists_here(&mut kept);
        assert!(found && lists_here(&mut kept) == (true, first), "opened once");
        // The program's own descriptor with that number stays.
        let (theirs, _other) = rustix::pipe::pipe().unwrap();
        // SAFETY: the descriptor is this test's, and no other code knows the replaced one.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), first) }, first);
        let (found, second) = lists_here(&mut kept);
        assert!(found && second != first);
        // SAFETY: closes what was made above.
        assert_eq!(unsafe { libc::close(first) }, 0);
        // That of a process that has become two.
        kept.as_mut().unwrap().process = Pid::from_raw(1).unwrap();
        assert!(lists_here(&mut kept).0 && kept.unwrap().process == getpid());
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let maps = Maps::open().unwrap();
        let mut read = Vec::new();
        maps.read(|vma| read.push(vma)).unwrap();
        let here = &raw const maps as u64;
        // SAFETY: asks where the heap ends.
        let heap_end = unsafe { libc::sbrk(0) } as u64;
        assert!(read.iter().any(|vma| vma.heap && vma.start < heap_end && heap_end <= vma.end));
        assert!(read.iter().any(|vma| vma.start <= here && here < vma.end && vma.writable));
        assert!(read.windows(2).all(|pair| pair[0].end <= pair[1].start), "in order, none twice");
        match maps.query(here) {
            Ok(found) => {
                assert!(read.contains(&found.unwrap()));
                assert!(maps.query(heap_end - 1).unwrap().unwrap().heap);
            }
            Err(errno) => eprintln!("skipped: this kernel has no PROCMAP_QUERY ({errno})"),
        }
    }
}
