//! Unreliable datagrams (IBA 9.8.3).

use super::Local;
use crate::memory::{CopyError, gather_bytes};
use crate::path::{Envelope, flow};
use crate::path::{Route, Transmits};
use crate::platform::{Memory, Platform};
use crate::schedule::{Order, TURN_STEPS};
use crate::wire::{Header, Op, Service};
use core::net::IpAddr;
use rdmesh_verbs::{AddressVector, Qpn, SendFlags, SendOp, WcStatus};

impl<P: Platform> Local<'_, P> {
    fn remote_peer(&self, av: &AddressVector, dest: Qpn) -> Option<Envelope> {
        Envelope::find(&self.cx.network, &self.out.routes, av, flow(self.qp.made().qpn, dest))
    }

    /// Whether the datagram at the cursor goes to another host, or to a group that may have members there.
    pub(crate) fn is_remote_datagram(&self, cursor: usize) -> bool {
        let SendOp::Datagram { ah, qpn, .. } = self.qp.send.window[cursor].wr.op else { return false };
        let Some(av) = self.cx.address(self.qp.made().pd, ah) else { return false };
        if av.dgid.is_multicast() {
            return !self.out.routes.hosts(self.cx.network.vni).is_empty();
        }
        self.remote_peer(av, qpn).is_some()
    }

    /// Appends datagrams for one turn, as far as they go to other hosts. Returns whether there are more at once.
    pub(crate) fn send_datagrams(&mut self, to: &mut Transmits) -> bool {
        to.begin_turn();
        for _ in 0..TURN_STEPS {
            if !to.has_turn() {
                return self.qp.can_send();
            }
            if !self.qp.is_sending()
                || !self.qp.can_send()
                || !self.out.admit(Order::Wire, self.index)
                || (self.qp.send.cursor == self.qp.send.window.len() && !self.exec().fetch())
            {
                return false;
            }
            let cursor = self.qp.send.cursor;
            let wrong = self.qp.check(cursor, self.cx.network.mtu.bytes()).is_err();
            if wrong || !self.is_remote_datagram(cursor) {
                // The local path goes on from here, and deals with errors.
                self.out.make_ready(self.index, self.qp);
                return false;
            }
            match self.send_datagram(to) {
                Ok(Sent::Whole) => self.exec().complete_oldest(),
                // Its cost is known when all members on this host have got it.
                Ok(Sent::ToMembersHere) => {
                    self.exec().complete_oldest();
                    return self.qp.is_sending() && self.qp.can_send();
                }
                Ok(Sent::NoRoom) => return true,
                // The queue goes on when the earlier ones are answered.
                Ok(Sent::TooMany) => return false,
                Err(Unsent::Slow) if self.wait_for_memory() => return false,
                Err(error) => {
                    let status = error.status();
                    if cursor == 0 {
                        self.exec().fail_oldest(status);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn send_datagram(&mut self, to: &mut Transmits) -> Result<Sent, Unsent> {
        let SendOp::Datagram { ah, qpn, .. } = self.qp.send.window[self.qp.send.cursor].wr.op else {
            return Err(WcStatus::LocalQpOperationError.into());
        };
        let av = *self.cx.address(self.qp.made().pd, ah).ok_or(WcStatus::LocalQpOperationError)?;
        if av.dgid.is_multicast() {
            return self.send_to_group(to, &av);
        }
        let peer = self.remote_peer(&av, qpn).ok_or(WcStatus::LocalQpOperationError)?;
        let network = &self.cx.network;
        if !self.out.may_talk(network, network.source(&av), av.dgid) {
            // As on a wire that filters: the sender of a datagram does not learn its fate, and has other receivers.
            self.out.access.dropped += 1;
            self.datagram_sent();
            return Ok(Sent::Whole);
        }
        self.emit_datagram(to, &peer, qpn)?;
        self.datagram_sent();
        Ok(Sent::Whole)
    }

    /// Sends the datagram at the cursor to each other host of the network, and then to the members on this one. It may take
    /// several turns.
    fn send_to_group(&mut self, to: &mut Transmits, av: &AddressVector) -> Result<Sent, Unsent> {
        let network = &self.cx.network;
        let (vni, source) = (network.vni, network.source(av));
        // Where this host's own addresses lead into the tunnel, it is one of the hosts.
        let is_local_too = !matches!(self.out.routes.find(vni, source), Route::Host(_));
        if is_local_too && self.state.is_full() {
            return Ok(Sent::TooMany);
        }
        let cursor = self.qp.send.cursor;
        while let Some(host) = next_host(self.out.routes.hosts(vni), self.state.reached) {
            if !to.has_turn() {
                return Ok(Sent::NoRoom);
            }
            let peer = Envelope::on_host(host, vni, source, av, flow(self.qp.made().qpn, Qpn::MULTICAST));
            self.emit_datagram(to, &peer, Qpn::MULTICAST)?;
            self.state.reached = Some(host);
        }
        if is_local_too {
            let built = self.build(cursor)?;
            self.transmit(built);
            return Ok(Sent::ToMembersHere);
        }
        self.datagram_sent();
        Ok(Sent::Whole)
    }

    /// Appends a packet with the datagram at the cursor.
    fn emit_datagram(&mut self, to: &mut Transmits, peer: &Envelope, dest: Qpn) -> Result<(), Unsent> {
        let entry = &self.qp.send.window[self.qp.send.cursor];
        let SendOp::Datagram { qkey, imm, .. } = entry.wr.op else {
            return Err(WcStatus::LocalQpOperationError.into());
        };
        let qkey = if qkey.is_controlled() { self.qp.attr.qkey } else { qkey };
        let op = Op::Datagram { qkey, source: self.qp.made().qpn, imm };
        let solicited = entry.wr.flags.contains(SendFlags::SOLICITED);
        let header = Header { solicited, ..Header::new(Service::Ud, op, dest, self.qp.send.next_psn) };
        peer.emit(to, &header, entry.total as usize, |bytes| match &entry.inline {
            Some((memory, offset)) => memory.read(*offset, bytes).map_err(CopyError::from),
            None => gather_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, 0, bytes),
        })?;
        self.out.spend(entry.total);
        self.out.meter(self.index, entry.total, true);
        self.qp.send.slow.end();
        Ok(())
    }

    /// The datagram at the cursor is sent; it has no acknowledgement.
    fn datagram_sent(&mut self) {
        self.qp.send.next_psn = self.qp.send.next_psn.add(1);
        let cursor = self.qp.send.cursor;
        let entry = &mut self.qp.send.window[cursor];
        (entry.started, entry.complete, entry.outstanding) = (true, true, 0);
        self.qp.send.cursor += 1;
        self.state.reached = None;
    }
}

/// Reason why a datagram is not sent.
enum Unsent {
    /// Its memory cannot be reached at present.
    Slow,
    Failed(WcStatus),
}

impl Unsent {
    /// Completion status when it cannot be sent at all.
    fn status(self) -> WcStatus {
        match self {
            Self::Slow => WcStatus::LocalProtectionError,
            Self::Failed(status) => status,
        }
    }
}

impl From<WcStatus> for Unsent {
    fn from(status: WcStatus) -> Self {
        Self::Failed(status)
    }
}

impl From<CopyError> for Unsent {
    fn from(error: CopyError) -> Self {
        if error.is_slow() { Self::Slow } else { Self::Failed(WcStatus::LocalProtectionError) }
    }
}

/// Result of an attempt to send a datagram.
enum Sent {
    /// It is sent.
    Whole,
    /// It is sent to a group, also to its members on this host.
    ToMembersHere,
    /// There is no room for more packets.
    NoRoom,
    /// Too many wait for this host.
    TooMany,
}

/// The first host behind `reached`.
fn next_host(hosts: &[IpAddr], reached: Option<IpAddr>) -> Option<IpAddr> {
    let at = reached.map_or(0, |reached| hosts.partition_point(|host| *host <= reached));
    hosts.get(at).copied()
}
