//! Memory that is in use while pages are turned.
//!
//! The thread that turns pages writes to its stack and, through the kernel, to its thread area; those pages cannot be
//! held still. Neither can this library's own variables.
#![allow(unsafe_code)]

use super::PAGE;
use super::maps::Vma;
use arrayvec::ArrayVec;
use std::sync::atomic::AtomicU32;

/// Around the stack pointer of a thread whose stack is not known to libc (a coroutine's).
const STACK_BELOW: u64 = 256 << 10;
const STACK_ABOVE: u64 = 64 << 10;
/// Around the thread pointer: errno, and the rseq area, which the kernel writes.
const THREAD_AREA: u64 = 16 << 10;
/// Around a variable of this library: more than all of them.
const VARIABLES: u64 = 256 << 10;

/// Page ranges that must not be turned by this thread.
pub(super) fn areas() -> ArrayVec<(u64, u64), 4> {
    static VARIABLE: AtomicU32 = AtomicU32::new(0);
    let here = 0u8;
    let stack_pointer = &raw const here as u64;
    let mut areas = ArrayVec::new();
    if let Some((low, high)) = thread_stack() {
        areas.push(pages(low, high));
    }
    areas.push(pages(stack_pointer.saturating_sub(STACK_BELOW), stack_pointer + STACK_ABOVE));
    let thread = thread_pointer();
    areas.push(pages(thread.saturating_sub(THREAD_AREA), thread + THREAD_AREA));
    let variable = &raw const VARIABLE as u64;
    areas.push(pages(variable.saturating_sub(VARIABLES), variable + VARIABLES));
    areas
}

/// Whether a mapping is the main thread's stack, which grows, and cannot any more with a piece of it replaced.
pub(super) fn is_main_stack(vma: &Vma) -> bool {
    // SAFETY: asks for a value that the kernel put onto the stack at the start of the process.
    let on_stack = unsafe { libc::getauxval(libc::AT_RANDOM) };
    (vma.start..vma.end).contains(&on_stack)
}

fn pages(low: u64, high: u64) -> (u64, u64) {
    (low & !(PAGE - 1), high.next_multiple_of(PAGE))
}

/// The calling thread's stack, as libc knows it; none for the main thread, whose stack is never turned.
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

/// `pthread_self` is the thread pointer in glibc, on all machines near enough.
fn thread_pointer() -> u64 {
    // SAFETY: has no preconditions.
    unsafe { libc::pthread_self() as u64 }
}
