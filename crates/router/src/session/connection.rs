//! Session connections: the socket, and the framing of its messages.

use super::account::{Account, CONNECTION_MEMORY, Charge};
use super::lookups::Found;
use super::program::Program;
use super::reply::Reply;
use crate::endpoint::EndpointId;
use crate::memory::{Evicted, Stretch};
use rdmesh_uverbs::session::guest::MAX_SEGMENTS;
use rdmesh_uverbs::session::{RequestHeader, RequestKind, Segment, VERSION};
use rdmesh_verbs::Vni;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes;

/// One connection of one process.
pub(super) struct SessionConnection {
    socket: OwnedFd,
    endpoint: EndpointId,
    /// The object that it opened or was attached to.
    subject: Option<Subject>,
    program: Program,
    /// The endpoint's tenant network.
    tenant: Vni,
    /// The endpoint's account.
    account: Account,
    /// Result of the lookup that it has waited for.
    found: Option<Found>,
    /// Index and name of the interface with the endpoint's address where the process is, once looked for.
    interface: Option<Option<(u32, String)>>,
    /// Stretches of the next registration, which have come before it, and the number of their pieces.
    stretches: (Vec<Stretch>, usize),
    /// Its charge.
    _charge: Charge,
}

impl SessionConnection {
    pub(super) fn new(socket: OwnedFd, account: Account, program: Program, charge: Charge) -> Self {
        let (endpoint, tenant) = (account.spec().id, account.spec().vni);
        Self {
            socket,
            endpoint,
            account,
            subject: None,
            program,
            tenant,
            found: None,
            interface: None,
            stretches: (Vec::new(), 0),
            _charge: charge,
        }
    }

    /// The socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The endpoint that it is of.
    pub(super) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// The endpoint's tenant network.
    pub(super) fn tenant(&self) -> Vni {
        self.tenant
    }

    /// The endpoint's account.
    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// The process that connected.
    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// The object that it opened or was attached to.
    pub(super) fn subject(&self) -> Option<Subject> {
        self.subject
    }

    /// It has opened an object, or was attached to it.
    pub(super) fn set_subject(&mut self, subject: Subject) {
        self.subject = Some(subject);
    }

    /// Index and name of the interface with the endpoint's address where the process is, once looked for.
    pub(super) fn interface(&self) -> Option<&Option<(u32, String)>> {
        self.interface.as_ref()
    }

    /// A lookup that it waits for has this result.
    pub(super) fn set_found(&mut self, found: Found) {
        match found {
            Found::Interface(interface) => self.interface = Some(interface),
            Found::ProcessMemory(Ok(memory)) => self.program.set_memory(memory),
            other => self.found = Some(other),
        }
    }

    /// Whether there is a result that has not been taken.
    pub(super) fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// The result of the lookup that it has waited for.
    pub(super) fn take_found(&mut self) -> Option<Found> {
        self.found.take()
    }

    /// Stretches of the next registration that have come before it.
    pub(super) fn stretches(&self) -> &[Stretch] {
        &self.stretches.0
    }

    /// Adds a stretch of the next registration, of so many pieces. ENOMEM where there are too many.
    pub(super) fn add_stretch(&mut self, stretch: Stretch, pieces: usize) -> Result<(), Errno> {
        let (stretches, count) = &mut self.stretches;
        if *count + pieces > MAX_SEGMENTS || stretches.len() == MOST_STRETCHES {
            return Err(Errno::NOMEM);
        }
        stretches.push(stretch);
        *count += pieces;
        Ok(())
    }

    /// The registration has been executed.
    pub(super) fn forget_stretches(&mut self) {
        self.stretches = (Vec::new(), 0);
    }

    /// Remaining parts at its end: its socket, its object and its account.
    pub(super) fn end(self) -> (OwnedFd, Option<Subject>, Account) {
        (self.socket, self.subject, self.account)
    }
}

/// A message that waits.
pub(super) struct Parked {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) until: Until,
    /// The next attempt to execute it.
    pub(super) attempt: Attempt,
    /// It can be executed.
    pub(super) is_over: bool,
}

/// Event that a message waits for.
pub(super) enum Until {
    /// There may be room for what its command was refused: these mappings have gone.
    Room(Evicted),
    /// The session thread has said which mappings must go.
    Eviction,
    /// The facts that its command needs have been looked up.
    Lookup,
}

/// Whether a command has waited for room. It does so once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    First,
    Second,
}

/// Whether a connection continues after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    Continue,
    /// The message waits, and so does the connection.
    Wait,
    /// Another thread serves it from now on.
    HandOver,
    Close,
}

/// An answer, and its response as the program's buffer has it.
pub(super) type Answer = Result<(Reply, Vec<u8>), Errno>;

/// Object that a connection belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// A context: the device, opened.
    Context(u32),
    /// A channel of rdma_cm.
    Channel(u32),
}

/// Error of a malformed message, which cannot be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("message is shorter than its header")]
    NoHeader,
    #[error("message has version {0}, not {VERSION}: the preload library is not of this router's release")]
    Version(u32),
    #[error("lengths in the message contradict its own")]
    Lengths,
    #[error("message of unknown kind {0}")]
    Kind(u32),
}

/// A request, framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: RequestKind,
    pub(super) body: &'a [u8],
    segments: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) = RequestHeader::read_from_prefix(message).map_err(|_| FrameError::NoHeader)?;
        if header.version != VERSION {
            return Err(FrameError::Version(header.version));
        }
        let kind = RequestKind::from_number(header.kind).ok_or(FrameError::Kind(header.kind))?;
        let (body, segments) = rest.split_at_checked(header.command_len as usize).ok_or(FrameError::Lengths)?;
        if (header.segments as usize).checked_mul(size_of::<Segment>()) != Some(segments.len()) {
            return Err(FrameError::Lengths);
        }
        Ok(Self { kind, body, segments })
    }

    /// Whether it fits where its answer would: a message that waits takes the answer's room.
    pub(super) fn may_wait(&self) -> bool {
        (size_of::<RequestHeader>() + self.body.len() + self.segments.len()) as u64 <= CONNECTION_MEMORY
    }

    /// The segments, copied out.
    pub(super) fn segments(&self) -> Vec<Segment> {
        let chunks = self.segments.chunks_exact(size_of::<Segment>());
        chunks.filter_map(|bytes| Segment::read_from_bytes(bytes).ok()).collect()
    }
}

/// Stretches of one registration: enough where each is a full message.
const MOST_STRETCHES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn message(version: u32, kind: u32, command_len: u32, segments: u32, rest: usize) -> Vec<u8> {
        let header = RequestHeader { version, kind, command_len, segments };
        [header.as_bytes(), &vec![0; rest]].concat()
    }

    #[test]
    fn a_frame_is_exactly_its_parts() {
        let bytes = message(VERSION, 3, 10, 2, 10 + 2 * size_of::<Segment>());
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.kind, frame.body.len(), frame.segments().len()), (RequestKind::Verbs, 10, 2));
        assert_eq!(Frame::parse(&bytes[..bytes.len() - 1]), Err(FrameError::Lengths));
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(Frame::parse(&[0; 15]), Err(FrameError::NoHeader));
        assert_eq!(Frame::parse(&message(0, 1, 0, 0, 0)), Err(FrameError::Version(0)));
        assert_eq!(Frame::parse(&message(VERSION, 9, 0, 0, 0)), Err(FrameError::Kind(9)));
        assert_eq!(Frame::parse(&message(VERSION, 1, u32::MAX, 0, 8)), Err(FrameError::Lengths));
        assert_eq!(Frame::parse(&message(VERSION, 1, 0, u32::MAX, 8)), Err(FrameError::Lengths));
    }
}
