//! Wait for the other side to close a connection.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Whether the other side closes a connection before `deadline`. What it sends until then is dropped.
pub(crate) fn is_closed_by(connection: BorrowedFd<'_>, deadline: Instant) -> bool {
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return false,
            Ok(_) => match recv(connection, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return true,
            },
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}
