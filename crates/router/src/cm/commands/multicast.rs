//! Multicast groups. On Ethernet a program joins one by computing its address (`cma_iboe_join_multicast`); the members are the
//! queue pairs that are attached to it.

use super::names::check_size;
use crate::cm::address::{self, Address};
use crate::cm::call::Call;
use crate::cm::connection::{DATAGRAM_QKEY, path_to};
use crate::cm::event::{Event, Kind, Pending, datagram};
use crate::cm::id::State;
use crate::cm::registry::Registry;
use rdmesh_uverbs::abi::{CreateIdResponse, DestroyId, DestroyIdResponse, JoinIpMcast, JoinMcast};
use rdmesh_verbs::{Gid, Qpn};
use rustix::io::Errno;

/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
const SEND_ONLY: u16 = 1;

pub(super) fn join_ip(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: JoinIpMcast = call.read()?;
    join(registry, call, command.id, command.uid, &command.addr)
}

pub(super) fn join_any(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: JoinMcast = call.read()?;
    check_size(command.addr_size, &command.addr, 0)?;
    if command.join_flags > SEND_ONLY {
        return Err(Errno::INVAL);
    }
    join(registry, call, command.id, command.uid, &command.addr)
}

fn join(registry: &mut Registry, call: &Call<'_>, number: u32, uid: u64, address: &[u8]) -> Result<Vec<u8>, Errno> {
    call.needs_room(size_of::<CreateIdResponse>())?;
    let Some(Address::Ip(address)) = address::decode(address)? else { return Err(Errno::INVAL) };
    let (id, device) = registry.id_with_device(call, number)?;
    let gid = Gid::from_ip(address.ip());
    if !id.is_datagram() || !matches!(id.state, State::Bound | State::AddressResolved) || !gid.is_multicast() {
        return Err(Errno::INVAL);
    }
    let (channel, qkey, tos) = (id.channel, id.qkey.unwrap_or(DATAGRAM_QKEY), id.options.tos);
    let group = registry.join(number)?;
    registry.id_mut(call, number)?.qkey = Some(qkey);
    let path = path_to(gid, device.sgid_index, tos);
    let joined = Event::new(Kind::MulticastJoin).with_datagram(datagram(Qpn::MULTICAST.value(), qkey, path, &[]));
    let response = joined.response(uid, group);
    registry.channels.queue(channel, Pending { id: number, group: Some(group), response, child: None });
    call.respond(&CreateIdResponse { id: group })
}

pub(super) fn leave(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    call.needs_room(size_of::<DestroyIdResponse>())?;
    let number = call.read::<DestroyId>()?.id;
    let owner = registry.group(number).ok_or(Errno::NOENT)?.owner;
    registry.id(call, owner)?;
    let events_reported = registry.leave(number);
    call.respond(&DestroyIdResponse { events_reported })
}
