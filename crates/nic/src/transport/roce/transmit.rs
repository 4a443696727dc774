//! Transmission and reception of one queue pair's packets.

use super::{Connection, Requester, Responder};
use crate::exec::Exec;
use crate::path::{Opened, Transmits};
use crate::platform::Platform;
use crate::qp::Core;
use crate::wire::{Op, Service};
use rdmesh_verbs::{QpState, QpType};

impl Connection {
    /// Appends packets for one turn. Returns whether there are more at once.
    pub(crate) fn poll_transmit<P: Platform>(&mut self, mut exec: Exec<'_, P>, to: &mut Transmits) -> bool {
        if !answers(exec.qp) {
            return false;
        }
        to.begin_turn();
        let has_answers = Responder::new(exec.reborrow(), self).send_answers(to);
        // A peer that asks without end leaves half of the packets to the queue pair's own requests.
        to.begin_turn();
        has_answers | Requester::new(exec, self).send_requests(to)
    }

    /// Takes a packet that is known to come from the peer.
    pub(crate) fn handle_packet<P: Platform>(&mut self, mut exec: Exec<'_, P>, opened: &Opened<'_>) {
        let header = &opened.header;
        if opened.met_congestion() && header.service != Service::Cnp {
            Responder::new(exec.reborrow(), self).on_congestion_met();
        }
        match header.op {
            Op::Notification => {
                exec.qp.counters.cnps_received += 1;
                self.requester.on_notification(exec.out.now, exec.qp.attr.path_mtu.bytes());
            }
            op if op.is_answer() => {
                Requester::new(exec, self).handle_answer(header, opened.payload);
            }
            _ => Responder::new(exec, self).handle_request(header, opened.payload),
        }
    }

    /// A deadline has passed that may be this queue pair's.
    pub(crate) fn handle_timeout<P: Platform>(&mut self, mut exec: Exec<'_, P>) {
        Responder::new(exec.reborrow(), self).handle_timeout();
        Requester::new(exec, self).handle_timeout();
    }
}

/// Whether the queue pair still answers: one in error only repeats its NAK.
fn answers<P: Platform>(qp: &Core<P>) -> bool {
    let repeats = qp.made().qp_type == QpType::Rc && qp.state() == QpState::Error;
    repeats || qp.state().can_receive()
}
