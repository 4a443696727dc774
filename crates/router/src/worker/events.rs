//! Completion channels and the stream of asynchronous events.
//!
//! To the program each is a descriptor that it reads events from, as it would from the kernel's. The router keeps a
//! duplicate of the program's end: when an object is destroyed, its unread events are taken back, so that the program
//! neither waits for the acknowledgement of an event that it never saw nor sees one of an object that is gone.

use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The router's end of an event descriptor.
pub struct EventSocket {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Events that found the socket full.
    waiting: VecDeque<EventBytes>,
}

/// An event as the program reads it: `ib_uverbs_comp_event_desc`, or `ib_uverbs_async_event_desc` with its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventBytes {
    pub(crate) element: u64,
    pub(crate) event_type: Option<u32>,
}

impl EventSocket {
    /// A connected pair: the router's end, and the descriptor for the program.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let program = fcntl_dupfd_cloexec(&theirs, 0)?;
        Ok((Self { ours, theirs, waiting: VecDeque::new() }, program))
    }

    /// Sends an event, now or when the program has read some. Returns whether one is waiting.
    pub(crate) fn send(&mut self, event: EventBytes) -> bool {
        // One unread event of a kind tells the program as much as many.
        if !self.waiting.contains(&event) {
            self.waiting.push_back(event);
        }
        self.flush()
    }

    /// Sends what is waiting, as far as the socket takes it. Returns whether something is left.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(event) = self.waiting.front() {
            if self.write(*event).is_err() {
                return true;
            }
            self.waiting.pop_front();
        }
        false
    }

    /// Takes back the events of `element` that the program has not read; returns how many were sent but unread.
    pub(crate) fn take_back(&mut self, element: u64) -> u32 {
        self.waiting.retain(|event| event.element != element);
        let mut kept = VecDeque::new();
        let mut taken = 0;
        let mut bytes = [0; ASYNC_LEN];
        while let Ok((len, _)) = recv(&self.theirs, &mut bytes, RecvFlags::DONTWAIT) {
            match EventBytes::decode(&bytes[..len]) {
                Some(event) if event.element == element => taken += 1,
                Some(event) => kept.push_back(event),
                None => {}
            }
        }
        kept.append(&mut self.waiting);
        self.waiting = kept;
        self.flush();
        taken
    }

    fn write(&self, event: EventBytes) -> io::Result<()> {
        let mut bytes = [0; ASYNC_LEN];
        let len = event.encode(&mut bytes);
        match io::retry_on_intr(|| send(&self.ours, &bytes[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)) {
            // The program closed its end: nobody is left to tell.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl EventBytes {
    fn encode(self, bytes: &mut [u8; ASYNC_LEN]) -> usize {
        bytes[..8].copy_from_slice(&self.element.to_ne_bytes());
        match self.event_type {
            None => COMP_LEN,
            Some(event_type) => {
                bytes[8..12].copy_from_slice(&event_type.to_ne_bytes());
                ASYNC_LEN
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (element, rest) = bytes.split_first_chunk()?;
        let event_type = rest.first_chunk().map(|n| u32::from_ne_bytes(*n));
        Some(Self { element: u64::from_ne_bytes(*element), event_type })
    }
}

const COMP_LEN: usize = 8;
const ASYNC_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(element: u64) -> EventBytes {
        EventBytes { element, event_type: None }
    }

    #[test]
    fn unread_events_are_taken_back() {
        let (mut socket, program) = EventSocket::pair().unwrap();
        for element in [1, 2, 1] {
            assert!(!socket.send(completion(element)));
        }
        let mut bytes = [0; 8];
        rustix::io::read(&program, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 1);
        assert_eq!(socket.take_back(1), 1);
        rustix::io::read(&program, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 2);
        assert_eq!(socket.take_back(2), 0);
    }

    #[test]
    fn a_full_socket_loses_no_event() {
        let (mut socket, program) = EventSocket::pair().unwrap();
        let mut sent = 0;
        while !socket.send(completion(sent)) {
            sent += 1;
        }
        let mut bytes = [0; 8];
        for expected in 0..=sent {
            rustix::io::read(&program, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), expected);
            socket.flush();
        }
    }
}
