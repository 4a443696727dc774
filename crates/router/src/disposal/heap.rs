//! The heap: freed memory goes back to the system.
#![allow(unsafe_code)]

/// Gives back what the allocator keeps of freed memory, where that is much. Allocators other than glibc's do so by themselves.
pub(super) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if kept() > MUCH {
        // SAFETY: it takes a number, and the allocator's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Bytes that were freed and are kept for later.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn kept() -> usize {
    // SAFETY: it takes nothing, and the allocator's own locks.
    unsafe { libc::mallinfo2() }.fordblks
}

/// Below this it is worth no time: the allocator uses it again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MUCH: usize = 32 << 20;
