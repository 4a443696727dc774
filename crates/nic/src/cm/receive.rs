//! Received messages of the connection manager.

use super::{Cm, Kind, Mad, mad};
use crate::timer::Time;

impl Cm {
    /// Takes a datagram that arrived for QP 1. Its path is as this end sees it: `local` is where it arrived.
    pub fn handle_mad(&mut self, now: Time, mad: &Mad) {
        let Some(kind) = mad::kind(&mad.bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.received[kind.index()] += 1;
        match kind {
            Kind::Req => self.on_req(now, mad),
            Kind::Mra => self.on_mra(now, mad),
            Kind::Rej => self.on_rej(now, mad),
            Kind::Rep => self.on_rep(now, mad),
            Kind::Rtu => self.on_rtu(mad),
            Kind::Dreq => self.on_dreq(now, mad),
            Kind::Drep => self.on_drep(now, mad),
            Kind::SidrReq => self.on_sidr_req(mad),
            Kind::SidrRep => self.on_sidr_rep(mad),
            Kind::Lap => self.on_lap(mad),
            // No LAP is ever sent.
            Kind::Apr => self.counters.unexpected += 1,
        }
    }
}
