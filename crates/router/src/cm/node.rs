//! Endpoint state of the connection manager: ports, multicast groups and limits.

use super::id::Device;
use super::ports::Ports;
use crate::budget::Charge;
use rdmesh_verbs::{Gid, Mtu, Vni};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Multicast memberships of one endpoint.
pub(super) const MAX_GROUPS: u32 = 65_536;
const EVENTS_PER_ID: usize = 4;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    /// The tenant network.
    pub(crate) vni: Vni,
    /// The GID table.
    pub(crate) gids: Vec<Gid>,
    /// The device's GUID.
    pub(crate) guid: [u8; 8],
    /// Identifiers that its programs may have together.
    pub(crate) max_ids: u32,
    /// The charge for their memory.
    pub(crate) memory: Option<Arc<Charge>>,
}

/// Bytes of the router's memory that an identifier takes, with its connection and the events that wait for it.
pub(super) const ID_MEMORY: u64 = 4096;

/// An endpoint.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) mtu: Mtu,
    pub(super) ports: Ports,
    pub(super) ids: u32,
    pub(super) groups: u32,
}

/// A multicast group that an identifier has joined.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) owner: u32,
    /// Events of it that the program has read.
    pub(super) reported: u32,
}

impl Node {
    pub(super) fn new(spec: NodeSpec, seed: u64) -> Self {
        Self { spec, mtu: Mtu::B1024, ports: Ports::new(seed), ids: 0, groups: 0 }
    }

    /// Refuses commands that cause more events as long as too many wait. The limit admits one event of each kind that a
    /// connection has, and one of each group, for every identifier.
    pub(super) fn has_room_for_events(&self, waiting: usize) -> Result<(), Errno> {
        let limit = (EVENTS_PER_ID * self.spec.max_ids as usize).saturating_add(MAX_GROUPS as usize);
        if waiting < limit { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// The device behind an own address.
    pub(super) fn device_at(&self, ip: IpAddr) -> Option<Device> {
        let local = Gid::from_ip(ip);
        let index = self.spec.gids.iter().position(|gid| !gid.is_zero() && *gid == local)?;
        Some(Device { sgid_index: index as u8, local, remote: Gid::default() })
    }

    /// The own address from which `dest` is reached.
    pub(super) fn source_for(&self, dest: IpAddr) -> Option<IpAddr> {
        let is_link_local = super::address::is_link_local;
        let mut own = self.spec.gids.iter().filter(|gid| !gid.is_zero()).map(|gid| gid.ip());
        own.find(|ip| ip.is_ipv4() == dest.is_ipv4() && is_link_local(*ip) == is_link_local(dest))
    }

    /// The endpoint's own address, in place of a peer's loopback or unspecified address.
    pub(super) fn itself(&self, ip: IpAddr) -> Option<IpAddr> {
        let anywhere: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.source_for(anywhere)
    }
}
