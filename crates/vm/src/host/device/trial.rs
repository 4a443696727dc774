//! A guest that sends anything, and a router that answers anything: for the fuzzer and a test.

use super::super::memory::{GuestMemory, Region};
use super::super::streams::{Header, Op, StreamId};
use super::State;
use crate::wire::{Hello, PORT, Purpose, frame};
use rdmesh_uverbs::session::guest::{Pages, ProgramName};
use rdmesh_uverbs::session::{ReplyHeader, RequestHeader, RequestKind, SOCKET_NAME, Segment};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send,
    socket_with,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// A device with a guest of some memory, and the router's end of its sessions.
pub struct Trial {
    state: State,
    listener: OwnedFd,
    sessions: Vec<OwnedFd>,
}

impl Trial {
    /// One whose endpoint's directory is `directory`, which is empty.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(directory.join(SOCKET_NAME))?)?;
        listen(&listener, 64)?;
        let mut state = State::new(3, directory)?;
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        let region = |address, len, offset| (Region { address, len, offset }, memory.as_fd());
        state.table = GuestMemory::new([region(0, LOW, 0), region(HIGH, MEMORY - LOW, LOW)].into_iter());
        Ok(Self { state, listener, sessions: Vec::new() })
    }

    /// Plays a script: for each piece its stream, an operation, and data, either a guest's bytes or a router's.
    pub fn run(&mut self, script: &[u8]) {
        let mut script: VecDeque<u8> = script.iter().copied().collect();
        while let (Some(which), Some(what), Some(len)) = (script.pop_front(), script.pop_front(), script.pop_front()) {
            let len = (len as usize).min(script.len());
            let data: Vec<u8> = script.drain(..len).collect();
            self.step(which, what, &data);
            self.check();
        }
    }

    fn step(&mut self, which: u8, what: u8, data: &[u8]) {
        let stream = StreamId { guest: 1020 + u32::from(which % 8), host: PORT };
        let op = match what % 16 {
            8 => return self.answer(which, data),
            9 => return self.packet(stream, Op::ReadWrite, Hello::new(Purpose::Program, self.state.token).as_bytes()),
            10..=13 => {
                // A frame of a valid kind with any payload.
                let (Some(kind), rest) = (data.first(), data.get(1..).unwrap_or_default()) else { return };
                let bytes = frame(crate::wire::Kind::Request, &[rest]);
                let bytes = [&u32::from(1 + kind % 4).to_ne_bytes(), &bytes[4..]].concat();
                return self.packet(stream, Op::ReadWrite, &bytes);
            }
            number => Op::from_number(number.into()),
        };
        if let Some(op) = op {
            self.packet(stream, op, data);
        }
    }

    fn packet(&mut self, stream: StreamId, op: Op, data: &[u8]) {
        let flags = data.first().map_or(3, |byte| u32::from(*byte));
        let header = Header { stream, op, flags, buf_alloc: 1 << 16, fwd_cnt: flags };
        let event = self.state.streams.handle(&header, data.len());
        event.into_iter().for_each(|event| self.state.on_event(&event, data));
        let mut taken = Vec::new();
        while self.state.streams.poll_packet(1 << 16, &mut taken).is_some() {}
    }

    /// The router answers a session, truly or with anything.
    fn answer(&mut self, which: u8, data: &[u8]) {
        let Some(session) = self.sessions.get(which as usize % 8) else { return };
        let success = ReplyHeader::default();
        let bytes = if data.len().is_multiple_of(3) { success.as_bytes() } else { data };
        let _ = send(session, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        self.state.serve_sessions();
    }

    /// Whatever reaches the router names the guest's memory, and nothing beyond.
    fn check(&mut self) {
        self.sessions.extend(std::iter::from_fn(|| accept(&self.listener).ok()));
        self.sessions.drain(..self.sessions.len().saturating_sub(8));
        let mut buffer = vec![0; 1 << 17];
        for session in &self.sessions {
            while let Ok((len @ 1.., _)) = recv(session, &mut buffer[..], RecvFlags::DONTWAIT) {
                check_message(&buffer[..len]);
            }
        }
        assert!(self.state.held <= super::MOST_HELD && self.state.connections.len() == self.state.numbers.len());
    }
}

fn check_message(message: &[u8]) {
    let (header, body) = RequestHeader::read_from_prefix(message).expect("a message has a header");
    let (command, segments) = body.split_at(header.command_len as usize);
    assert_eq!(segments.len(), header.segments as usize * size_of::<Segment>());
    for segment in segments.chunks_exact(size_of::<Segment>()) {
        let segment = Segment::read_from_bytes(segment).expect("a whole segment");
        assert!(segment.offset.checked_add(segment.len).is_some_and(|end| end <= MEMORY), "{segment:?}");
    }
    let kind = RequestKind::from_number(header.kind);
    let list = match kind {
        Some(RequestKind::OpenGuest) => command.get(size_of::<ProgramName>()..).and_then(Pages::parse),
        Some(RequestKind::GuestPages) => Pages::parse(command),
        _ => None,
    };
    if let Some(pages) = list {
        assert!(pages.places.iter().all(|place| *place < MEMORY), "{pages:?}");
    }
}

/// Bytes below the hole in the guest's addresses, the end of the hole, and all bytes.
const LOW: u64 = 8 << 20;
const HIGH: u64 = 16 << 20;
const MEMORY: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers that are the same in each run (splitmix64).
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = *state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    #[test]
    fn whatever_a_guest_sends_the_router_hears_of_its_memory_only() {
        let mut heard = 0;
        for seed in 0..40 {
            let directory = tempfile::tempdir().unwrap();
            let mut trial = Trial::new(directory.path()).unwrap();
            let mut state = seed;
            for _ in 0..400 {
                let which = next(&mut state) as u8 % 3;
                // Mostly what gets far: a request, a hello, a registration or a list of pages, an answer.
                let script = match next(&mut state) % 6 {
                    0 => vec![which, 1, 0],
                    1 => vec![which, 9, 0],
                    2 => vec![which, 8, 0],
                    3 => registration(which, &mut state),
                    _ => {
                        let len = next(&mut state) as u8 % 60;
                        let head = vec![which, next(&mut state) as u8, len];
                        head.into_iter().chain((0..len).map(|_| next(&mut state) as u8)).collect()
                    }
                };
                trial.run(&script);
                heard += trial.sessions.len();
            }
        }
        assert!(heard > 1000, "hardly anything has reached the router: {heard}");
    }

    /// A registration of two segments with addresses in, around and beyond the guest's memory.
    fn registration(which: u8, state: &mut u64) -> Vec<u8> {
        let header = RequestHeader { version: 6, kind: RequestKind::Verbs as u32, command_len: 4, segments: 2 };
        let mut segment = || Segment {
            addr: 0,
            len: next(state) % (12 << 20),
            kind: 1,
            reserved: 0,
            offset: next(state) % (40 << 20),
        };
        let segments = [segment(), segment()];
        let payload = [&[0], header.as_bytes(), &[0; 4], segments.as_bytes()].concat();
        [&[which, 10, payload.len() as u8], &payload[..]].concat()
    }
}
