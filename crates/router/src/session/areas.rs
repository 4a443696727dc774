//! Memory of a program that a context needs from the beginning: its page, and that of its queues.

use crate::budget::{Charge, Exhausted, Resource};
use crate::disposal::Disposal;
use rdmesh_uverbs::guard::Alarm;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::guest::{MAX_PAGES, Pages, ProgramName};
use rdmesh_uverbs::shared::{Keep, SharedMemory, UnusedMapping};
use rustix::io;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The place of a program that opens a device.
pub(super) enum Opening {
    /// A process of this host, which shares its memory itself.
    Here,
    /// A guest, with the program's name there, and the pages of the context page in its memory.
    InGuest(ProgramName, Pages),
}

impl Opening {
    /// The frame's; none where it is malformed.
    pub(super) fn in_guest(body: &[u8]) -> Option<Self> {
        let (name, pages) = body.split_first_chunk()?;
        Some(Self::InGuest(*name, Pages::parse(pages)?))
    }
}

/// Memory of a program that a context needs from the beginning.
pub(super) struct Areas {
    pub(super) page: ContextPage,
    pub(super) queues: QueueFile,
    /// The guest's end of the socket by which its threads are woken.
    pub(super) waker: Option<OwnedFd>,
}

impl Areas {
    /// Maps what the opener sent: page and queue memory, or the guest's memory.
    pub(super) fn map(opening: &Opening, fds: &[OwnedFd], alarm: &Alarm, disposal: &Disposal) -> io::Result<Self> {
        let for_queues = disposal.clone();
        let charge = move |len| -> io::Result<Box<dyn Keep>> { Ok(Box::new(Mapped::charge(&for_queues, len)?)) };
        match (opening, fds) {
            (Opening::Here, [page, queues]) => {
                let queues = io::fcntl_dupfd_cloexec(queues, 0)?;
                Ok(Self {
                    page: map_page(page.as_fd(), alarm, disposal)?,
                    queues: QueueFile::adopt(queues, alarm, charge)?,
                    waker: None,
                })
            }
            (Opening::InGuest(_, pages), [memory]) => {
                let page = map_guest_page(memory.as_fd(), pages, alarm, disposal)?;
                let (ours, waker) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
                // Nothing comes back, no descriptor either.
                shutdown(&ours, Shutdown::Read)?;
                page.set_waker(ours);
                let memory = io::fcntl_dupfd_cloexec(memory, 0)?;
                Ok(Self { page, queues: QueueFile::in_guest(memory, alarm, charge), waker: Some(waker) })
            }
            _ => Err(io::Errno::INVAL),
        }
    }
}

/// Maps a context page from the other side. EFAULT where it is not filled in.
fn map_page(fd: BorrowedFd<'_>, alarm: &Alarm, disposal: &Disposal) -> io::Result<ContextPage> {
    let keep = Mapped::charge(disposal, CONTEXT_PAGE_LEN)?;
    let memory = SharedMemory::map_watched(fd, 0, CONTEXT_PAGE_LEN, alarm, keep)?;
    memory.populate(0, CONTEXT_PAGE_LEN)?;
    ContextPage::new(memory).ok_or(io::Errno::INVAL)
}

/// Maps a context page whose pages lie anywhere in a guest's memory.
fn map_guest_page(fd: BorrowedFd<'_>, pages: &Pages, alarm: &Alarm, disposal: &Disposal) -> io::Result<ContextPage> {
    let len = pages.places.len() * PAGE as usize;
    if pages.offset != 0 || len != CONTEXT_PAGE_LEN.next_multiple_of(PAGE as usize) {
        return Err(io::Errno::INVAL);
    }
    let keep = Mapped::charge(disposal, len)?;
    // For names of pages of queue memory.
    keep.memory.grow((MAX_PAGES * NAME) as u64)?;
    let memory = SharedMemory::reserve_watched(len, alarm, keep)?;
    for (index, place, count) in pages.runs() {
        memory.place(index * PAGE as usize, fd, place, count * PAGE as usize)?;
    }
    memory.populate(0, len)?;
    ContextPage::new(memory).ok_or(io::Errno::INVAL)
}

/// Charge for a mapping of queues.
struct Mapped {
    _address_space: Charge,
    mapping: Charge,
    memory: Charge,
    disposal: Disposal,
}

impl Mapped {
    fn charge(disposal: &Disposal, len: usize) -> Result<Self, Exhausted> {
        let (share, len) = (disposal.share(), len as u64);
        Ok(Self {
            _address_space: share.take(Resource::AddressSpace, len)?,
            mapping: share.take(Resource::Mappings, 1)?,
            // For its pages of the page table, all of which are used if the queues are.
            memory: share.take(Resource::Memory, (len >> 9) + PAGE)?,
            disposal: disposal.clone(),
        })
    }
}

impl Keep for Mapped {
    fn divide(&self) -> io::Result<()> {
        Ok(self.mapping.grow(1)?)
    }

    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        self.disposal.clone().unmap(pages, self);
    }
}

/// Bytes that the name of a page takes here.
const NAME: usize = 32;
const PAGE: u64 = 4096;
