//! Stack switch: runs a function on a stack of its own, so that it can replace the pages of the caller's stack.
#![allow(unsafe_code)]

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

const STACK: usize = 128 << 10;

/// Calls `function(argument)` on a fresh stack. It must not unwind.
pub(super) fn run_aside(function: extern "C" fn(*mut c_void), argument: *mut c_void) -> io::Result<()> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh memory.
    let stack = unsafe { rustix::mm::mmap_anonymous(null_mut(), STACK, prot, MapFlags::PRIVATE)? };
    let left = (&raw const stack).addr() as u64;
    ASIDE.set(Some(Aside { stack: (stack.addr() as u64, (stack.addr() + STACK) as u64), left }));
    // SAFETY: the stack is as long as that, and its end is aligned to a page.
    unsafe { switch(stack.cast::<u8>().add(STACK), function, argument) };
    ASIDE.set(None);
    // SAFETY: the function has returned, so nothing uses the stack any more.
    unsafe { rustix::mm::munmap(stack, STACK) }
}

/// Calls `work` on a fresh stack, and returns its result. It must not unwind.
pub(super) fn on_another<R, F: FnOnce() -> R>(work: F) -> io::Result<R> {
    extern "C" fn call<R, F: FnOnce() -> R>(call: *mut c_void) {
        // SAFETY: the caller's own, which it does not touch until this has returned.
        let (work, result) = unsafe { &mut *call.cast::<(Option<F>, Option<R>)>() };
        *result = work.take().map(|work| work());
    }
    let mut pair = (Some(work), None);
    run_aside(call::<R, F>, (&raw mut pair).cast())?;
    pair.1.ok_or(io::Errno::NOMEM)
}

/// A thread on a stack of [`run_aside`].
#[derive(Clone, Copy)]
pub(super) struct Aside {
    /// Bounds of that stack.
    pub(super) stack: (u64, u64),
    /// An address in the frame that it left on its own stack, which goes down from there when it comes back.
    pub(super) left: u64,
}

/// Where this thread is; none where it is on its own stack.
pub(super) fn aside() -> Option<Aside> {
    ASIDE.get()
}

/// Makes the pages of the main thread's stack below this frame, which is its own: enough for it to grow from, whatever is above.
/// Not for other threads, whose stacks may be smaller than that, and do not grow.
#[inline(never)]
pub(super) fn extend() {
    let mut room = [0u8; 32 << 10];
    std::hint::black_box(&mut room);
}

thread_local! {
    static ASIDE: Cell<Option<Aside>> = const { Cell::new(None) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn switch(top: *mut u8, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the stack pointer is kept in a register that a C function preserves, and restored; the new stack is
    // aligned as the calling convention asks.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(target_arch = "aarch64")]
unsafe fn switch(top: *mut u8, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: as on x86-64.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top,
            function = in(reg) function,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn note_stack(into: *mut c_void) {
        let here = 0u8;
        // SAFETY: the test passes the address of a u64.
        unsafe { into.cast::<u64>().write(&raw const here as u64) };
    }

    #[test]
    fn the_function_runs_elsewhere() {
        let mut there = 0u64;
        run_aside(note_stack, (&raw mut there).cast()).unwrap();
        assert_ne!(there, 0);
        assert!(there.abs_diff(&raw const there as u64) > STACK as u64);
    }
}
