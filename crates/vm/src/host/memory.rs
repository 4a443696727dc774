//! Guest-physical addresses, as offsets in the memfd that is the guest's memory.

use rustix::fs::fstat;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The memory table of a virtual machine.
pub struct GuestMemory {
    file: OwnedFd,
    /// Sorted by address.
    regions: Vec<Region>,
}

/// A range of guest-physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First guest-physical address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
}

impl GuestMemory {
    /// The table with these regions, of which those count that lie in the file with most of the memory: the others are
    /// firmware, or memory that is not shared. None without any.
    pub fn new<'a>(regions: impl Iterator<Item = (Region, BorrowedFd<'a>)>) -> Option<Self> {
        let mut files: Vec<(u64, BorrowedFd<'a>, Vec<Region>)> = Vec::new();
        for (region, file) in regions {
            let inode = fstat(file).ok()?.st_ino;
            match files.iter_mut().find(|(known, ..)| *known == inode) {
                Some((_, _, regions)) => regions.push(region),
                None => files.push((inode, file, vec![region])),
            }
        }
        let bytes = |regions: &[Region]| regions.iter().map(|region| region.len).sum::<u64>();
        let (_, file, mut regions) = files.into_iter().max_by_key(|(_, _, regions)| bytes(regions))?;
        regions.sort_unstable_by_key(|region| region.address);
        Some(Self { file: file.try_clone_to_owned().ok()?, regions })
    }

    /// The memfd, which the router maps.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Offset in the file of the bytes at a guest-physical address, and how many of the `len` wanted lie behind one another there;
    /// none where there is no memory.
    pub fn find(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let index = self.regions.partition_point(|region| region.address <= address).checked_sub(1)?;
        let region = self.regions[index];
        let within = address - region.address;
        let left = region.len.checked_sub(within).filter(|left| *left > 0)?;
        Some((region.offset + within, left.min(len)))
    }

    /// Offset in the file of a whole page.
    pub fn find_page(&self, address: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        self.find(address, PAGE).filter(|(_, len)| address.is_multiple_of(PAGE) && *len == PAGE).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn addresses_are_found_in_their_region_and_nowhere_else() {
        let (ram, rom) = (memfd_create("ram", MemfdFlags::CLOEXEC), memfd_create("rom", MemfdFlags::CLOEXEC));
        let (ram, rom) = (ram.unwrap(), rom.unwrap());
        let region = |address, len, offset| Region { address, len, offset };
        let table = [
            (region(0x10_0000, 0x10_0000, 0xc_0000), ram.as_fd()),
            (region(0, 0xa_0000, 0), ram.as_fd()),
            (region(0xf_0000, 0x1_0000, 0), rom.as_fd()),
        ];
        let memory = GuestMemory::new(table.into_iter()).unwrap();
        assert_eq!(memory.find(0x10_1000, 64), Some((0xc_1000, 64)));
        assert_eq!(memory.find(0x9_ff00, 0x1000), Some((0x9_ff00, 0x100)));
        assert_eq!(memory.find_page(0x9_f000), Some(0x9_f000));
        for nowhere in [0xa_0000, 0xf_0000, 0x20_0000, u64::MAX] {
            assert_eq!(memory.find(nowhere, 1), None, "{nowhere:x}");
        }
        for no_page in [0x1008, 0x9_ff00, 0x20_0000] {
            assert_eq!(memory.find_page(no_page), None, "{no_page:x}");
        }
        assert!(GuestMemory::new(std::iter::empty()).is_none());
    }
}
