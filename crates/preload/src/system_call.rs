//! System calls that a program makes by libc's `syscall`, which libraries replace.
#![allow(unsafe_code)]

use crate::{errno, real};
use libc::{c_int, c_long};
use rustix::io::Errno;

/// Number and arguments of a system call.
pub type Call = [c_long; 7];

/// Makes a call as the next library in the chain does.
pub fn pass_on(call: &Call) -> c_long {
    // An allocator on its way up makes calls before functions can be looked up.
    if real::all_are_known() {
        let [number, a, b, c, d, e, f] = *call;
        real::syscall(number, a, b, c, d, e, f)
    } else {
        or_errno(kernel(call))
    }
}

/// Converts the kernel's result to libc's convention.
pub fn or_errno(result: c_long) -> c_long {
    if (-4095..0).contains(&result) { errno::minus_one(Errno::from_raw_os_error(-result as c_int)) } else { result }
}

/// Makes a call; a failure is the negative number of an error.
#[cfg(target_arch = "x86_64")]
pub fn kernel(call: &Call) -> c_long {
    let result;
    // SAFETY: the program's own call, passed on.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") call[0] => result,
            in("rdi") call[1],
            in("rsi") call[2],
            in("rdx") call[3],
            in("r10") call[4],
            in("r8") call[5],
            in("r9") call[6],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a call; a failure is the negative number of an error.
#[cfg(target_arch = "aarch64")]
pub fn kernel(call: &Call) -> c_long {
    let result;
    // SAFETY: as on x86-64.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") call[0],
            inlateout("x0") call[1] => result,
            in("x1") call[2],
            in("x2") call[3],
            in("x3") call[4],
            in("x4") call[5],
            in("x5") call[6],
            options(nostack),
        );
    }
    result
}
