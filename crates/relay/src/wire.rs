//! Messages between two relays, on the trunk between them.
//!
//! Each is one SEND of [`LEN`] bytes, little-endian. The bytes of streams travel as WRITEs into the other end's slot, whose
//! immediate data is the stream's number there.

use rdmesh_streams::ends::Ends;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of a message.
pub(crate) const LEN: usize = 80;

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

/// Slot of a stream at the other end of a trunk, as WRITEs name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteSlot {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// What one end has written into the header of its slot, and the other end's copy is to say.
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
}

impl Message {
    /// Its bytes.
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut out = Writer { bytes: [0; LEN], at: 0 };
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
                out.words([4, *stream, u32::from(state.is_final), u32::from(state.is_frozen)]);
                [state.up_at, state.down_at, state.head].iter().for_each(|word| out.put(&word.to_le_bytes()));
            }
            Self::End { stream } => out.words([5, *stream]),
        }
        out.bytes
    }

    /// The message in `bytes`; none where it is none.
    pub(crate) fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let mut input = Reader(bytes);
        let kind = input.word()?;
        let stream = input.word()?;
        Some(match kind {
            1 => Self::Ask {
                stream,
                slot: input.slot()?,
                nonce: [input.long()?, input.long()?],
                ends: Ends { connector: input.address()?, acceptor: input.address()? },
            },
            2 => Self::Found { asked: stream, stream: input.word()?, slot: input.slot()? },
            3 => Self::Unknown { asked: stream },
            4 => {
                let (is_final, is_frozen) = (input.word()? != 0, input.word()? != 0);
                let (up_at, down_at, head) = (input.long()?, input.long()?, input.long()?);
                Self::State { stream, state: State { up_at, down_at, is_final, head, is_frozen } }
            }
            5 => Self::End { stream },
            _ => return None,
        })
    }
}

struct Writer {
    bytes: [u8; LEN],
    at: usize,
}

impl Writer {
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

impl Reader<'_> {
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
        any::<(u64, u64, bool, u64, bool)>().prop_map(|(up_at, down_at, is_final, head, is_frozen)| State {
            up_at,
            down_at,
            is_final,
            head,
            is_frozen,
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
        fn messages_arrive_as_they_were_sent(message in message()) {
            prop_assert_eq!(Message::parse(&message.encode()), Some(message));
        }

        #[test]
        fn no_bytes_panic(bytes in any::<[u8; LEN]>()) {
            let _ = Message::parse(&bytes);
        }
    }
}
