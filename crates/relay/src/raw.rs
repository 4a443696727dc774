//! A socket option that rustix does not have.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};

/// Identity of a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14; asm-generic/socket.h); 0 where the kernel does not
/// tell.
pub(crate) fn netns_cookie(fd: BorrowedFd<'_>) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the place has room for the number, and `len` says so.
    let result = unsafe {
        let value = (&raw mut cookie).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut len)
    };
    if result == 0 { cookie } else { 0 }
}
