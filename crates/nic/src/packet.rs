//! Packets between two queue pairs on one host.
//!
//! The shape follows the packets of RoCE (IBA 9.2), with two differences that one host allows: the payload is a
//! reference to registered memory, and nothing is lost or reordered, so every request packet is answered by exactly one
//! reply. A packet that a wire would lose silently is answered by [`Reply::Dropped`], for which the requester reports the
//! time-out that a wire would have caused.

use crate::memory::Payload;
use crate::wire::NakCode;
use rdmesh_verbs::{Gid, Key, Psn, Qkey, QpType, Qpn, Vni};

/// A packet between two queue pairs of this host.
pub struct Packet<M> {
    pub(crate) head: Head,
    pub(crate) body: Body<M>,
}

#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) vni: Vni,
    /// The type of the requester's queue pair.
    pub(crate) qp_type: QpType,
    pub(crate) src: Qpn,
    pub(crate) dst: Qpn,
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    /// Requests sent before a retry, and replies to them, carry an older epoch.
    pub(crate) epoch: u32,
    pub(crate) psn: Psn,
    /// Bytes that the request moves, in the reply too.
    pub(crate) len: u32,
    /// For a datagram to a group: the engine that it is for.
    pub(crate) shard: u32,
}

pub(crate) enum Body<M> {
    Request(Request<Payload<M>>),
    Reply(Reply<M>),
}

pub(crate) enum Reply<M> {
    Ack,
    Data(Payload<M>),
    Atomic {
        old: u64,
    },
    /// The receiver was not ready; the code is its RNR timer (IBA 9.7.5.2.8).
    Rnr {
        timer: u8,
    },
    Nak(Nak),
    /// Memory of one of the two cannot be reached at present: nothing was executed.
    Slow,
    /// Lost, as on a wire: no such QP, wrong state, wrong sender.
    Dropped,
    /// Behind a request that was not executed.
    OutOfSequence,
}

impl<M> Packet<M> {
    /// The engine, out of `shards`, that the packet is for.
    pub fn shard(&self, shards: u32) -> u32 {
        if self.head.dst == Qpn::MULTICAST { self.head.shard } else { shard_of(self.head.dst, shards) }
    }
}

impl Head {
    /// Where a request with this head comes from.
    pub(crate) fn sender(&self) -> Sender {
        Sender { vni: self.vni, qpn: self.src, sgid: self.sgid, dgid: self.dgid }
    }

    /// The head of the reply to a request with this head.
    pub(crate) fn reply(&self) -> Self {
        Self { src: self.dst, dst: self.src, sgid: self.dgid, dgid: self.sgid, ..*self }
    }
}

/// The engine that owns a QP: numbers are dealt out so that this needs no table.
pub(crate) fn shard_of(qpn: Qpn, shards: u32) -> u32 {
    qpn.value() % shards
}

/// A request packet with data of kind `S`.
pub(crate) struct Request<S> {
    pub(crate) op: RequestOp,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) solicited: bool,
    pub(crate) payload: S,
}

#[derive(Clone, Copy)]
pub(crate) enum RequestOp {
    Send {
        imm: Option<u32>,
        invalidate: Option<Key>,
    },
    /// `remaining` is what is left of the message from this packet on.
    Write {
        addr: u64,
        rkey: Key,
        remaining: u64,
        imm: Option<u32>,
    },
    Read {
        addr: u64,
        rkey: Key,
        remaining: u64,
    },
    CompareSwap {
        addr: u64,
        rkey: Key,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        addr: u64,
        rkey: Key,
        add: u64,
    },
    AtomicWrite {
        addr: u64,
        rkey: Key,
        value: [u8; 8],
    },
    Flush {
        addr: u64,
        rkey: Key,
        length: u32,
        kind: u8,
        range: bool,
    },
    Datagram {
        qkey: Qkey,
        imm: Option<u32>,
        traffic_class: u8,
        hop_limit: u8,
        flow_label: u32,
    },
}

/// Reasons of a NAK (IBA table 58).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nak {
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
}

/// Origin of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) vni: Vni,
    pub(crate) qpn: Qpn,
    pub(crate) sgid: Gid,
    /// The address to which it was sent.
    pub(crate) dgid: Gid,
}

impl From<Nak> for NakCode {
    fn from(nak: Nak) -> Self {
        match nak {
            Nak::InvalidRequest => Self::InvalidRequest,
            Nak::RemoteAccess => Self::RemoteAccess,
            Nak::RemoteOperation => Self::RemoteOperation,
        }
    }
}
