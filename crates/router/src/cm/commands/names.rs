//! Identifier commands: create, migrate, bind and listen.

use crate::cm::address::{self, Address};
use crate::cm::call::{Call, DONE};
use crate::cm::grace::ListenerPort;
use crate::cm::id::{Id, PortSpace, State};
use crate::cm::ports::Binding;
use crate::cm::registry::Registry;
use rdmesh_uverbs::abi::{Bind, BindIp, CreateId, CreateIdResponse, Listen, MigrateId, MigrateResponse};
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr};

/// Connection requests that may wait where the program does not say how many (`UCMA_MAX_BACKLOG`).
const MAX_BACKLOG: u32 = 1024;

pub(super) fn create_id(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    call.needs_room(size_of::<CreateIdResponse>())?;
    let command: CreateId = call.read()?;
    let space = PortSpace::from_number(command.ps).ok_or(Errno::INVAL)?;
    let qp_type = space.qp_type(command.qp_type)?;
    let endpoint = registry.channels.endpoint_of(call.channel).ok_or(Errno::BADF)?;
    let psn = registry.psn();
    let id = Id { uid: Some(command.uid), ..Id::new(endpoint, call.channel, space, qp_type, psn) };
    let id = registry.insert(id)?;
    call.respond(&CreateIdResponse { id })
}

/// Moves an identifier from its channel to the one that the command was written to, with its waiting events.
pub(super) fn migrate(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    call.needs_room(size_of::<MigrateResponse>())?;
    let command: MigrateId = call.read()?;
    let from = command.fd;
    // Before the identifier is looked up: a program must not learn which ones other endpoints' channels have.
    if registry.channels.endpoint_of(from) != registry.channels.endpoint_of(call.channel) {
        return Err(Errno::INVAL);
    }
    let events_reported = registry.id(&Call { channel: from, ..*call }, command.id)?.reported;
    registry.hand_over(command.id, call.channel);
    if from != call.channel {
        for event in registry.channels.unqueue(from, |channel| channel.withdraw(command.id)) {
            if let Some(child) = event.child {
                registry.hand_over(child, call.channel);
            }
            registry.channels.queue(call.channel, event);
        }
    }
    call.respond(&MigrateResponse { events_reported })
}

pub(super) fn bind_ip(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: BindIp = call.read()?;
    // Of this command, unlike of BIND, only addresses of IP are taken.
    let Some(Address::Ip(address)) = address::decode(&command.addr).map_err(|_| Errno::INVAL)? else {
        return Err(Errno::INVAL);
    };
    registry.id(call, command.id)?;
    bind_to(registry, command.id, address)?;
    Ok(DONE)
}

pub(super) fn bind_any(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: Bind = call.read()?;
    check_size(command.addr_size, &command.addr, command.reserved)?;
    registry.id(call, command.id)?;
    match address::decode(&command.addr)?.ok_or(Errno::AFNOSUPPORT)? {
        Address::Ip(address) => bind_to(registry, command.id, address)?,
        Address::IbAny => registry.id_mut(call, command.id)?.advance(State::Idle, State::Bound)?,
        Address::Ib => return Err(Errno::NODEV),
    }
    Ok(DONE)
}

/// Binds (`rdma_bind_addr`).
pub(super) fn bind_to(registry: &mut Registry, number: u32, address: SocketAddr) -> Result<(), Errno> {
    let (id, node) = registry.id_and_node(number)?;
    id.must_be(State::Idle)?;
    if let SocketAddr::V6(v6) = address
        && address::is_link_local(address.ip())
        && v6.scope_id() == 0
    {
        return Err(Errno::INVAL);
    }
    let mut source = address;
    if address.ip().is_loopback() {
        source.set_ip(node.itself(address.ip()).ok_or(Errno::ADDRNOTAVAIL)?);
    }
    let device = match source.ip().is_unspecified() {
        true => None,
        false => Some(node.device_at(source.ip()).ok_or(Errno::ADDRNOTAVAIL)?),
    };
    // The kernel's `bindv6only` is 0: an IPv6 wildcard takes IPv4 too.
    let only_family = id.options.only_family.unwrap_or(source.is_ipv4());
    let binding = Binding { owner: number, address: source, reuse: id.options.reuse, only_family };
    source.set_port(node.ports.bind(id.space, binding)?);
    id.options.only_family = Some(only_family);
    id.source = Some(source);
    id.only_self = address.ip().is_loopback();
    id.is_bound = true;
    id.device = device;
    id.state = State::Bound;
    Ok(())
}

/// Makes an identifier listen; returns its endpoint and port.
pub(in crate::cm) fn listen(registry: &mut Registry, call: &Call<'_>) -> Result<ListenerPort, Errno> {
    let command: Listen = call.read()?;
    let state = registry.id(call, command.id)?.state;
    if state == State::Idle {
        bind_to(registry, command.id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let (id, node) = registry.id_and_node(command.id)?;
    id.must_be(State::Bound)?;
    // An identifier that is bound to AF_IB's wildcard finds no device that knows the family.
    let source = id.source.ok_or(Errno::NODEV)?;
    node.ports.claim(id.space, source.port(), command.id)?;
    id.options.reuse = false;
    // The kernel reads it as a signed number.
    let asked = if command.backlog as i32 <= 0 { MAX_BACKLOG } else { command.backlog };
    id.backlog = asked.min(MAX_BACKLOG);
    id.state = State::Listen;
    Ok((id.endpoint, id.space, source.port()))
}

/// Checks the length of an address as `ucma` does.
pub(super) fn check_size(size: u16, address: &[u8], reserved: u16) -> Result<(), Errno> {
    let expected = address::len_of(address::family(address)?).unwrap_or_default();
    if reserved != 0 || size == 0 || usize::from(size) != expected { Err(Errno::INVAL) } else { Ok(()) }
}
