//! Messages between two relays, on the trunk between them.
//!
//! A SEND is a batch: up to [`BATCH`] bytes of messages, one behind the other, little-endian, each with its kind first. Few bytes of a
//! stream travel in it, many as WRITEs into the other end's slot, whose immediate data is the stream's number there.

use rdmesh_streams::ends::Ends;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Most bytes of a batch: one packet on an Ethernet.
pub(crate) const BATCH: usize = 960;
/// Most bytes of a stream that travel in a message.
pub(crate) const FEW: usize = 448;
/// Bytes of the longest message without a stream's bytes.
const LONGEST: usize = 80;
/// Bytes before those of a stream.
const HEAD: usize = 12;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// Asks for the stream of a connection that a process of the receiver's endpoint has accepted.
    Ask { stream: u32, slot: RemoteSlot, ends: Ends, nonce: [u64; 2] },
    /// The receiver's stream `asked` is the sender's `stream`.
    Found { asked: u32, stream: u32, slot: RemoteSlot },
    /// There is no such connection, or none that can be relayed now.
    Unknown { asked: u32 },
    /// State of the receiver's stream at the other end.
    State { stream: u32, state: State },
    /// The receiver's stream has ended at the other end, with all that it had to say.
    End { stream: u32 },
}

/// A message that has come, in its batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received<'a> {
    Message(Message),
    /// The next bytes of the receiver's stream.
    Bytes {
        stream: u32,
        bytes: &'a [u8],
    },
}

/// Messages that are sent together.
pub(crate) struct Batch {
    bytes: [u8; BATCH],
    len: usize,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; BATCH], len: 0 }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds a message; false where it does not fit.
    pub(crate) fn add(&mut self, message: &Message) -> bool {
        if self.len + LONGEST > BATCH {
            return false;
        }
        let mut out = Writer { bytes: &mut self.bytes[self.len..], at: 0 };
        message.encode(&mut out);
        self.len += out.at;
        true
    }

    /// Adds `len` bytes of the receiver's stream, at most [`FEW`], which `fill` puts in place; false where they do not fit.
    pub(crate) fn add_bytes(&mut self, stream: u32, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if len > FEW || self.len + HEAD + len > BATCH {
            return false;
        }
        let mut out = Writer { bytes: &mut self.bytes[self.len..], at: 0 };
        out.words([BYTES, stream, len as u32]);
        fill(&mut out.bytes[HEAD..HEAD + len]);
        self.len += HEAD + len;
        true
    }
}

/// The messages of a received batch, in order; none at the first that is none.
pub(crate) fn parse(batch: &[u8]) -> impl Iterator<Item = Option<Received<'_>>> {
    let mut rest = Some(Reader(batch));
    std::iter::from_fn(move || {
        let mut input = rest.take().filter(|input| !input.0.is_empty())?;
        let received = input.received();
        rest = received.is_some().then_some(input);
        Some(received)
    })
}

/// Slot of a stream at the other end of a trunk, as WRITEs name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteSlot {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// Words of a slot's header that one end has written, for the other end's copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    /// Of the direction that the sender writes, as in [`rdmesh_streams::ring::layout::Path`].
    pub(crate) up_at: u64,
    /// For the relays only: a stream that is on TCP both ways needs none.
    pub(crate) down_at: u64,
    pub(crate) is_final: bool,
    /// Of the direction that it reads.
    pub(crate) head: u64,
    pub(crate) is_frozen: bool,
    /// Its slot has the position at which that direction moved to the ring.
    pub(crate) has_up: bool,
}

impl Message {
    fn encode(&self, out: &mut Writer<'_>) {
        match self {
            Self::Ask { stream, slot, ends, nonce } => {
                out.words([1, *stream]);
                out.slot(slot);
                nonce.iter().for_each(|word| out.put(&word.to_le_bytes()));
                [ends.connector, ends.acceptor].iter().for_each(|address| out.address(address));
            }
            Self::Found { asked, stream, slot } => {
                out.words([2, *asked, *stream]);
                out.slot(slot);
            }
            Self::Unknown { asked } => out.words([3, *asked]),
            Self::State { stream, state } => {
                let bits = u32::from(state.is_final) | u32::from(state.is_frozen) << 1 | u32::from(state.has_up) << 2;
                out.words([4, *stream, bits]);
                [state.up_at, state.down_at, state.head].iter().for_each(|word| out.put(&word.to_le_bytes()));
            }
            Self::End { stream } => out.words([5, *stream]),
        }
    }
}

const BYTES: u32 = 6;

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn words<const N: usize>(&mut self, words: [u32; N]) {
        words.iter().for_each(|word| self.put(&word.to_le_bytes()));
    }

    fn slot(&mut self, slot: &RemoteSlot) {
        self.put(&slot.addr.to_le_bytes());
        self.words([slot.rkey]);
    }

    fn address(&mut self, address: &SocketAddr) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.put(&ip.octets());
        self.put(&address.port().to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn received(&mut self) -> Option<Received<'a>> {
        let kind = self.word()?;
        let stream = self.word()?;
        Some(Received::Message(match kind {
            1 => {
                let (slot, nonce) = (self.slot()?, [self.long()?, self.long()?]);
                let ends = Ends { connector: self.address()?, acceptor: self.address()? };
                Message::Ask { stream, slot, ends, nonce }
            }
            2 => Message::Found { asked: stream, stream: self.word()?, slot: self.slot()? },
            3 => Message::Unknown { asked: stream },
            4 => {
                let bits = self.word()?;
                let [is_final, is_frozen, has_up] = [1, 2, 4].map(|bit| bits & bit != 0);
                let (up_at, down_at, head) = (self.long()?, self.long()?, self.long()?);
                Message::State { stream, state: State { up_at, down_at, is_final, head, is_frozen, has_up } }
            }
            5 => Message::End { stream },
            BYTES => {
                let len = self.word()? as usize;
                let (bytes, rest) = self.0.split_at_checked(len).filter(|_| len <= FEW)?;
                self.0 = rest;
                return Some(Received::Bytes { stream, bytes });
            }
            _ => return None,
        }))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn slot(&mut self) -> Option<RemoteSlot> {
        Some(RemoteSlot { addr: self.long()?, rkey: self.word()? })
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = IpAddr::from(Ipv6Addr::from(self.take::<16>()?)).to_canonical();
        Some(SocketAddr::new(ip, u16::from_le_bytes(self.take()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot() -> impl Strategy<Value = RemoteSlot> {
        any::<(u64, u32)>().prop_map(|(addr, rkey)| RemoteSlot { addr, rkey })
    }

    fn state() -> impl Strategy<Value = State> {
        any::<(u64, u64, bool, u64, bool, bool)>().prop_map(|(up_at, down_at, is_final, head, is_frozen, has_up)| {
            State { up_at, down_at, is_final, head, is_frozen, has_up }
        })
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        any::<([u8; 4], [u8; 16], bool, u16)>().prop_map(|(v4, v6, is_v6, port)| {
            let ip = if is_v6 { IpAddr::from(v6).to_canonical() } else { IpAddr::from(v4) };
            SocketAddr::new(ip, port)
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            (any::<u32>(), slot(), address(), address(), any::<[u64; 2]>()).prop_map(
                |(stream, slot, connector, acceptor, nonce)| {
                    Message::Ask { stream, slot, ends: Ends { connector, acceptor }, nonce }
                }
            ),
            (any::<u32>(), any::<u32>(), slot()).prop_map(|(asked, stream, slot)| Message::Found {
                asked,
                stream,
                slot
            }),
            any::<u32>().prop_map(|asked| Message::Unknown { asked }),
            (any::<u32>(), state()).prop_map(|(stream, state)| Message::State { stream, state }),
            any::<u32>().prop_map(|stream| Message::End { stream }),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent(
            messages in prop::collection::vec((message(), prop::collection::vec(any::<u8>(), 0..FEW)), 1..20),
        ) {
            let mut batch = Batch::new();
            let mut sent = Vec::new();
            for (message, bytes) in &messages {
                if batch.add(message) {
                    sent.push(Received::Message(*message));
                }
                if batch.add_bytes(7, bytes.len(), |place| place.copy_from_slice(bytes)) {
                    sent.push(Received::Bytes { stream: 7, bytes });
                }
            }
            prop_assert!(!sent.is_empty());
            let received: Option<Vec<Received<'_>>> = parse(batch.bytes()).collect();
            prop_assert_eq!(received, Some(sent));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..BATCH)) {
            let parsed = parse(&bytes).count();
            prop_assert!(parsed <= bytes.len());
        }
    }

    #[test]
    fn what_is_no_message_ends_the_batch() {
        let mut batch = Batch::new();
        assert!(batch.add(&Message::End { stream: 1 }));
        let whole = batch.bytes().to_vec();
        let bytes = [&whole[..], &[9; 8], &whole].concat();
        let end = Some(Received::Message(Message::End { stream: 1 }));
        assert_eq!(parse(&bytes).collect::<Vec<_>>(), [end, None]);
        assert_eq!(parse(&whole[..7]).collect::<Vec<_>>(), [None]);
        // More bytes than there are.
        let bytes = [BYTES, 7, 5].map(u32::to_le_bytes).concat();
        assert_eq!(parse(&[&bytes[..], &[1; 4]].concat()).collect::<Vec<_>>(), [None]);
    }
}
