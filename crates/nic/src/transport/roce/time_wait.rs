//! Final ACKs of closed queue pairs (TIME-WAIT).
//!
//! A program that has received everything may end at once. If the acknowledgement of the last message is then lost, its peer
//! repeats a message that arrived, and fails in the end. On the lossless network that IBA is made for that does not happen.
//! Here it does, so the number of a closed queue pair goes on acknowledging what was executed, as TCP does in TIME-WAIT (RFC
//! 9293, 3.10.7.8): a limited number of times, until the number is used again or many others have been closed, and as long as
//! the sockets are open to which the peer sends. Requests that were not executed, and requests that have a response of their
//! own (READ, atomics), are not answered.

use crate::capture::Captures;
use crate::path::Envelope;
use crate::path::Transmits;
use crate::path::{Opened, is_from};
use crate::platform::Platform;
use crate::qp::RESTING_QPS;
use crate::timer::Time;
use crate::transport::Qp;
use crate::wire::{Aeth, Header, Op, Service, Syndrome};
use alloc::collections::{BTreeMap, VecDeque};
use rdmesh_verbs::{Psn, QpType, Qpn};

/// The latest connections that have ended, by the number of their queue pair.
pub(crate) struct TimeWait {
    connections: BTreeMap<Qpn, FinalAck>,
    /// The same from the oldest.
    order: VecDeque<Qpn>,
    /// Final ACKs that are to be repeated.
    due: VecDeque<(Qpn, FinalAck)>,
}

/// Final ACK of a closed connection.
#[derive(Clone, Copy, Debug)]
struct FinalAck {
    envelope: Envelope,
    dest: Qpn,
    /// The last SEND or WRITE packet that was executed.
    executed: Psn,
    msn: u32,
    /// Repeats that are left: a peer that misses an answer of another kind would ask for ever.
    left: u8,
}

impl TimeWait {
    pub(crate) fn new() -> Self {
        Self { connections: BTreeMap::new(), order: VecDeque::new(), due: VecDeque::new() }
    }

    /// A queue pair goes. An acknowledgement that is due is sent now.
    pub(crate) fn add<P: Platform>(&mut self, qp: &Qp<P>) {
        let Some(ack) = FinalAck::of(qp) else { return };
        let qpn = qp.core().made().qpn;
        // As many as the numbers that rest before one is used again.
        if self.order.len() == RESTING_QPS
            && let Some(oldest) = self.order.pop_front()
        {
            self.connections.remove(&oldest);
        }
        self.connections.insert(qpn, ack);
        self.order.push_back(qpn);
        if qp.connection().is_some_and(|connection| connection.responder.is_ack_due()) {
            self.repeat(qpn);
        }
    }

    /// Another queue pair takes the number.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        if self.connections.remove(&qpn).is_some() {
            self.order.retain(|at| *at != qpn);
        }
    }

    /// Takes a packet for a closed queue pair: returns whether it is a part of a message that was executed, if the packet is
    /// `intact`.
    pub(crate) fn handle(&mut self, opened: &Opened<'_>, intact: impl FnOnce() -> bool) -> bool {
        let header = &opened.header;
        let Some(ack) = self.connections.get(&header.dest).copied() else { return false };
        let is_known = matches!(header.op, Op::Send { .. } | Op::Write { .. })
            && header.service == Service::Rc
            && header.psn.since(ack.executed) <= 0
            && opened.is_in_partition()
            && opened.vni.is_none_or(|vni| vni == ack.envelope.vni)
            && is_from(&ack.envelope, opened)
            && intact();
        if is_known {
            self.repeat(header.dest);
        }
        is_known
    }

    /// Whether final ACKs are to be sent.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Appends final ACKs.
    pub(crate) fn transmit(&mut self, now: Time, to: &mut Transmits, captures: &mut Captures) {
        while to.has_room()
            && let Some((_, ack)) = self.due.pop_front()
        {
            let mark = to.mark();
            let Ok(()) = ack.envelope.emit(to, &ack.header(), 0, |_| Ok::<_, core::convert::Infallible>(()));
            captures.sent(now, ack.envelope.vni, ack.envelope.ip.source_port, to, mark);
        }
    }

    /// The peer repeats packets without an answer, so the queue need not hold more than are sent at once.
    fn repeat(&mut self, qpn: Qpn) {
        let is_due = self.due.iter().any(|(due, _)| *due == qpn);
        if is_due || self.due.len() == MAX_DUE {
            return;
        }
        if let Some(ack) = self.connections.get_mut(&qpn).filter(|ack| ack.left > 0) {
            ack.left -= 1;
            self.due.push_back((qpn, *ack));
        }
    }
}

impl FinalAck {
    fn of<P: Platform>(qp: &Qp<P>) -> Option<Self> {
        let connection = qp.connection().filter(|_| qp.core().made().qp_type == QpType::Rc)?;
        let (executed, msn, left) = connection.responder.final_ack()?;
        Some(Self { envelope: connection.envelope, dest: qp.core().attr.dest_qpn, executed, msn, left })
    }

    fn header(&self) -> Header {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        Header::new(Service::Rc, Op::Acknowledge(aeth), self.dest, self.executed)
    }
}

/// Maximum number of repeats of a connection's final ACK.
pub(super) const MAX_FINAL_ACKS: u8 = 32;
const MAX_DUE: usize = 64;
