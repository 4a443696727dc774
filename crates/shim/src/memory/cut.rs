//! Interrupted system calls: those that a stop by this library has ended, told from those that a signal of the program has.
//!
//! Some calls end with EINTR after any signal handler, `SA_RESTART` or not (signal(7)). Where the only handler was this
//! library's, the program must not see that: the functions in `interpose::waits` make the call again.
#![allow(unsafe_code)]

use crate::errno;
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Number of calls of this thread that only a stop has interrupted.
    static CUT: Cell<u32> = const { Cell::new(0) };
    /// Number of calls of this thread that returned a number of bytes when a stop, and no other signal, had come.
    static SHORTENED: Cell<u32> = const { Cell::new(0) };
}

/// Number of calls of this thread that only a stop can have ended before all their bytes were transferred.
#[inline]
pub(crate) fn shortened() -> u32 {
    SHORTENED.get()
}

/// Repeats a call until it ends otherwise than by a stop; its argument says whether it is the first time.
#[inline]
pub(crate) fn again<R: Copy + PartialEq + From<i8>>(mut call: impl FnMut(bool) -> R) -> R {
    let mut first = true;
    loop {
        let cuts = cuts();
        let result = call(first);
        if result != R::from(-1) || self::cuts() == cuts || !errno::is(Errno::INTR) {
            return result;
        }
        first = false;
    }
}

/// Number of calls of this thread that only a stop has interrupted.
#[inline]
pub(crate) fn cuts() -> u32 {
    CUT.get()
}

/// Run at the end of the handler, on the context that it interrupted: counts a call that it has cut off or short.
pub(super) fn note(signal: i32, context: *mut c_void) {
    // SAFETY: the kernel hands every handler with SA_SIGINFO its context.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    // A signal that came meanwhile has its handler run when this one returns, and then the call was cut off by it too.
    let count = match result(context) {
        EINTR => &CUT,
        1.. => &SHORTENED,
        _ => return,
    };
    if is_after_system_call(context) && !program_has_a_signal(signal, context) {
        count.set(count.get().wrapping_add(1));
    }
}

/// The result of the system call that the thread is about to return from, if it is about to.
#[cfg(target_arch = "x86_64")]
fn result(context: &libc::ucontext_t) -> i64 {
    context.uc_mcontext.gregs[libc::REG_RAX as usize]
}

#[cfg(target_arch = "aarch64")]
fn result(context: &libc::ucontext_t) -> i64 {
    context.uc_mcontext.regs[0] as i64
}

/// Whether the thread is about to return from a system call.
#[cfg(target_arch = "x86_64")]
fn is_after_system_call(context: &libc::ucontext_t) -> bool {
    let next = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    // SAFETY: the thread has come from the instruction before, two bytes long if it was `syscall`.
    unsafe { std::ptr::with_exposed_provenance::<[u8; 2]>(next - 2).read_volatile() == [0x0f, 0x05] }
}

#[cfg(target_arch = "aarch64")]
fn is_after_system_call(context: &libc::ucontext_t) -> bool {
    let next = context.uc_mcontext.pc as usize;
    // SAFETY: as on x86-64; `svc #0`.
    unsafe { std::ptr::with_exposed_provenance::<u32>(next - 4).read_volatile() == 0xd400_0001 }
}

const EINTR: i64 = -(libc::EINTR as i64);

/// Whether a signal other than `ours` waits for the handler to return, and will be handled then.
fn program_has_a_signal(ours: i32, context: &libc::ucontext_t) -> bool {
    let mut pending = 0u64;
    // SAFETY: the kernel writes eight bytes, and the mask in the context begins with the kernel's own.
    let blocked = unsafe {
        libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>());
        (&raw const context.uc_sigmask).cast::<u64>().read()
    };
    let mut waiting = pending & !blocked & !(1 << (ours - 1));
    while waiting != 0 {
        if is_handled(waiting.trailing_zeros() as i32 + 1) {
            return true;
        }
        waiting &= waiting - 1;
    }
    false
}

/// Whether a signal has an effect: it is not ignored, neither explicitly nor by default.
fn is_handled(signal: i32) -> bool {
    match super::stop::handler_of(signal) {
        Some(libc::SIG_IGN) => false,
        Some(libc::SIG_DFL) => !matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT),
        _ => true,
    }
}
