//! Memory excluded from conversion: it is in use while pages are converted, or must not be shared with a forked child even for
//! a moment.
//!
//! The thread that converts pages writes to its stack, so that cannot be write-protected; neither can this library's own
//! variables. The thread areas of all threads are written by the kernel (rseq, thread ids), and by the child of a fork before
//! that has its own copy; so are the heads of the allocator's heaps.
#![allow(unsafe_code)]

use super::PAGE;
use super::hold::for_each_thread;
use super::maps::Vma;
use super::stack;
use std::sync::atomic::AtomicU32;

/// Around the stack pointer of a thread whose stack is not known to libc (a coroutine's).
const STACK_BELOW: u64 = 256 << 10;
const STACK_ABOVE: u64 = 64 << 10;
/// Below the main thread's stack, of what Linux leaves to it at least (128 MiB, `MIN_GAP`).
const STACK_REACH: u64 = 96 << 20;
/// Around the head of a thread's list of robust mutexes, which is in the middle of its thread area.
const THREAD_AREA_BELOW: u64 = 4 << 10;
const THREAD_AREA_ABOVE: u64 = 1 << 10;
/// Around a variable of this library: more than all of them.
const VARIABLES: u64 = 256 << 10;
/// Alignment of the heaps of threads in glibc's allocator (`HEAP_MAX_SIZE`).
const HEAP_ALIGN: u64 = 64 << 20;
/// The allocator's state follows this close to the beginning of a heap (`heap_info`).
const HEAP_HEAD: u64 = 256;

/// Page ranges that this thread must not convert, as far as they overlap `start..end`.
pub(super) fn areas(start: u64, end: u64) -> Vec<(u64, u64)> {
    static VARIABLE: AtomicU32 = AtomicU32::new(0);
    let here = 0u8;
    let stack_pointer = &raw const here as u64;
    let variable = &raw const VARIABLE as u64;
    let own = || thread_stack().filter(|&(low, high)| (low..high).contains(&stack_pointer));
    let mut areas = vec![
        stack::aside()
            .map(|aside| aside.stack)
            .or_else(own)
            .unwrap_or((stack_pointer.saturating_sub(STACK_BELOW), stack_pointer + STACK_ABOVE)),
        (variable.saturating_sub(VARIABLES), variable + VARIABLES),
    ];
    for_each_thread(|thread| areas.extend(thread_area(thread)));
    areas.iter().map(|&(low, high)| pages(low, high)).filter(|&(low, high)| low < end && start < high).collect()
}

/// The pages in `start..end`, which is readable, that hold the state of a heap of glibc's allocator.
pub(super) fn heap_heads(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let pages = (start.next_multiple_of(HEAP_ALIGN)..end).step_by(HEAP_ALIGN as usize);
    pages
        .filter(|&page| {
            // SAFETY: in a readable mapping. A heap begins with a pointer to its state.
            let first = unsafe { std::ptr::with_exposed_provenance::<u64>(page as usize).read_volatile() };
            (page + 1..page + HEAP_HEAD).contains(&first)
        })
        .map(|page| (page, page + PAGE))
}

/// Location of the calling thread's area.
pub(super) fn own_thread_area() -> Option<(u64, u64)> {
    let (low, high) = thread_area(0)?;
    Some(pages(low, high))
}

/// Location of a thread's area: libc does not report it, but the kernel knows the list of robust mutexes in it.
fn thread_area(thread: u32) -> Option<(u64, u64)> {
    let (mut head, mut len) = (0u64, 0usize);
    // SAFETY: the kernel writes a pointer and a length.
    let known = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len) } == 0;
    (known && head != 0).then(|| (head.saturating_sub(THREAD_AREA_BELOW), head + THREAD_AREA_ABOVE))
}

/// Whether the pages from `from` on are to stay because they are the main thread's stack. libc finds its bounds among the
/// mappings, and not any more with a piece of it replaced; so that is done only where there is no other way, by that thread itself,
/// and not at its lower end, where it grows.
pub(super) fn keeps_main_stack(vma: &Vma, from: u64) -> bool {
    // The frame that this thread has left is above all that the stack will grow from.
    let is_above = |aside: stack::Aside| is_in_main_stack(aside.left) && from >= aside.left & !(PAGE - 1);
    is_in_main_stack(vma.start) && !stack::aside().is_some_and(is_above)
}

/// Whether the calling thread runs on the main thread's stack.
pub(super) fn is_on_main_stack() -> bool {
    let here = 0u8;
    is_in_main_stack((&raw const here).addr() as u64)
}

/// With a piece replaced the stack is several mappings. The kernel places no others so close below it.
fn is_in_main_stack(address: u64) -> bool {
    // SAFETY: asks for a value that the kernel put onto the stack at the start of the process.
    let on_stack = unsafe { libc::getauxval(libc::AT_RANDOM) };
    address <= on_stack && on_stack < address.saturating_add(STACK_REACH)
}

fn pages(low: u64, high: u64) -> (u64, u64) {
    (low & !(PAGE - 1), high.next_multiple_of(PAGE))
}

/// The calling thread's stack, as libc knows it; none for the main thread, whose stack is never converted.
fn thread_stack() -> Option<(u64, u64)> {
    if rustix::thread::gettid() == rustix::process::getpid() {
        return None;
    }
    // SAFETY: the attributes are filled by the first call, and destroyed when that succeeded.
    unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let (mut base, mut size) = (std::ptr::null_mut(), 0);
        let known = libc::pthread_attr_getstack(&attributes, &mut base, &mut size) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        known.then(|| (base as u64, base as u64 + size as u64))
    }
}
