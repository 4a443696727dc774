//! Streams of virtio-vsock, the host's end (virtio 1.2, 5.10): connections, credit, and nothing of I/O.

use std::collections::{HashMap, VecDeque};

/// A stream, by the guest's port and the host's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct StreamId {
    pub(super) guest: u32,
    pub(super) host: u32,
}

/// Header of a packet, as far as a stream socket needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) stream: StreamId,
    pub(super) op: Op,
    pub(super) flags: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

/// Operation of a packet (virtio 1.2, 5.10.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Op {
    Request = 1,
    Response = 2,
    Reset = 3,
    Shutdown = 4,
    ReadWrite = 5,
    CreditUpdate = 6,
    CreditRequest = 7,
}

impl Op {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        use Op::*;
        let all = [Request, Response, Reset, Shutdown, ReadWrite, CreditUpdate, CreditRequest];
        all.into_iter().find(|op| *op as u16 == number)
    }
}

/// Effect of a packet of the guest.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A stream was opened.
    Opened(StreamId),
    /// The packet's bytes belong to a stream.
    Bytes(StreamId),
    /// The guest sends no more.
    Finished(StreamId),
    /// The stream is gone.
    Closed(StreamId),
}

/// All streams of a guest.
pub(super) struct Streams {
    streams: HashMap<StreamId, Stream>,
    /// Streams that have something to send, each once.
    ready: VecDeque<StreamId>,
    /// Answers about streams that there are not.
    resets: VecDeque<StreamId>,
    port: u32,
    most: usize,
}

#[derive(Default)]
struct Stream {
    /// Bytes to be sent.
    unsent: VecDeque<u8>,
    /// Bytes sent, and the guest's room for them.
    sent: u32,
    room: u32,
    forwarded: u32,
    /// Bytes received, all of which were taken at once, and those that the guest knows to be.
    received: u32,
    told: u32,
    /// Whether it is on the list of those that have something to send.
    is_ready: bool,
    /// An answer that waits besides data.
    answers: bool,
    credits: bool,
    is_finished: bool,
}

impl Streams {
    /// None, at most `most`, of the host's `port`.
    pub(super) fn new(port: u32, most: usize) -> Self {
        Self { streams: HashMap::new(), ready: VecDeque::new(), resets: VecDeque::new(), port, most }
    }

    /// Takes a packet with `len` bytes of data.
    pub(super) fn handle(&mut self, header: &Header, len: usize) -> Option<Event> {
        let id = header.stream;
        if header.op == Op::Request {
            return self.open(header);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            // A stream that is unknown is reset, but not a reset.
            if header.op != Op::Reset && self.resets.len() < MOST_RESETS {
                self.resets.push_back(id);
            }
            return None;
        };
        (stream.room, stream.forwarded) = (header.buf_alloc, header.fwd_cnt);
        let event = match header.op {
            Op::ReadWrite => {
                // More than there is room for: the guest does not count as its kernel does.
                let ahead = stream.received.wrapping_sub(stream.told) as usize + len;
                if ahead > ROOM as usize {
                    self.streams.remove(&id);
                    self.resets.push_back(id);
                    return Some(Event::Closed(id));
                }
                stream.received = stream.received.wrapping_add(len as u32);
                stream.credits |= stream.received.wrapping_sub(stream.told) >= ROOM / 4;
                Some(Event::Bytes(id))
            }
            Op::CreditRequest => {
                stream.credits = true;
                None
            }
            Op::Shutdown if header.flags & NO_MORE_SENT != 0 && header.flags & NO_MORE_TAKEN == 0 => {
                (!std::mem::replace(&mut stream.is_finished, true)).then_some(Event::Finished(id))
            }
            Op::Shutdown if header.flags & NO_MORE_SENT != 0 => {
                let is_new = !std::mem::replace(&mut stream.is_finished, true);
                stream.unsent.clear();
                is_new.then_some(Event::Finished(id))
            }
            Op::Reset => {
                self.streams.remove(&id);
                return Some(Event::Closed(id));
            }
            _ => None,
        };
        self.note(id);
        event
    }

    fn open(&mut self, header: &Header) -> Option<Event> {
        let id = header.stream;
        if id.host != self.port || (self.streams.len() >= self.most && !self.streams.contains_key(&id)) {
            if self.resets.len() < MOST_RESETS {
                self.resets.push_back(id);
            }
            return None;
        }
        // Of two with one name neither is to be trusted.
        if self.streams.remove(&id).is_some() {
            self.resets.push_back(id);
            return Some(Event::Closed(id));
        }
        let stream = Stream { room: header.buf_alloc, forwarded: header.fwd_cnt, answers: true, ..Stream::default() };
        self.streams.insert(id, stream);
        self.note(id);
        Some(Event::Opened(id))
    }

    /// Queues bytes for the guest. Nothing where the stream is gone.
    pub(super) fn send(&mut self, id: StreamId, bytes: &[u8]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.unsent.extend(bytes);
            self.note(id);
        }
    }

    /// Bytes of a stream that have not been sent.
    pub(super) fn unsent(&self, id: StreamId) -> usize {
        self.streams.get(&id).map_or(0, |stream| stream.unsent.len())
    }

    /// Ends a stream; what has not been sent is lost.
    pub(super) fn reset(&mut self, id: StreamId) {
        if self.streams.remove(&id).is_some() {
            self.resets.push_back(id);
        }
    }

    /// The next packet for the guest, with at most `most` bytes, which replace those in `data`.
    pub(super) fn poll_packet(&mut self, most: usize, data: &mut Vec<u8>) -> Option<Header> {
        data.clear();
        if let Some(stream) = self.resets.pop_front() {
            return Some(Header { stream, op: Op::Reset, flags: 0, buf_alloc: 0, fwd_cnt: 0 });
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.is_ready = false;
            let op = if std::mem::take(&mut stream.answers) {
                Op::Response
            } else if stream.sendable() > 0 {
                let len = stream.sendable().min(most);
                data.extend(stream.unsent.drain(..len));
                stream.sent = stream.sent.wrapping_add(len as u32);
                Op::ReadWrite
            } else if stream.credits {
                Op::CreditUpdate
            } else {
                continue;
            };
            stream.credits = false;
            stream.told = stream.received;
            let header = Header { stream: id, op, flags: 0, buf_alloc: ROOM, fwd_cnt: stream.received };
            self.note(id);
            return Some(header);
        }
        None
    }

    /// Whether a packet waits for room in the guest's queue.
    pub(super) fn has_packet(&self) -> bool {
        !self.resets.is_empty() || !self.ready.is_empty()
    }

    fn note(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_due = stream.answers || stream.credits || stream.sendable() > 0;
        if is_due && !std::mem::replace(&mut stream.is_ready, true) {
            self.ready.push_back(id);
        }
    }
}

impl Stream {
    /// Bytes that there are and that the guest has room for.
    fn sendable(&self) -> usize {
        let in_flight = self.sent.wrapping_sub(self.forwarded);
        self.unsent.len().min(self.room.saturating_sub(in_flight) as usize)
    }
}

/// Room for what a guest sends on one stream.
const ROOM: u32 = 256 << 10;
const MOST_RESETS: usize = 1024;
/// `VIRTIO_VSOCK_SHUTDOWN_F_RECEIVE` and `VIRTIO_VSOCK_SHUTDOWN_F_SEND`.
const NO_MORE_TAKEN: u32 = 1;
const NO_MORE_SENT: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId { guest: 700, host: 5 };

    fn header(op: Op, room: u32, forwarded: u32) -> Header {
        Header { stream: ID, op, flags: 0, buf_alloc: room, fwd_cnt: forwarded }
    }

    fn opened(room: u32) -> Streams {
        let mut streams = Streams::new(5, 2);
        assert_eq!(streams.handle(&header(Op::Request, room, 0), 0), Some(Event::Opened(ID)));
        assert_eq!(streams.poll_packet(100, &mut Vec::new()).map(|header| header.op), Some(Op::Response));
        assert!(!streams.has_packet());
        streams
    }

    #[test]
    fn bytes_wait_for_the_guests_credit() {
        let mut streams = opened(10);
        let mut data = Vec::new();
        streams.send(ID, b"0123456789abcdef");
        assert_eq!(streams.poll_packet(6, &mut data).map(|header| header.op), Some(Op::ReadWrite));
        assert_eq!(data, b"012345");
        assert!(streams.poll_packet(100, &mut data).is_some());
        assert_eq!(data, b"6789");
        assert_eq!((streams.poll_packet(100, &mut data), streams.unsent(ID)), (None, 6));
        streams.handle(&header(Op::CreditUpdate, 10, 3), 0);
        assert!(streams.poll_packet(100, &mut data).is_some());
        assert_eq!(data, b"abc");
        streams.handle(&header(Op::CreditUpdate, 100, 13), 0);
        assert!(streams.poll_packet(100, &mut data).is_some());
        assert_eq!((&data[..], streams.unsent(ID)), (&b"def"[..], 0));
    }

    #[test]
    fn the_guest_gets_credit_and_cannot_take_more() {
        let mut streams = opened(10);
        let piece = ROOM / 4;
        assert_eq!(streams.handle(&header(Op::ReadWrite, 10, 0), piece as usize), Some(Event::Bytes(ID)));
        let told = streams.poll_packet(100, &mut Vec::new()).unwrap();
        assert_eq!((told.op, told.fwd_cnt, told.buf_alloc), (Op::CreditUpdate, piece, ROOM));
        assert_eq!(streams.handle(&header(Op::ReadWrite, 10, 0), ROOM as usize + 1), Some(Event::Closed(ID)));
        assert_eq!(streams.poll_packet(100, &mut Vec::new()).map(|header| header.op), Some(Op::Reset));
    }

    #[test]
    fn what_there_is_not_is_reset_and_streams_are_limited() {
        let mut streams = opened(10);
        let other = |guest, host, op| Header { stream: StreamId { guest, host }, ..header(op, 10, 0) };
        assert_eq!(streams.handle(&other(1, 5, Op::Request), 0), Some(Event::Opened(StreamId { guest: 1, host: 5 })));
        streams.poll_packet(1, &mut Vec::new());
        // One too many, another port, and bytes for none; a reset is not answered.
        for refused in [other(2, 5, Op::Request), other(3, 6, Op::Request), other(9, 5, Op::ReadWrite)] {
            assert_eq!(streams.handle(&refused, 0), None);
            let answer = streams.poll_packet(1, &mut Vec::new()).unwrap();
            assert_eq!((answer.op, answer.stream), (Op::Reset, refused.stream));
        }
        assert_eq!(streams.handle(&other(9, 5, Op::Reset), 0), None);
        assert!(!streams.has_packet());
    }

    #[test]
    fn a_stream_ends_from_either_side() {
        let mut streams = opened(10);
        let shutdown = Header { flags: NO_MORE_SENT | NO_MORE_TAKEN, ..header(Op::Shutdown, 10, 0) };
        assert_eq!(streams.handle(&shutdown, 0), Some(Event::Finished(ID)));
        assert_eq!(streams.handle(&shutdown, 0), None);
        streams.reset(ID);
        assert_eq!(streams.poll_packet(1, &mut Vec::new()).map(|header| header.op), Some(Op::Reset));
        assert_eq!(streams.handle(&header(Op::Reset, 0, 0), 0), None);
    }
}
