//! Pinned pages: fixed buffers of io_uring, and memory registered with real devices.
//!
//! Their users write to the pages that were pinned, wherever those are mapped. So these pages must not be replaced. Buffers
//! that are pinned after the conversion are the new pages, which is correct.

use super::PAGE;
use super::status;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;

/// Ranges of pages that must stay as they are, as far as they may concern `start..end`.
pub(super) fn areas(start: u64, end: u64) -> Vec<(u64, u64)> {
    // The kernel counts them for each process: nearly always there are none.
    match status::bytes("VmPin") {
        0 => Vec::new(),
        pinned => fixed_buffers().filter(|buffers| bytes(buffers) >= pinned).unwrap_or_else(|| vec![(start, end)]),
    }
}

fn bytes(areas: &[(u64, u64)]) -> u64 {
    areas.iter().map(|&(from, to)| to - from).sum()
}

/// The fixed buffers of every io_uring that this process has a descriptor of; none where they cannot be told.
fn fixed_buffers() -> Option<Vec<(u64, u64)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty()).ok()?;
    let mut space = [MaybeUninit::<u8>::uninit(); 4096];
    let (mut entries, mut buffers) = (RawDir::new(directory.as_fd(), &mut space), Vec::new());
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        let name = entry.file_name();
        let link = rustix::fs::readlinkat(directory.as_fd(), name, Vec::new());
        if link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[io_uring]") {
            buffers.extend(listed(name.to_str().ok()?)?);
        }
    }
    Some(buffers)
}

/// Those that the kernel lists for one descriptor. It lists none while the ring is in use at that moment.
fn listed(fd: &str) -> Option<Vec<(u64, u64)>> {
    (0..TRIES).find_map(|_| parse(&status::whole(&format!("/proc/self/fdinfo/{fd}"))?))
}

/// `UserBufs: N`, and then N lines `index: 0xaddress/length`, or `index: <none>`.
fn parse(text: &str) -> Option<Vec<(u64, u64)>> {
    let mut lines = text.lines();
    let count: usize = lines.find_map(|line| line.strip_prefix("UserBufs:")?.trim().parse().ok())?;
    let mut buffers = Vec::new();
    for _ in 0..count {
        let (_, place) = lines.next()?.split_once(": ")?;
        if place.trim() == "<none>" {
            continue;
        }
        let (address, len) = place.trim().strip_prefix("0x")?.split_once('/')?;
        let (address, len) = (u64::from_str_radix(address, 16).ok()?, len.parse::<u64>().ok()?);
        buffers.push((address & !(PAGE - 1), (address + len).next_multiple_of(PAGE)));
    }
    Some(buffers)
}

const TRIES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_buffers_are_read_as_the_kernel_lists_them() {
        let text = "pos:\t0\nSqMask:\t0x7\nUserFiles:\t0\nUserBufs:\t3\n    0: 0x7f0000001010/4096\n    1: <none>\n    2: 0x5000/8192\nPollList:\n";
        assert_eq!(parse(text), Some(vec![(0x7f00_0000_1000, 0x7f00_0000_3000), (0x5000, 0x7000)]));
        assert_eq!(parse("UserBufs:\t0\nPollList:\n"), Some(Vec::new()));
        // In use at that moment, and cut off.
        assert_eq!(parse("pos:\t0\nflags:\t02000002\n"), None);
        assert_eq!(parse("UserBufs:\t2\n    0: 0x5000/8192\n"), None);
    }

    #[test]
    fn where_nothing_is_pinned_nothing_is_kept() {
        assert_eq!(areas(0x1000, 0x2000), []);
    }
}
