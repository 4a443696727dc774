//! Tests of registration: conversion of every kind of mapping.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block touches memory that its test has mapped, or makes a child"
)]

use super::maps::Maps;
use super::*;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

mod fork;
mod writers;

const RW: u32 = 0b1111;
const READ_ONLY: u32 = 1 << 2;
const PAGE_BYTES: usize = PAGE as usize;

/// As the session does it: inside the gate.
fn register(start: u64, len: u64, access: u32) -> Result<Registration, Errno> {
    let _gate = gate();
    super::register(start, len, access)
}

fn register_with(holds: Holds, start: u64, len: u64, access: u32) -> Result<Registration, Errno> {
    let _gate = gate();
    super::register_with(holds, start, len, access)
}

/// Held by tests in which all threads of the process can be stopped, or in which one cannot.
pub(super) static STOPPABLE: Mutex<()> = Mutex::new(());

/// Some pages of the test's own.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        Self::at(null_mut(), pages, MapFlags::PRIVATE)
    }

    fn at(address: *mut u8, pages: usize, flags: MapFlags) -> Self {
        let len = pages * PAGE_BYTES;
        let base = unsafe { mmap_anonymous(address.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
        Self { base: base.cast(), len }
    }

    /// Every byte different from its neighbours and from the same place in the next pages.
    fn fill(&self) {
        (0..self.len).for_each(|at| unsafe { self.base.add(at).write_volatile(pattern(at)) });
    }

    fn expect_filled(&self) {
        (0..self.len).for_each(|at| assert_eq!(unsafe { self.base.add(at).read_volatile() }, pattern(at), "at {at}"));
    }

    fn address(&self, at: usize) -> u64 {
        self.base as u64 + at as u64
    }

    fn register(&self, at: usize, len: usize) -> Registration {
        register(self.address(at), len as u64, RW).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.len).map(|at| unsafe { self.base.add(at).read_volatile() }).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unsafe { munmap(self.base.cast(), self.len) }.unwrap();
    }
}

fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8) ^ 0x5a) as u8
}

fn arena_of(registration: &Registration) -> OwnedFd {
    registration.arena().unwrap().descriptor().unwrap()
}

/// The registered range as the router sees it.
fn router_view(registration: &Registration) -> Vec<u8> {
    let arena = arena_of(registration);
    let mut view = Vec::new();
    for segment in registration.segments() {
        assert_eq!(segment.kind, SegmentKind::Arena as u32);
        let mut bytes = vec![0; segment.len as usize];
        assert_eq!(rustix::io::pread(&arena, &mut bytes, segment.offset).unwrap(), bytes.len());
        view.extend(bytes);
    }
    view
}

fn kinds(registration: &Registration) -> Vec<u32> {
    registration.segments().iter().map(|segment| segment.kind).collect()
}

const ARENA_KIND: u32 = SegmentKind::Arena as u32;
const PRIVATE_KIND: u32 = SegmentKind::Private as u32;

#[test]
fn content_is_kept_and_shared_at_any_alignment() {
    for (at, len) in [(0, 1), (4095, 1), (4095, 2), (1, 8 * 4096 - 2), (0, 8 * 4096), (5000, 3000), (8192, 4096)] {
        let pages = Pages::new(8);
        pages.fill();
        let registration = pages.register(at, len);
        pages.expect_filled();
        assert_eq!(kinds(&registration), [ARENA_KIND]);
        assert_eq!((registration.segments()[0].addr, registration.segments()[0].len), (pages.address(at), len as u64));
        assert_eq!(router_view(&registration), pages.bytes()[at..at + len]);
        let arena = arena_of(&registration);
        rustix::io::pwrite(arena, &[0xee], registration.segments()[0].offset + len as u64 - 1).unwrap();
        assert_eq!(pages.bytes()[at + len - 1], 0xee, "what the router writes is the program's memory");
    }
}

#[test]
fn large_ranges_keep_touched_and_untouched_pages() {
    let _stoppable = STOPPABLE.lock();
    for holds in [Holds::default(), Holds::crowded(true), Holds::crowded(false)] {
        let pages = Pages::new(40_000);
        for page in (0..40_000).step_by(977) {
            unsafe { pages.base.add(page * PAGE_BYTES + 5).write_volatile(page as u8 | 1) };
        }
        let registration = register_with(holds, pages.address(0), pages.len as u64, RW).unwrap();
        assert_eq!(kinds(&registration), [ARENA_KIND]);
        for page in 0..40_000 {
            let expected = if page % 977 == 0 { page as u8 | 1 } else { 0 };
            assert_eq!(unsafe { pages.base.add(page * PAGE_BYTES + 5).read_volatile() }, expected, "page {page}");
        }
    }
}

#[test]
fn registering_again_changes_nothing() {
    let pages = Pages::new(4);
    pages.fill();
    let first = pages.register(100, 5000);
    let inside = pages.register(200, 10);
    assert_eq!(kinds(&inside), [ARENA_KIND]);
    assert_eq!(inside.segments()[0].offset, first.segments()[0].offset + 100);
    let around = pages.register(0, pages.len);
    assert_eq!(router_view(&around), pages.bytes());
    pages.expect_filled();
    assert_eq!(around.segments()[0].offset, first.segments()[0].offset - 100);
}

#[test]
fn memory_that_came_to_the_address_of_other_memory_is_its_own() {
    let pages = Pages::new(4);
    pages.fill();
    let before = pages.register(0, pages.len);
    let address = pages.base;
    drop(pages);
    let pages = Pages::at(address, 4, MapFlags::PRIVATE | MapFlags::FIXED);
    assert_eq!(pages.bytes(), vec![0; pages.len]);
    unsafe { pages.base.add(9).write_volatile(9) };
    let after = pages.register(0, pages.len);
    let mut expected = vec![0; pages.len];
    expected[9] = 9;
    assert_eq!(pages.bytes(), expected);
    assert_eq!(router_view(&after), expected);
    drop(before);
}

#[test]
fn memory_that_was_moved_does_not_share_with_what_comes_after_it() {
    let place = Pages::new(8);
    let address = place.base;
    let old = Pages { base: address, len: 4 * PAGE_BYTES };
    old.fill();
    old.register(0, old.len);
    std::mem::forget(place);
    let target = Pages::new(8);
    let moved = unsafe {
        let to = target.base.cast();
        rustix::mm::mremap_fixed(old.base.cast(), old.len, 8 * PAGE_BYTES, MremapFlags::MAYMOVE, to).unwrap()
    };
    std::mem::forget(old);
    assert_eq!(moved, target.base.cast());
    unsafe { target.base.add(4 * PAGE_BYTES).write_volatile(77) };
    let new = Pages::at(address, 8, MapFlags::PRIVATE | MapFlags::FIXED);
    new.fill();
    // Also the part that only the move made the arena's.
    for at in [5 * PAGE_BYTES, 0] {
        let registration = new.register(at, new.len - at);
        new.expect_filled();
        assert_eq!(router_view(&registration), new.bytes()[at..]);
    }
    assert_eq!(target.bytes()[..4 * PAGE_BYTES], new.bytes()[..4 * PAGE_BYTES], "the old content, moved");
    assert_eq!(target.bytes()[4 * PAGE_BYTES..5 * PAGE_BYTES][..2], [77, 0]);
    let registration = target.register(0, target.len);
    assert_eq!(router_view(&registration), target.bytes());
}

#[test]
fn pages_without_a_mapping_are_given_back() {
    let pages = Pages::new(16);
    pages.fill();
    let registration = pages.register(0, pages.len);
    let (offset, arena) = (registration.segments()[0].offset, arena_of(&registration));
    let data_after = || rustix::fs::seek(&arena, rustix::fs::SeekFrom::Data(offset));
    assert_eq!(data_after(), Ok(offset));
    drop(pages);
    // In time, not at once.
    for _ in 0..300 {
        Pages::new(1).register(0, 1);
    }
    assert!(data_after().is_err() || data_after().unwrap() >= offset + 16 * PAGE);
}

#[test]
fn the_heap_of_brk_is_one_piece() {
    let end = unsafe { libc::sbrk(0) } as u64;
    let mut heap = None;
    Maps::open()
        .unwrap()
        .read(|vma| {
            if vma.heap && vma.end == end {
                heap = Some(vma)
            }
        })
        .unwrap();
    let middle = end - PAGE;
    assert!(heap.expect("the end of the heap").start < middle - PAGE);
    let (first, second) = (register(middle, PAGE, RW).unwrap(), register(middle - PAGE, 2 * PAGE, RW).unwrap());
    assert_eq!(kinds(&first), [ARENA_KIND]);
    assert_eq!((kinds(&second), second.segments()[0].offset), (vec![ARENA_KIND], middle - PAGE));
}

#[test]
fn read_only_memory_can_only_be_read() {
    let pages = Pages::new(2);
    pages.fill();
    unsafe { rustix::mm::mprotect(pages.base.cast(), pages.len, rustix::mm::MprotectFlags::READ) }.unwrap();
    assert_eq!(register(pages.address(3), 100, RW).err(), Some(Errno::FAULT));
    assert_eq!(kinds(&register(pages.address(3), 100, READ_ONLY).unwrap()), [PRIVATE_KIND]);
    unsafe { rustix::mm::mprotect(pages.base.cast(), pages.len, rustix::mm::MprotectFlags::empty()) }.unwrap();
    assert_eq!(register(pages.address(3), 100, READ_ONLY).err(), Some(Errno::FAULT));
}

#[test]
fn holes_are_errors() {
    let pages = Pages::new(3);
    unsafe { munmap(pages.base.add(PAGE_BYTES).cast(), PAGE_BYTES) }.unwrap();
    assert_eq!(register(pages.address(0), 3 * PAGE, RW).err(), Some(Errno::FAULT));
    assert_eq!(register(pages.address(0), PAGE + 1, RW).err(), Some(Errno::FAULT));
    assert_eq!(register(pages.address(PAGE_BYTES), 10, RW).err(), Some(Errno::FAULT));
    assert!(register(pages.address(0), PAGE, RW).is_ok());
    assert_eq!(register(u64::MAX - 10, 100, RW).err(), Some(Errno::INVAL));
    assert_eq!(register(1 << 46, 1 << 40, RW).err(), Some(Errno::FAULT));
}

#[test]
fn mappings_that_others_share_stay_as_they_are() {
    let pages = Pages::at(null_mut(), 3, MapFlags::SHARED);
    pages.fill();
    let registration = pages.register(10, 5000);
    assert_eq!(kinds(&registration), [PRIVATE_KIND]);
    assert!(registration.has_private() && registration.arena().is_none());
}

#[test]
fn several_mappings_become_several_pieces() {
    let pages = Pages::new(6);
    let shared = pages.base.wrapping_add(2 * PAGE_BYTES);
    std::mem::forget(Pages::at(shared, 1, MapFlags::SHARED | MapFlags::FIXED));
    let code = pages.base.wrapping_add(4 * PAGE_BYTES).cast();
    let all = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE | rustix::mm::MprotectFlags::EXEC;
    unsafe { rustix::mm::mprotect(code, PAGE_BYTES, all) }.unwrap();
    pages.fill();
    let registration = pages.register(7, 6 * PAGE_BYTES - 14);
    pages.expect_filled();
    assert_eq!(kinds(&registration), [ARENA_KIND, PRIVATE_KIND, ARENA_KIND, ARENA_KIND, ARENA_KIND]);
    let mut next = pages.address(7);
    for segment in registration.segments() {
        assert_eq!(segment.addr, next);
        next += segment.len;
    }
    assert_eq!(next, pages.address(6 * PAGE_BYTES - 7));
    let mut executable = false;
    Maps::open().unwrap().visit(code as u64, code as u64 + 1, |vma| executable = vma.executable).unwrap();
    assert!(executable, "rights are kept");
}

#[test]
fn variables_and_heap_can_be_registered() {
    static VARIABLE: [AtomicBool; 100] = [const { AtomicBool::new(true) }; 100];
    let heap: Vec<u8> = (0..100_000).map(pattern).collect();
    let registration = register(heap.as_ptr() as u64, heap.len() as u64, RW).unwrap();
    assert!(heap.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    assert!(kinds(&registration).contains(&ARENA_KIND));
    register((&raw const VARIABLE) as u64, 100, RW).unwrap();
    assert!(VARIABLE.iter().all(|flag| flag.load(Ordering::SeqCst)));
}

#[test]
fn the_allocators_own_pages_are_left_alone() {
    // A thread other than the main one allocates from a heap whose head is in its first page.
    let seen = std::thread::spawn(|| {
        let small = Box::new([1u8; 100]);
        let head = small.as_ptr() as u64 & !((64 << 20) - 1);
        (head, kinds(&register(head, 2 * PAGE, RW).unwrap()))
    });
    let (head, seen) = seen.join().unwrap();
    assert_eq!(seen, [PRIVATE_KIND, ARENA_KIND], "at {head:#x}");
}

#[test]
fn a_threads_own_stack_is_left_alone_and_anothers_is_turned() {
    let mut buffer = [0u8; 10_000];
    (0..buffer.len()).for_each(|at| buffer[at] = pattern(at));
    let own = register(buffer.as_ptr() as u64, 10_000, RW).unwrap();
    assert_eq!(kinds(&own), [PRIVATE_KIND]);
    let address = buffer.as_ptr() as u64;
    // The other thread's own stack may lie right below, within what is left alone.
    let kinds_seen = std::thread::spawn(move || kinds(&register(address, 10_000, RW).unwrap())).join().unwrap();
    assert!(kinds_seen.contains(&ARENA_KIND), "{kinds_seen:?}");
    assert!(buffer.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
}

#[test]
fn on_demand_memory_is_not_touched() {
    let access = RW | ACCESS_ON_DEMAND;
    let registration = register(0x1000, 1 << 40, access).unwrap();
    assert_eq!(registration.segments().len(), 1);
    assert_eq!(kinds(&registration), [PRIVATE_KIND]);
    assert_eq!(register(0, u64::MAX, access).unwrap().segments().len(), 0, "all memory needs no list");
    assert_eq!(register(0x1000, 0, RW).unwrap().segments().len(), 0);
}

#[test]
fn memory_given_up_reads_as_zeros() {
    let pages = Pages::new(4);
    pages.fill();
    pages.register(PAGE_BYTES, 2 * PAGE_BYTES);
    discard(pages.address(2 * PAGE_BYTES), 2 * PAGE);
    let bytes = pages.bytes();
    assert_eq!(bytes[2 * PAGE_BYTES..3 * PAGE_BYTES], [0; PAGE_BYTES]);
    assert!((0..2 * PAGE_BYTES).chain(3 * PAGE_BYTES..4 * PAGE_BYTES).all(|at| bytes[at] == pattern(at)));
}

#[test]
fn a_descriptor_closed_by_the_program_does_no_harm() {
    // Not this process's arena, which the other tests use: one of the test's own.
    let mut arena = arena::Arena::new();
    arena.open().unwrap();
    let (file, number) = (arena.file(), std::os::fd::AsRawFd::as_raw_fd(&arena.fd().unwrap()));
    arena.open().unwrap();
    assert_eq!(arena.file(), file, "still the same");
    let other = rustix::pipe::pipe().unwrap().0;
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), number) };
    arena.open().unwrap();
    assert_ne!(arena.file(), file);
}

#[test]
fn moved_memory_can_grow() {
    let pages = Pages::new(2);
    pages.fill();
    pages.register(0, pages.len);
    let grown = unsafe { mremap(pages.base.cast(), pages.len, 4 * PAGE_BYTES, MremapFlags::MAYMOVE) }.unwrap();
    std::mem::forget(pages);
    let pages = Pages { base: grown.cast(), len: 4 * PAGE_BYTES };
    assert!((0..2 * PAGE_BYTES).all(|at| pages.bytes()[at] == pattern(at)));
    pages.fill();
    assert_eq!(router_view(&pages.register(0, pages.len)), pages.bytes());
}

/// The missing arena pages of a registration.
fn missing(registration: &Registration) -> Vec<(u64, u64)> {
    let mut holes = Vec::new();
    for segment in registration.segments() {
        let hole = rustix::fs::seek(arena_of(registration), rustix::fs::SeekFrom::Hole(segment.offset)).unwrap();
        if hole < segment.offset + segment.len {
            holes.push((hole, segment.offset + segment.len));
        }
    }
    holes
}

#[test]
fn every_page_is_there_when_the_router_is_told() {
    // More than is populated in one call, and touched nowhere.
    let pages = Pages::new(70_000);
    assert_eq!(missing(&pages.register(5, pages.len - 10)), []);
    let again = pages.register(0, pages.len);
    // A page that was given up is there again at the next registration, though the others are known to be.
    discard(pages.address(40_000 * PAGE_BYTES), PAGE);
    assert_ne!(missing(&again), []);
    assert_eq!(missing(&pages.register(0, pages.len)), []);
    // The same for a page that was removed without the replaced functions, once the router has found that out.
    unsafe { libc::madvise(pages.base.cast(), PAGE_BYTES, libc::MADV_REMOVE) };
    assert_ne!(missing(&pages.register(0, pages.len)), []);
    distrust();
    assert_eq!(missing(&pages.register(0, pages.len)), []);
}
