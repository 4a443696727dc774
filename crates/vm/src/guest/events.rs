//! Descriptors from which a program reads events, in place of the router's.

use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A completion channel, or the stream of asynchronous events.
pub(super) struct EventChannel {
    ours: OwnedFd,
    /// A duplicate of the program's end, from which unread events are taken back.
    theirs: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
}

impl EventChannel {
    /// One, and the program's end.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let program = fcntl_dupfd_cloexec(&theirs, 0)?;
        Ok((Self { ours, theirs, waiting: VecDeque::new() }, program))
    }

    /// Adds an event.
    pub(super) fn push(&mut self, event: &[u8]) {
        self.waiting.push_back(event.to_vec());
        self.flush();
    }

    /// Sends what the program's end has room for.
    pub(super) fn flush(&mut self) {
        while let Some(event) = self.waiting.front() {
            match send(&self.ours, event, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN | Errno::INTR) => return,
                // One that the program has closed loses its events.
                _ => drop(self.waiting.pop_front()),
            }
        }
    }

    /// The end that is to be watched for room, if events wait.
    pub(super) fn full(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.ours.as_fd())
    }

    /// Events that wait.
    pub(super) fn backlog(&self) -> usize {
        self.waiting.len()
    }

    /// Takes back the unread events of an object. Returns how many of `len` bytes there were.
    pub(super) fn take_back(&mut self, element: u64, len: usize) -> u32 {
        let is_its = |event: &[u8]| event.len() == len && event.starts_with(&element.to_ne_bytes());
        let mut unread = VecDeque::new();
        let mut buffer = [0; 64];
        while let Ok((len @ 1.., _)) = recv(&self.theirs, &mut buffer[..], RecvFlags::DONTWAIT) {
            unread.push_back(buffer[..len].to_vec());
        }
        unread.append(&mut self.waiting);
        let before = unread.len();
        unread.retain(|event| !is_its(event));
        let taken = before - unread.len();
        self.waiting = unread;
        self.flush();
        taken as u32
    }
}

/// A channel of rdma_cm: a byte for each event that waits at the router.
pub(super) struct LevelChannel {
    ours: OwnedFd,
    theirs: OwnedFd,
    level: u32,
}

impl LevelChannel {
    /// One, and the program's end.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let program = fcntl_dupfd_cloexec(&theirs, 0)?;
        Ok((Self { ours, theirs, level: 0 }, program))
    }

    /// Makes the program find `level` bytes.
    pub(super) fn set(&mut self, level: u32) {
        while self.level < level {
            if send(&self.ours, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) != Ok(1) {
                return;
            }
            self.level += 1;
        }
        while self.level > level {
            if !matches!(recv(&self.theirs, &mut [0; 1][..], RecvFlags::DONTWAIT), Ok((1, _))) {
                return;
            }
            self.level -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::ioctl_fionread;

    fn event(element: u64, len: usize) -> Vec<u8> {
        let mut bytes = element.to_ne_bytes().to_vec();
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn unread_events_of_an_object_are_taken_back_and_the_others_stay_in_order() {
        let (mut channel, program) = EventChannel::pair().unwrap();
        // More than the socket takes.
        let elements: Vec<u64> = (0..2000).map(|number| number % 3).collect();
        elements.iter().for_each(|element| channel.push(&event(*element, 8)));
        channel.push(&event(1, 16));
        assert!(channel.backlog() > 0 && channel.full().is_some());
        assert_eq!(channel.take_back(1, 8) as usize, elements.iter().filter(|element| **element == 1).count());
        assert_eq!(channel.take_back(1, 16), 1);
        let mut seen = Vec::new();
        let mut buffer = [0; 64];
        while let Ok((len @ 1.., _)) = recv(&program, &mut buffer[..], RecvFlags::DONTWAIT) {
            seen.push(u64::from_ne_bytes(buffer[..len].try_into().unwrap()));
            channel.flush();
        }
        assert_eq!(seen, elements.into_iter().filter(|element| *element != 1).collect::<Vec<_>>());
    }

    #[test]
    fn a_level_is_what_the_program_finds() {
        let (mut channel, program) = LevelChannel::pair().unwrap();
        for level in [3, 1, 0, 5] {
            channel.set(level);
            assert_eq!(ioctl_fionread(&program), Ok(level.into()));
        }
    }
}
