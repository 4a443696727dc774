//! Unreliable datagrams at the responder.

use super::grh;
use super::{Exec, Request};
use crate::memory::{CopyError, Source, scatter_bytes};
use crate::platform::Platform;
use crate::wire::{IpUdp, Op};
use rdmesh_verbs::{Completion, Vni, WcFlags, WcOpcode, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// A datagram is delivered or dropped, never answered (IBA 9.8.3).
    pub(crate) fn receive_datagram<S>(&mut self, vni: Vni, ip: &IpUdp, request: &Request<'_, S>)
    where
        S: Source<P::Memory> + ?Sized,
    {
        let Op::Datagram { qkey, source, imm } = request.op else { return };
        let expected = vni == self.cx.network.vni
            && self.qp.state().can_receive()
            && qkey == self.qp.attr.qkey
            && (ip.dest.is_multicast() || self.cx.network.gids.contains(&ip.dest));
        if !expected {
            self.qp.counters.errors += 1;
            return;
        }
        // All addresses of an endpoint are subject to the same rules: that of a group stands for none of them.
        let network = &self.cx.network;
        let own = if ip.dest.is_multicast() { network.own() } else { ip.dest };
        if !self.out.may_talk(network, own, ip.source) {
            self.out.access.dropped += 1;
            return;
        }
        if self.take_recv().is_err() && !self.qp.recv.busy {
            return;
        }
        self.qp.recv.busy = false;
        let sges = &self.qp.recv.current.sges;
        let header = grh::grh(ip, request.payload.len(), imm.is_some());
        let copied = scatter_bytes(&self.cx.keys, self.qp.made().pd, sges, 0, &header)
            .and_then(|()| request.payload.scatter(&self.cx.keys, self.qp.made().pd, sges, header.len() as u64));
        let status = match copied {
            // Datagrams may be lost, and nothing tells the sender to wait: the receive request is for the next one.
            Err(error) if error.is_slow() => {
                self.qp.counters.errors += 1;
                self.qp.recv.busy = true;
                return;
            }
            Ok(()) => WcStatus::Success,
            Err(CopyError::Length) => WcStatus::LocalLengthError,
            Err(CopyError::Protection | CopyError::Slow) => WcStatus::LocalProtectionError,
            Err(CopyError::Source | CopyError::SourceSlow) => WcStatus::LocalQpOperationError,
        };
        let mut flags = WcFlags::GRH;
        flags.set(WcFlags::WITH_IMM, imm.is_some());
        let byte_len = header.len() as u32 + request.payload.len();
        self.count_message(u64::from(request.payload.len()));
        let completion = Completion {
            byte_len,
            imm: imm.unwrap_or(0),
            flags,
            src_qp: source,
            sl: Completion::sl_of(ip.source),
            ..self.received(self.qp.recv.current.wr_id, status, WcOpcode::Recv)
        };
        let _ =
            self.out.complete(self.cx, self.qp.made().context, self.qp.made().recv_cq, &completion, request.solicited);
    }
}
