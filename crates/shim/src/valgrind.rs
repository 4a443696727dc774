//! Valgrind client requests: instructions that do nothing on a processor and that valgrind recognises.
#![allow(unsafe_code)]

use std::arch::asm;
use std::marker::PhantomData;

/// While it lives, valgrind does not report what it finds in this thread. Pages of the program are copied as they are,
/// with bytes that it never wrote and with what an allocator keeps for itself: no error of the program's.
pub(crate) struct Unreported(PhantomData<*const ()>);

impl Unreported {
    /// Begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        request(&[CHANGE_REPORTING, 1, 0, 0, 0, 0]);
        Self(PhantomData)
    }
}

impl Drop for Unreported {
    #[inline]
    fn drop(&mut self) {
        request(&[CHANGE_REPORTING, usize::MAX, 0, 0, 0, 0]);
    }
}

/// `VG_USERREQ__CHANGE_ERR_DISABLEMENT`; what follows is added to how often reporting is switched off.
const CHANGE_REPORTING: usize = 0x1801;

#[cfg(target_arch = "x86_64")]
#[inline]
fn request(arguments: &[usize; 6]) {
    // SAFETY: rotates a register once around and exchanges one with itself. Valgrind, which looks at rax and answers in
    // rdx, reads six words.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") 0_usize => _,
            options(nostack, readonly),
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn request(arguments: &[usize; 6]) {
    // SAFETY: rotates a register once around and combines one with itself. Valgrind, which looks at x4 and answers in x3,
    // reads six words.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") arguments.as_ptr(),
            inout("x3") 0_usize => _,
            options(nostack, readonly),
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn request(_: &[usize; 6]) {}
