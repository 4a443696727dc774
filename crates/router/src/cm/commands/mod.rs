//! Commands of `/dev/infiniband/rdma_cm`, by subject. Each refuses the same requests, with the same errno, as Linux's
//! `rdma_ucm`.

mod events;
mod multicast;
mod names;
mod options;
mod query;
pub(super) use events::takes_events;
pub(super) use names::listen;
pub(super) use query::{HOP_LIMIT, PKEY, PathRecord, RATE};
mod resolve;

use super::address;
use super::call::Call;
use super::registry::Registry;
use rdmesh_uverbs::abi::{Connect, DestroyId, Disconnect, Listen, MigrateId, ResolveAddr, ResolveIp, cm_command};
use rdmesh_verbs::Qpn;
use rustix::io::Errno;
use std::net::IpAddr;
use zerocopy::FromBytes;

/// Of a command to resolve an address, without its header: the peer's, where it is one of IP.
pub(crate) fn peer_of_resolution(command: u32, body: &[u8]) -> Option<IpAddr> {
    let decoded = match command {
        cm_command::RESOLVE_IP => address::decode(&ResolveIp::read_from_prefix(body).ok()?.0.dst_addr),
        _ => address::decode(&ResolveAddr::read_from_prefix(body).ok()?.0.dst_addr),
    };
    match decoded {
        Ok(Some(address::Address::Ip(peer))) => Some(peer.ip()),
        _ => None,
    }
}

/// Executes a command that no connection is needed for; returns its response.
pub(super) fn execute(registry: &mut Registry, command: u32, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    match command {
        cm_command::CREATE_ID => names::create_id(registry, call),
        cm_command::BIND_IP => names::bind_ip(registry, call),
        cm_command::BIND => names::bind_any(registry, call),
        cm_command::RESOLVE_IP => resolve::resolve_ip(registry, call),
        cm_command::RESOLVE_ADDR => resolve::resolve_any(registry, call),
        cm_command::RESOLVE_ROUTE => resolve::resolve_route(registry, call),
        cm_command::QUERY_ROUTE => query::query_route(registry, call),
        cm_command::QUERY => query::query(registry, call),
        cm_command::GET_EVENT => events::get_event(registry, call),
        cm_command::MIGRATE_ID => names::migrate(registry, call),
        cm_command::SET_OPTION => options::set_option(registry, call),
        cm_command::JOIN_IP_MCAST => multicast::join_ip(registry, call),
        cm_command::JOIN_MCAST => multicast::join_any(registry, call),
        cm_command::LEAVE_MCAST => multicast::leave(registry, call),
        cm_command::RESOLVE_IB_SERVICE => resolve::resolve_ib_service(registry, call),
        cm_command::WRITE_CM_EVENT => events::write_event(registry, call),
        _ => Err(Errno::NOSYS),
    }
}

/// Whether a command needs a channel's path to external peers, which the channel does not have yet.
pub(super) fn needs_external_path(registry: &Registry, channel: u32, bytes: &[u8]) -> bool {
    let Some((command, call)) = Call::preview(channel, bytes) else { return false };
    let Some(endpoint) =
        registry.channels.get(channel).filter(|channel| channel.external.is_none()).map(|c| c.endpoint)
    else {
        return false;
    };
    let leads_out = |dest: &[u8]| match address::decode(dest) {
        Ok(Some(address::Address::Ip(dest))) => registry.places.leads_out(endpoint, dest.ip()),
        _ => false,
    };
    match command {
        cm_command::LISTEN => call.read::<Listen>().is_ok(),
        cm_command::RESOLVE_IP => call.read::<ResolveIp>().is_ok_and(|c| leads_out(&c.dst_addr)),
        cm_command::RESOLVE_ADDR => call.read::<ResolveAddr>().is_ok_and(|c| leads_out(&c.dst_addr)),
        // The identifier may have come from another channel.
        cm_command::CONNECT => call.read_short::<Connect>().is_ok_and(|c| {
            let dest = registry.id(&call, c.id).ok().and_then(|id| id.dest);
            dest.is_some_and(|dest| registry.places.leads_out(endpoint, dest.ip()))
        }),
        // The channel that it comes from may close.
        cm_command::MIGRATE_ID => call.read::<MigrateId>().is_ok_and(|c| {
            registry.channels.endpoint_of(c.fd) == Some(endpoint) && registry.channels.external_path_of(c.fd).is_some()
        }),
        _ => false,
    }
}

/// The queue pair of the connection that a command ends.
pub(super) fn ends(registry: &Registry, channel: u32, bytes: &[u8]) -> Option<Qpn> {
    let (command, call) = Call::preview(channel, bytes)?;
    let number = match command {
        cm_command::DISCONNECT => call.read::<Disconnect>().ok()?.id,
        cm_command::DESTROY_ID => call.read::<DestroyId>().ok()?.id,
        _ => return None,
    };
    registry.id(&call, number).ok()?.connected_qp()
}
