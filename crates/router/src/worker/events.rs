//! Completion channels and the stream of asynchronous events.
//!
//! To the program each is a descriptor that it reads events from, as it would from the kernel's. The router keeps a duplicate
//! of the program's end: when an object is destroyed, its unread events are taken back, so that the program neither waits for
//! the acknowledgement of an event that it never saw nor sees one of an object that is gone.

use rdmesh_uverbs::abi::{AsyncEventDesc, CompEventDesc};
use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// The router's end of an event descriptor.
pub struct EventSocket {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Events that found the socket full.
    waiting: VecDeque<EventBytes>,
}

/// An event as the program reads it: a [`CompEventDesc`], or an [`AsyncEventDesc`] with its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventBytes {
    pub(crate) element: u64,
    pub(crate) event_type: Option<u32>,
}

impl EventSocket {
    /// A connected pair: the router's end, and the descriptor for the program.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Nothing comes back: a descriptor that the program put in here would be closed by the worker, for as long as
        // its maker likes.
        shutdown(&ours, Shutdown::Read)?;
        // Unread events take the router's memory.
        set_socket_send_buffer_size(&ours, SEND_BUFFER)?;
        let program = fcntl_dupfd_cloexec(&theirs, 0)?;
        Ok((Self { ours, theirs, waiting: VecDeque::new() }, program))
    }

    /// Adds an event, to be sent by [`EventSocket::flush`]; false where an equal one waits already: one unread event of a kind
    /// is as good as many.
    pub(crate) fn push(&mut self, event: EventBytes) -> bool {
        let is_new = !self.waiting.contains(&event);
        if is_new {
            self.waiting.push_back(event);
        }
        is_new
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

    /// Takes back the events of `element` that the program has not read; returns how many.
    pub(crate) fn take_back(&mut self, element: u64) -> u32 {
        let mut kept = VecDeque::new();
        let mut bytes = [0; size_of::<AsyncEventDesc>()];
        // A program that has shut its end down reads as the end of the stream.
        while let Ok((len, _)) = recv(&self.theirs, &mut bytes, RecvFlags::DONTWAIT)
            && let Some(event) = EventBytes::decode(&bytes[..len])
        {
            kept.push_back(event);
        }
        kept.append(&mut self.waiting);
        let all = kept.len();
        kept.retain(|event| event.element != element);
        let taken = all - kept.len();
        self.waiting = kept;
        self.flush();
        taken as u32
    }

    fn write(&self, event: EventBytes) -> io::Result<()> {
        let (desc, len) = event.encode();
        match io::retry_on_intr(|| send(&self.ours, &desc.as_bytes()[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
        {
            // The program closed its end: the event has no receiver.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl EventBytes {
    fn encode(self) -> (AsyncEventDesc, usize) {
        let desc = AsyncEventDesc { element: self.element, event_type: self.event_type.unwrap_or(0), reserved: 0 };
        (desc, if self.event_type.is_some() { size_of::<AsyncEventDesc>() } else { size_of::<CompEventDesc>() })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if let Ok(AsyncEventDesc { element, event_type, .. }) = AsyncEventDesc::read_from_bytes(bytes) {
            return Some(Self { element, event_type: Some(event_type) });
        }
        let CompEventDesc { cq_handle } = CompEventDesc::read_from_bytes(bytes).ok()?;
        Some(Self { element: cq_handle, event_type: None })
    }
}

/// Room for some twenty events, which the kernel takes twice. Others wait here, one of each kind.
const SEND_BUFFER: usize = 8192;

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
            assert!(socket.push(completion(element)));
            assert!(!socket.flush());
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
        while socket.push(completion(sent)) && !socket.flush() {
            sent += 1;
        }
        let mut bytes = [0; 8];
        for expected in 0..=sent {
            rustix::io::read(&program, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), expected);
            socket.flush();
        }
    }

    #[test]
    fn what_never_left_is_taken_back_too() {
        let (mut socket, _program) = EventSocket::pair().unwrap();
        let mut sent = 0;
        while socket.push(completion(7)) && !socket.flush() {
            sent += 1;
        }
        assert!(!socket.push(completion(7)), "one that waits stands for all");
        assert_eq!(socket.take_back(7), sent + 1);
    }

    #[test]
    fn a_program_that_shuts_its_end_down_stops_nothing() {
        for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
            let (mut socket, program) = EventSocket::pair().unwrap();
            assert!(socket.push(completion(1)));
            shutdown(&program, how).unwrap();
            assert!(!socket.flush());
            socket.take_back(1);
        }
    }

    #[test]
    fn a_program_can_put_nothing_in() {
        let (_socket, program) = EventSocket::pair().unwrap();
        assert_eq!(send(&program, &[0; 8], SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}
