//! Multicast groups. On Ethernet a program joins one by computing its address (`cma_iboe_join_multicast`); the members are the
//! queue pairs that are attached to it.

use super::Call;
use super::names::check_size;
use crate::cm::ConnectionManager;
use crate::cm::address::{self, Address};
use crate::cm::connection::{DATAGRAM_QKEY, path_to};
use crate::cm::event::{Event, Kind, Pending, datagram};
use crate::cm::id::State;
use crate::cm::node::{Group, MAX_GROUPS};
use rdmesh_uverbs::abi::{CreateIdResponse, DestroyId, DestroyIdResponse, JoinIpMcast, JoinMcast};
use rdmesh_verbs::{Gid, Qpn};
use rustix::io::Errno;

/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
const SEND_ONLY: u16 = 1;

impl ConnectionManager {
    pub(super) fn join_ip(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: JoinIpMcast = call.read()?;
        self.join(call, command.id, command.uid, &command.addr)
    }

    pub(super) fn join_any(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: JoinMcast = call.read()?;
        check_size(command.addr_size, &command.addr, 0)?;
        if command.join_flags > SEND_ONLY {
            return Err(Errno::INVAL);
        }
        self.join(call, command.id, command.uid, &command.addr)
    }

    fn join(&mut self, call: &Call<'_>, number: u32, uid: u64, address: &[u8]) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<CreateIdResponse>())?;
        let Some(Address::Ip(address)) = address::decode(address)? else { return Err(Errno::INVAL) };
        let (id, device) = self.id_with_device(call, number)?;
        let gid = Gid::from_ip(address.ip());
        if !id.is_datagram() || !matches!(id.state, State::Bound | State::AddressResolved) || !gid.is_multicast() {
            return Err(Errno::INVAL);
        }
        let (endpoint, channel, qkey, tos) =
            (id.endpoint, id.channel, id.qkey.unwrap_or(DATAGRAM_QKEY), id.options.tos);
        let node = self.nodes.get_mut(&endpoint).ok_or(Errno::NODEV)?;
        if node.groups >= MAX_GROUPS {
            return Err(Errno::NOMEM);
        }
        node.has_room_for_events()?;
        node.groups += 1;
        let group = self.free_number(|manager, number| manager.groups.contains_key(&number));
        self.groups.insert(group, Group { owner: number, reported: 0 });
        let id = self.id_mut(call, number)?;
        id.groups.insert(group);
        id.qkey = Some(qkey);
        let path = path_to(gid, device.sgid_index, tos);
        let joined = Event::new(Kind::MulticastJoin).with_datagram(datagram(Qpn::MULTICAST.value(), qkey, path, &[]));
        let response = joined.response(uid, group);
        self.queue(channel, Pending { id: number, group: Some(group), response, child: None });
        call.respond(&CreateIdResponse { id: group })
    }

    pub(super) fn leave(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<DestroyIdResponse>())?;
        let number = call.read::<DestroyId>()?.id;
        let group = self.groups.get(&number).ok_or(Errno::NOENT)?;
        let owner = group.owner;
        self.id(call, owner)?;
        let events_reported = self.groups.remove(&number).map_or(0, |group| group.reported);
        let id = self.id_mut(call, owner)?;
        id.groups.remove(&number);
        let endpoint = id.endpoint;
        if let Some(node) = self.nodes.get_mut(&endpoint) {
            node.groups -= 1;
        }
        self.unqueue(call.channel, |channel| channel.withdraw_group(owner, number));
        call.respond(&DestroyIdResponse { events_reported })
    }
}
