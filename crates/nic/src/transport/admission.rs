//! Admission of received packets: whether a queue pair takes them, and whether they come from its peer.

use super::Qp;
use crate::path::Network;
use crate::path::{Opened, Origin, Route, Routes, is_from};
use crate::platform::Platform;
use crate::wire::{Op, Service};
use rdmesh_verbs::{Gid, QpState, QpType};

impl<P: Platform> Qp<P> {
    /// Whether a queue pair of this kind, in this state and partition, takes it.
    pub(crate) fn takes(&self, opened: &Opened<'_>) -> bool {
        let kind = match opened.header.service {
            Service::Rc => self.core().made().qp_type == QpType::Rc || self.is_back_pressure(opened),
            Service::Uc => self.core().made().qp_type == QpType::Uc,
            Service::Ud => self.core().made().qp_type == QpType::Ud,
            Service::Cnp => self.core().made().qp_type != QpType::Ud,
        };
        // A reliable connection in error still repeats its NAK.
        let says_why = self.core().made().qp_type == QpType::Rc
            && self.connection().is_some()
            && self.core().state() == QpState::Error;
        let state = self.core().state().can_receive() || says_why;
        kind && state && opened.is_in_partition()
    }

    /// Whether it is an acknowledgement that gives back-pressure to the sender of an unreliable connection through the tunnel.
    fn is_back_pressure(&self, opened: &Opened<'_>) -> bool {
        self.core().made().qp_type == QpType::Uc
            && opened.vni.is_some()
            && matches!(opened.header.op, Op::Acknowledge(_))
    }

    /// Whether it came from the peer of `qp`.
    pub(crate) fn is_from_peer(&self, opened: &Opened<'_>, network: &Network, routes: &Routes) -> bool {
        if opened.vni.is_some_and(|vni| vni != network.vni) {
            return false;
        }
        if opened.header.service == Service::Ud {
            let known = match (routes.find(network.vni, opened.ip.source), opened.origin) {
                (Route::Host(host), Origin::Host(from)) => host == from,
                (Route::External, Origin::External { id, .. }) => network.external.is_some_and(|plain| plain.id == id),
                _ => false,
            };
            return known && is_own(&network.gids, opened.ip.dest);
        }
        self.connection().is_some_and(|connection| is_from(&connection.envelope, opened))
    }
}

/// Whether a context with these addresses takes datagrams for `gid`.
fn is_own(gids: &[Gid], gid: Gid) -> bool {
    !gid.is_zero() && gids.contains(&gid)
}
