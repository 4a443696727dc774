//! Packets between two queue pairs on one host.
//!
//! They have the headers of RoCE (IBA 9.2), and differ from packets on a wire where one host allows it: the payload is a
//! reference to registered memory, packets are larger than any MTU, and nothing is lost or reordered, so every request packet
//! is answered by exactly one reply. A packet that a wire would lose silently is answered by [`Body::Lost`], for which the
//! requester reports the time-out that a wire would have caused.

use crate::memory::{Payload, Source};
use crate::platform::Memory;
use crate::wire::{Aeth, Header, IpUdp, Op, Part, Syndrome};
use rdmesh_verbs::chain::{Args, ChainOp};
use rdmesh_verbs::{Qpn, Vni};

/// A packet between two queue pairs of this host.
pub struct Packet<M> {
    pub(crate) head: Head,
    pub(crate) body: Body<M>,
}

#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) vni: Vni,
    /// The IP header that it would have on a wire.
    pub(crate) ip: IpUdp,
    pub(crate) header: Header,
    /// The queue pair that has sent it.
    pub(crate) src: Qpn,
    /// Requests sent before a retry, and replies to them, carry an older epoch.
    pub(crate) epoch: u32,
    /// Bytes that the request moves, in the reply too.
    pub(crate) len: u32,
    /// Bytes that are left of the message from this packet on. Of a READ all are checked with each packet.
    pub(crate) remaining: u64,
    /// For a datagram to a group: the engine that it is for.
    pub(crate) shard: u32,
}

/// Data behind the headers.
pub(crate) enum Body<M> {
    Data(Payload<M>),
    /// The data of an ATOMIC WRITE.
    Word([u8; 8]),
    /// In a request: a READ whose failed check is answered with zeros. In its reply: so many of them.
    Zeros(u32),
    /// The operands of an atomic that has no packet on a wire.
    Calc(ChainOp, Args),
    /// In place of a reply: the request is lost, as on a wire. There is no such QP, or it has another state or peer.
    Lost,
    /// After an RNR NAK of a managed receive queue: it may take the message now.
    Ready,
}

impl<M: Memory> Body<M> {
    /// The data, of which nothing is left here.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::Lost)
    }

    /// Bytes of data.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Data(payload) => payload.len() as usize,
            Self::Word(word) => word.len(),
            Self::Zeros(_) | Self::Calc(..) | Self::Lost | Self::Ready => 0,
        }
    }

    /// Copies the first bytes of the data. Memory that has gone meanwhile shows as zeros.
    pub(crate) fn show(&self, to: &mut [u8]) {
        match self {
            Self::Data(payload) => {
                let _ = payload.read(to);
            }
            Self::Word(word) => to.copy_from_slice(&word[..to.len()]),
            Self::Zeros(_) | Self::Calc(..) | Self::Lost | Self::Ready => {}
        }
    }
}

impl Head {
    /// Whether it belongs to the reply to a request.
    pub(crate) fn is_reply(&self) -> bool {
        self.header.op.is_answer()
    }

    /// The head of the reply to a request with this head.
    pub(crate) fn reply(&self, op: Op) -> Self {
        let header = Header { op, dest: self.src, solicited: false, ack_request: false, ..self.header };
        let ip = IpUdp { source: self.ip.dest, dest: self.ip.source, ..self.ip };
        Self { header, ip, src: self.header.dest, ..*self }
    }
}

/// Acknowledgement, positive or negative, of a packet within the host. Messages are not counted there.
pub(crate) fn acknowledgement(syndrome: Syndrome) -> Op {
    Op::Acknowledge(aeth(syndrome))
}

/// Response to a READ packet within the host.
pub(crate) fn read_response() -> Op {
    Op::ReadResponse { part: Part::Only, aeth: Some(aeth(Syndrome::ACK)) }
}

/// Response to an atomic within the host.
pub(crate) fn atomic_response(original: u64) -> Op {
    Op::AtomicAcknowledge { aeth: aeth(Syndrome::ACK), original }
}

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: 0 }
}
