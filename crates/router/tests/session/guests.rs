//! Contexts of programs in a virtual machine: their memory lies in pages anywhere in one memfd.

use crate::client::{Client, plain};
use crate::world::World;
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::page::CONTEXT_PAGE_LEN;
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::guest::{MAX_SEGMENTS, PAGE, Pages};
use rdmesh_uverbs::session::{RequestKind, Segment, SegmentKind};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Memory of a guest, and the pages of it that its programs have so far.
struct Guest {
    file: OwnedFd,
    used: u64,
}

const MEMORY: u64 = 512;
const CONTEXT_PAGES: u64 = CONTEXT_PAGE_LEN.div_ceil(PAGE as usize) as u64;

impl Guest {
    fn new() -> Self {
        let (_, file) = SharedMemory::create("guest", (MEMORY * PAGE) as usize).unwrap();
        Self { file, used: 0 }
    }

    /// Pages that no other has, no two of which are neighbours.
    fn pages(&mut self, offset: u64, count: u64) -> Pages {
        let places = (self.used..self.used + count).map(|page| page * 7 % MEMORY * PAGE).collect();
        self.used += count;
        Pages { offset, places }
    }

    fn open(&mut self, path: &Path) -> Client {
        let mut client = Client::connect(path);
        let pages = self.pages(0, CONTEXT_PAGES);
        let body = opening(&pages);
        let answer = client.call_once(RequestKind::OpenGuest, &body, &[], Some(self.file.as_fd())).unwrap();
        // To wake the worker, and to be told to wake threads.
        assert_eq!(answer.fds.len(), 2);
        client.get_context().unwrap();
        client
    }
}

/// The body of `OpenGuest` for a program with a name that is no command to a terminal.
fn opening(pages: &Pages) -> Vec<u8> {
    [&b"ib_\x1b[2J\0\0\0\0\0\0\0\0\0"[..], &pages.to_bytes()].concat()
}

fn segment(addr: u64, offset: u64, kind: SegmentKind) -> Segment {
    Segment { addr, len: PAGE, kind: kind as u32, reserved: 0, offset }
}

#[test]
fn memory_in_pages_anywhere_is_used_and_private_memory_is_out_of_reach() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut guest = Guest::new();
    let mut client = guest.open(&path);
    let pd_handle = client.alloc_pd();
    // A queue, once its pages have been named.
    let create = plain(number::CREATE_CQ, &CreateCq { cqe: 200, comp_channel: -1, ..Default::default() }, &[], 24);
    let Err(Errno::NODATA) = client.call_once(RequestKind::Verbs, &create, &[], None) else { panic!("no pages") };
    let Extent { offset, len } = client.wanted.unwrap();
    let pages = guest.pages(offset, len / PAGE);
    client.call_once(RequestKind::GuestPages, &pages.to_bytes(), &[], None).unwrap();
    client.call_once(RequestKind::Verbs, &create, &[], None).unwrap();
    // A region of more pieces than one message holds.
    let count = 3000;
    let pieces: Vec<_> =
        (0..count).map(|page| segment((16 + page) * PAGE, page * 5 % MEMORY * PAGE, SegmentKind::Arena)).collect();
    let request = RegMr {
        start: 16 * PAGE,
        length: count * PAGE,
        hca_va: 16 * PAGE,
        pd_handle,
        access_flags: 1,
        ..Default::default()
    };
    let (before, last) = pieces.split_at(2000);
    for part in before.chunks(1000) {
        client.call_once(RequestKind::GuestSegments, &[], part, Some(guest.file.as_fd())).unwrap();
    }
    client.reg_mr(&request, last, Some(guest.file.as_fd())).unwrap();
    // They are of one registration only.
    assert_eq!(client.reg_mr(&request, last, Some(guest.file.as_fd())).err(), Some(Errno::INVAL));
    // What is beyond the memory, and what is a process's: of the one that serves the guest.
    let small = RegMr { length: PAGE, ..request };
    let beyond = [segment(16 * PAGE, MEMORY * PAGE, SegmentKind::Arena)];
    assert_eq!(client.reg_mr(&small, &beyond, Some(guest.file.as_fd())).err(), Some(Errno::INVAL));
    let private = [segment(16 * PAGE, 0, SegmentKind::Private)];
    assert_eq!(client.reg_mr(&small, &private, None).err(), Some(Errno::OPNOTSUPP));
    let whole = RegMr { start: 0, length: u64::MAX, hca_va: 0, access_flags: 1 | 1 << 6, ..request };
    assert_eq!(client.reg_mr(&whole, &[], None).err(), Some(Errno::OPNOTSUPP));
    // Leases and chains are not for guests.
    for kind in [RequestKind::Linger, RequestKind::Chain] {
        assert_eq!(client.call_once(kind, &[0; 8], &[], None).err(), Some(Errno::OPNOTSUPP), "{kind:?}");
    }
}

#[test]
fn lists_of_pages_that_cannot_be_are_refused() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut guest = Guest::new();
    let places = |place: u64, count: u64| Pages { offset: 0, places: vec![place; count as usize] };
    let lists = [
        places(0, CONTEXT_PAGES - 1),
        places(0, CONTEXT_PAGES + 1),
        places(MEMORY * PAGE, CONTEXT_PAGES),
        places(1, CONTEXT_PAGES),
        Pages { offset: PAGE, ..places(0, CONTEXT_PAGES) },
    ];
    for list in lists {
        let mut client = Client::connect(&path);
        let opened = client.call_once(RequestKind::OpenGuest, &opening(&list), &[], Some(guest.file.as_fd()));
        assert_eq!(opened.err(), Some(Errno::INVAL), "{list:?}");
    }
    // Memory that could shrink, and none.
    let open_file = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for fd in [Some(open_file.as_fd()), None] {
        let opened =
            Client::connect(&path).call_once(RequestKind::OpenGuest, &opening(&places(0, CONTEXT_PAGES)), &[], fd);
        assert_eq!(opened.err(), Some(Errno::INVAL));
    }
    // Lists and segments without end.
    let (mut client, other) = (guest.open(&path), guest.open(&path));
    let many = Pages { offset: 0, places: vec![0; 8000] };
    let refused = (0..20)
        .map(|part| Pages { offset: part * 8000 * PAGE, ..many.clone() })
        .find_map(|list| client.call_once(RequestKind::GuestPages, &list.to_bytes(), &[], None).err());
    assert_eq!(refused, Some(Errno::NOMEM));
    // No two of them lie behind one another.
    let part: Vec<_> = (0..2000).map(|page| segment(page * PAGE, page % 2 * PAGE * 9, SegmentKind::Arena)).collect();
    let send =
        |client: &mut Client, part: &[Segment], fd| client.call_once(RequestKind::GuestSegments, &[], part, fd).err();
    let memory = Some(guest.file.as_fd());
    let refused = (0..MAX_SEGMENTS / 2000 + 1).find_map(|_| send(&mut client, &part, memory));
    assert_eq!(refused, Some(Errno::NOMEM));
    // As many stretches of one piece each.
    let mut client = other;
    let single = [segment(0, 0, SegmentKind::Arena)];
    assert_eq!((0..300).find(|_| send(&mut client, &single, memory) == Some(Errno::NOMEM)), Some(256));
    // Stretches with a gap, of nothing, without memory, and of private pages.
    let one = [segment(0, 0, SegmentKind::Arena)];
    let gap = [one[0], segment(2 * PAGE, 0, SegmentKind::Arena)];
    for (part, fd) in [(&gap[..], memory), (&[], memory), (&one, None)] {
        assert_eq!(send(&mut client, part, fd), Some(Errno::INVAL));
    }
    assert_eq!(send(&mut client, &[segment(0, 0, SegmentKind::Private)], memory), Some(Errno::FAULT));
    // And not for a context of this host's own programs.
    let mut own = Client::device(&path);
    assert_eq!(own.call_once(RequestKind::GuestPages, &many.to_bytes(), &[], None).err(), Some(Errno::INVAL));
    assert_eq!(send(&mut own, &one, memory), Some(Errno::INVAL));
}
