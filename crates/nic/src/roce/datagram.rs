//! Unreliable datagrams (IBA 9.8.3).

use super::emit::{Peer, flow};
use crate::engine::active::Active;
use crate::engine::packet::{Head, Request, RequestOp};
use crate::memory::gather_bytes;
use crate::net::{Route, Transmits};
use crate::platform::{Memory, Platform};
use crate::wire::{Header, IpUdp, Op, Service};
use rdmesh_verbs::{AddressVector, Gid, Qpn, SendFlags, SendOp, Vni, WcStatus};

impl<P: Platform> Active<'_, P> {
    /// The peer on another host to which packets with this address vector go; none where it is on this one, or out of reach.
    pub(crate) fn remote_peer(&self, av: &AddressVector, dest: Qpn) -> Option<Peer> {
        let network = &self.cx.network;
        let source = network.gids.get(usize::from(av.sgid_index)).copied().unwrap_or_default();
        match self.out.routes.find(network.vni, av.dgid) {
            Route::Local => None,
            Route::Host(host) => Some(Peer::on_host(host, network.vni, source, av, flow(self.qp.qpn, dest))),
            Route::Outside if av.dgid.is_multicast() => None,
            Route::Outside => network.plain.map(|plain| Peer::outside(plain, network.vni, source, av)),
        }
    }

    /// Whether the datagram at the cursor goes to another host.
    pub(crate) fn is_remote_datagram(&self, cursor: usize) -> bool {
        let SendOp::Datagram { ah, qpn, .. } = self.qp.send.window[cursor].wr.op else { return false };
        self.address(self.qp.pd, ah).is_some_and(|ah| self.remote_peer(&ah.av, qpn).is_some())
    }

    /// Appends datagrams for one turn, as far as they go to other hosts. Returns whether there are more at once.
    pub(super) fn send_datagrams(&mut self, to: &mut Transmits) -> bool {
        for _ in 0..TURN {
            if !to.has_room() {
                return self.qp.can_send();
            }
            if !self.qp.is_sending()
                || !self.qp.can_send()
                || (self.qp.send.cursor == self.qp.send.window.len() && !self.fetch())
            {
                return false;
            }
            let cursor = self.qp.send.cursor;
            let wrong = self.check(&self.qp.send.window[cursor]).is_err();
            if wrong || !self.is_remote_datagram(cursor) {
                // The local path goes on from here, and deals with errors.
                self.out.make_ready(self.index, self.qp);
                return false;
            }
            if let Err(status) = self.send_datagram(to) {
                if cursor == 0 {
                    self.fail_oldest(status);
                }
                return false;
            }
            self.qp.send.cursor += 1;
            self.complete_oldest();
        }
        true
    }

    fn send_datagram(&mut self, to: &mut Transmits) -> Result<(), WcStatus> {
        let entry = &self.qp.send.window[self.qp.send.cursor];
        let SendOp::Datagram { ah, qpn, qkey, imm } = entry.wr.op else { return Err(WcStatus::LocalQpOperationError) };
        let address = self.address(self.qp.pd, ah).ok_or(WcStatus::LocalQpOperationError)?;
        let peer = self.remote_peer(&address.av, qpn).ok_or(WcStatus::LocalQpOperationError)?;
        let qkey = if qkey.is_controlled() { self.qp.attr.qkey } else { qkey };
        let op = Op::Datagram { qkey, source: self.qp.qpn, imm };
        let solicited = entry.wr.flags.contains(SendFlags::SOLICITED);
        let header = Header { solicited, ..super::header(Service::Ud, op, qpn, self.qp.send.next_psn) };
        let protection = WcStatus::LocalProtectionError;
        peer.emit(to, &header, entry.total as usize, |bytes| match &entry.inline {
            Some((memory, offset)) => memory.read(*offset, bytes).map_err(|_| protection),
            None => gather_bytes(&self.cx.keys, self.qp.pd, &entry.wr.sges, 0, bytes).map_err(|_| protection),
        })?;
        self.out.moved += entry.total;
        self.qp.send.next_psn = self.qp.send.next_psn.add(1);
        let cursor = self.qp.send.cursor;
        let entry = &mut self.qp.send.window[cursor];
        (entry.started, entry.complete, entry.outstanding) = (true, true, 0);
        Ok(())
    }

    /// Takes a datagram from another host.
    pub(super) fn handle_wire_datagram(&mut self, header: &Header, ip: &IpUdp, vni: Vni, payload: &[u8]) {
        let Op::Datagram { qkey, source, imm } = header.op else { return };
        let head = Head {
            vni,
            src: source,
            dst: header.dest,
            sgid: ip.source,
            dgid: ip.dest,
            epoch: 0,
            psn: header.psn,
            len: payload.len() as u32,
            shard: 0,
        };
        let op = RequestOp::Datagram {
            qkey,
            imm,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            flow_label: ip.flow_label,
        };
        self.receive_datagram(&head, &Request { op, first: true, last: true, solicited: header.solicited, payload });
    }
}

/// Whether a context with these addresses takes datagrams for `gid`.
pub(super) fn is_own(gids: &[Gid], gid: Gid) -> bool {
    !gid.is_zero() && gids.contains(&gid)
}

/// Datagrams that a queue pair sends before it lets the next one.
const TURN: usize = 64;
