//! Transmission and reception of one queue pair's packets.

use super::admit::Opened;
use crate::congestion::Dcqcn;
use crate::engine::active::Active;
use crate::net::Transmits;
use crate::platform::Platform;
use crate::wire::{Op, Service};
use rdmesh_verbs::QpType;

impl<P: Platform> Active<'_, P> {
    /// Appends packets for one turn. Returns whether there are more at once.
    pub(crate) fn take_turn(&mut self, to: &mut Transmits) -> bool {
        to.begin_turn();
        if self.qp.qp_type == QpType::Ud {
            return self.send_datagrams(to);
        }
        if !self.answers() {
            return false;
        }
        let has_answers = self.send_answers(to);
        // A peer that asks without end leaves half of the packets to the queue pair's own requests.
        to.begin_turn();
        has_answers | self.send_requests(to)
    }

    /// Takes a packet that is known to come from the peer.
    pub(crate) fn handle_wire_packet(&mut self, opened: &Opened<'_>) {
        let header = &opened.header;
        if header.service == Service::Ud {
            return self.handle_wire_datagram(header, &opened.ip, self.cx.network.vni, opened.payload);
        }
        if opened.met_congestion() && header.service != Service::Cnp {
            self.on_congestion_met();
        }
        match header.op {
            Op::Notification => self.on_notification(),
            Op::Acknowledge(_) | Op::AtomicAcknowledge { .. } | Op::ReadResponse { .. } => {
                self.handle_answer(header, opened.payload);
            }
            _ => self.handle_wire_request(header, opened.payload),
        }
    }

    /// The peer, or the network before it, is congested.
    fn on_notification(&mut self) {
        self.qp.counters.cnps_received += 1;
        let (now, mtu) = (self.out.now, self.qp.attr.path_mtu.bytes());
        let Some(connection) = &mut self.qp.connection else { return };
        let requester = &mut connection.requester;
        match &mut requester.rate {
            Some(rate) => rate.on_notification(now),
            None => {
                // As fast as a full window in each round trip.
                let window = f64::from(requester.window.packets()) * f64::from(mtu);
                let round = requester.rtt.smoothed().map_or(UNMEASURED, |rtt| rtt.as_secs_f64().max(SHORTEST));
                requester.rate = Some(Dcqcn::new(now, window / round));
            }
        }
    }
}

/// Seconds of a round trip that was never measured.
const UNMEASURED: f64 = 100e-6;
/// Shorter than any between two hosts.
const SHORTEST: f64 = 10e-6;
