//! Address and route resolution.

use super::names::{bind_to, check_size};
use crate::cm::address::{self, Address};
use crate::cm::call::{Call, DONE};
use crate::cm::event::{Event, Kind};
use crate::cm::id::State;
use crate::cm::queries::Query;
use crate::cm::registry::Registry;
use rdmesh_nic::{Route, Time};
use rdmesh_uverbs::abi::{ResolveAddr, ResolveIbService, ResolveIp, ResolveRoute};
use rdmesh_verbs::Gid;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

pub(super) fn resolve_ip(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: ResolveIp = call.read()?;
    let source = only_ip(&command.src_addr)?;
    let dest = only_ip(&command.dst_addr)?.ok_or(Errno::INVAL)?;
    resolve(registry, call, command.id, source, dest, command.timeout_ms)
}

pub(super) fn resolve_any(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: ResolveAddr = call.read()?;
    check_size(command.dst_size, &command.dst_addr, command.reserved as u16)?;
    if command.src_size != 0 {
        check_size(command.src_size, &command.src_addr, 0)?;
    }
    let source = match address::decode(&command.src_addr)?.filter(|_| command.src_size != 0) {
        Some(Address::Ip(source)) => Some(source),
        None => None,
        Some(_) => return Err(Errno::NODEV),
    };
    match address::decode(&command.dst_addr)? {
        Some(Address::Ip(dest)) => resolve(registry, call, command.id, source, dest, command.timeout_ms),
        // No link of this kind has addresses of AF_IB.
        Some(_) => Err(Errno::NODEV),
        None => Err(Errno::INVAL),
    }
}

/// Resolves (`rdma_resolve_addr`).
fn resolve(
    registry: &mut Registry,
    call: &Call<'_>,
    number: u32,
    source: Option<SocketAddr>,
    dest: SocketAddr,
    timeout_ms: u32,
) -> Result<Vec<u8>, Errno> {
    let id = registry.id(call, number)?;
    registry.has_room_for_events(id.endpoint)?;
    if id.state == State::Idle {
        bind_to(registry, number, source.unwrap_or_else(|| address::any_like(dest)))?;
    }
    let id = registry.id(call, number)?;
    id.must_be(State::Bound)?;
    let own = id.source.ok_or(Errno::INVAL)?;
    if own.is_ipv4() != dest.is_ipv4() {
        return Err(Errno::INVAL);
    }
    let node = registry.places.node(id.endpoint)?;
    let mut to = dest;
    if dest.ip().is_unspecified() || dest.ip().is_loopback() {
        to.set_ip(node.itself(dest.ip()).ok_or(Errno::NETUNREACH)?);
    }
    let from = match own.ip().is_unspecified() {
        true => node.source_for(to.ip()).ok_or(Errno::NETUNREACH)?,
        false => own.ip(),
    };
    let remote = Gid::from_ip(to.ip());
    let has_external_path = || registry.channels.external_path_of(call.channel).is_some();
    let is_external = !remote.is_multicast() && registry.places.route(node.spec.vni, remote) == Route::External;
    if is_external && !has_external_path() {
        return Err(Errno::NETUNREACH);
    }
    let device = node.device_at(from).ok_or(Errno::NODEV)?;
    let id = registry.id_mut(call, number)?;
    id.source = Some(SocketAddr::new(from, own.port()).with_scope_of(own));
    id.dest = Some(to);
    id.device = Some(crate::cm::id::Device { remote, ..device });
    id.state = State::AddressQuery;
    match to.ip() {
        IpAddr::V4(dest) if is_external => {
            let limit = Time(call.now.0.saturating_add(u64::from(timeout_ms) * MILLISECOND));
            registry.look_for(number, Query { channel: call.channel, dest, since: call.now, limit, probed: false });
        }
        // Locations of endpoints are known, and the kernel shows no table of IPv6 neighbours.
        _ => registry.answer_query(number, Ok(())),
    }
    Ok(DONE)
}

/// Resolves the route, which on Ethernet is known with the address (`cma_resolve_iboe_route`).
pub(super) fn resolve_route(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: ResolveRoute = call.read()?;
    let (id, _) = registry.id_with_device(call, command.id)?;
    registry.has_room_for_events(id.endpoint)?;
    route_is_known(registry, call, command.id)?;
    Ok(DONE)
}

/// Looks for a service by a subnet manager (`rdma_resolve_ib_service`), which Ethernet has none of.
pub(super) fn resolve_ib_service(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: ResolveIbService = call.read()?;
    let (id, _) = registry.id_with_device(call, command.id)?;
    id.must_be(State::Bound)?;
    Err(Errno::OPNOTSUPP)
}

pub(super) fn route_is_known(registry: &mut Registry, call: &Call<'_>, number: u32) -> Result<(), Errno> {
    registry.id_mut(call, number)?.advance(State::AddressResolved, State::RouteResolved)?;
    registry.post(number, &Event::new(Kind::RouteResolved));
    Ok(())
}

/// Nanoseconds.
const MILLISECOND: u64 = 1_000_000;

/// An address with the scope of another.
trait WithScope {
    fn with_scope_of(self, other: Self) -> Self;
}

impl WithScope for SocketAddr {
    fn with_scope_of(mut self, other: Self) -> Self {
        if let (Self::V6(address), Self::V6(other)) = (&mut self, other) {
            address.set_scope_id(other.scope_id());
        }
        self
    }
}

/// RESOLVE_IP takes addresses of IP only.
fn only_ip(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    match address::decode(bytes).map_err(|_| Errno::INVAL)? {
        Some(Address::Ip(address)) => Ok(Some(address)),
        Some(_) => Err(Errno::INVAL),
        None => Ok(None),
    }
}
