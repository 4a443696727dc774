//! Commands of `/dev/infiniband/rdma_cm`, by subject. Each refuses the same requests, with the same errno, as Linux's
//! `rdma_ucm`.

mod connect;
mod events;
mod multicast;
mod names;
mod options;
mod query;
pub(super) use query::{HOP_LIMIT, RATE};
mod resolve;

use super::id::{Device, Id, State};
use super::{ConnectionManager, address};
use rdmesh_nic::{Route, Time};
use rdmesh_uverbs::abi::{
    CmHeader, Connect, DestroyId, Disconnect, Listen, MigrateId, ResolveAddr, ResolveIp, cm_command,
};
use rdmesh_verbs::Qpn;
use rustix::io::Errno;
use std::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

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

/// A command in execution.
struct Call<'a> {
    now: Time,
    channel: u32,
    body: &'a [u8],
    room: usize,
}

impl ConnectionManager {
    /// Executes what a program wrote to its channel; returns the response.
    pub(crate) fn command(&mut self, now: Time, channel: u32, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
        let (header, body) = CmHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        if header.cmd > cm_command::WRITE_CM_EVENT || usize::from(header.in_len) > body.len() {
            return Err(Errno::INVAL);
        }
        let call = Call { now, channel, body, room: header.out_len.into() };
        let done = self.execute(header.cmd, &call);
        self.pump(now);
        done
    }

    fn execute(&mut self, command: u32, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        match command {
            cm_command::CREATE_ID => self.create_id(call),
            cm_command::DESTROY_ID => self.destroy_id(call),
            cm_command::BIND_IP => self.bind_ip(call),
            cm_command::BIND => self.bind_any(call),
            cm_command::LISTEN => self.listen(call),
            cm_command::RESOLVE_IP => self.resolve_ip(call),
            cm_command::RESOLVE_ADDR => self.resolve_any(call),
            cm_command::RESOLVE_ROUTE => self.resolve_route(call),
            cm_command::QUERY_ROUTE => self.query_route(call),
            cm_command::QUERY => self.query(call),
            cm_command::CONNECT => self.connect(call),
            cm_command::ACCEPT => self.accept(call),
            cm_command::REJECT => self.reject(call),
            cm_command::DISCONNECT => self.disconnect(call),
            cm_command::INIT_QP_ATTR => self.init_qp_attr(call),
            cm_command::NOTIFY => self.notify(call),
            cm_command::GET_EVENT => self.get_event(call),
            cm_command::MIGRATE_ID => self.migrate(call),
            cm_command::SET_OPTION => self.set_option(call),
            cm_command::JOIN_IP_MCAST => self.join_ip(call),
            cm_command::JOIN_MCAST => self.join_any(call),
            cm_command::LEAVE_MCAST => self.leave(call),
            cm_command::RESOLVE_IB_SERVICE => self.resolve_ib_service(call),
            cm_command::WRITE_CM_EVENT => self.write_event(call),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Whether a command needs a channel's path to external peers, which the channel does not have yet.
    pub(crate) fn needs_way(&self, channel: u32, bytes: &[u8]) -> bool {
        let Ok((header, body)) = CmHeader::read_from_prefix(bytes) else { return false };
        if self.channels.get(&channel).is_none_or(|channel| channel.plain.is_some()) {
            return false;
        }
        let call = Call { now: Time::default(), channel, body, room: 0 };
        match header.cmd {
            cm_command::LISTEN => call.read::<Listen>().is_ok(),
            cm_command::RESOLVE_IP => call.read::<ResolveIp>().is_ok_and(|c| self.is_outside(channel, &c.dst_addr)),
            cm_command::RESOLVE_ADDR => call.read::<ResolveAddr>().is_ok_and(|c| self.is_outside(channel, &c.dst_addr)),
            // The identifier may have come from another channel.
            cm_command::CONNECT => call.read_short::<Connect>().is_ok_and(|c| {
                self.id(&call, c.id).is_ok_and(|id| id.dest.is_some_and(|dest| self.leads_out(channel, dest.ip())))
            }),
            // The channel that it comes from may close.
            cm_command::MIGRATE_ID => call.read::<MigrateId>().is_ok_and(|c| self.has_way(channel, c.fd)),
            _ => false,
        }
    }

    /// The queue pair of the connection that a command ends.
    pub(crate) fn ends(&self, channel: u32, bytes: &[u8]) -> Option<Qpn> {
        let (header, body) = CmHeader::read_from_prefix(bytes).ok()?;
        let call = Call { now: Time::default(), channel, body, room: 0 };
        let number = match header.cmd {
            cm_command::DISCONNECT => call.read::<Disconnect>().ok()?.id,
            cm_command::DESTROY_ID => call.read::<DestroyId>().ok()?.id,
            _ => return None,
        };
        self.id(&call, number).ok()?.connected_qp()
    }

    /// Whether `from`, another channel of the endpoint of `channel`, has an external path.
    fn has_way(&self, channel: u32, from: u32) -> bool {
        let endpoint = |number| self.channels.get(&number).map(|channel| channel.endpoint);
        let has = |channel: &super::Channel| channel.plain.flatten().is_some();
        endpoint(channel) == endpoint(from) && self.channels.get(&from).is_some_and(has)
    }

    fn is_outside(&self, channel: u32, dest: &[u8]) -> bool {
        match address::decode(dest) {
            Ok(Some(address::Address::Ip(dest))) => self.leads_out(channel, dest.ip()),
            _ => false,
        }
    }

    /// Whether an address belongs to no endpoint.
    fn leads_out(&self, channel: u32, ip: std::net::IpAddr) -> bool {
        let node = self.channels.get(&channel).and_then(|channel| self.nodes.get(&channel.endpoint));
        let is_self = ip.is_loopback() || ip.is_unspecified();
        node.is_some_and(|node| {
            !is_self && self.routes.find(node.spec.vni, rdmesh_verbs::Gid::from_ip(ip)) == Route::Outside
        })
    }

    /// The identifier that a command names (`ucma_get_ctx`).
    fn id(&self, call: &Call<'_>, number: u32) -> Result<&Id, Errno> {
        let id = self.ids.get(&number).filter(|id| self.is_ours(call, id)).ok_or(Errno::NOENT)?;
        if id.channel == call.channel { Ok(id) } else { Err(Errno::INVAL) }
    }

    fn id_mut(&mut self, call: &Call<'_>, number: u32) -> Result<&mut Id, Errno> {
        self.id(call, number)?;
        self.ids.get_mut(&number).ok_or(Errno::NOENT)
    }

    /// The same, and the device that it has found (`ucma_get_ctx_dev`).
    fn id_with_device(&self, call: &Call<'_>, number: u32) -> Result<(&Id, Device), Errno> {
        let id = self.id(call, number)?;
        id.device.map(|device| (id, device)).ok_or(Errno::INVAL)
    }

    /// No program learns which numbers other endpoints use.
    fn is_ours(&self, call: &Call<'_>, id: &Id) -> bool {
        self.channels.get(&call.channel).is_some_and(|channel| channel.endpoint == id.endpoint)
    }
}

impl Id {
    /// Refuses a command that is valid in one state only.
    fn must_be(&self, state: State) -> Result<(), Errno> {
        if self.state == state { Ok(()) } else { Err(Errno::INVAL) }
    }
}

impl Call<'_> {
    fn read<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.body).map(|(command, _)| command).map_err(|_| Errno::INVAL)
    }

    /// The same for a struct that has grown: members that an older program does not send are zero.
    fn read_short<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let mut command = T::new_zeroed();
        let bytes = command.as_mut_bytes();
        let len = bytes.len().min(self.body.len());
        bytes[..len].copy_from_slice(&self.body[..len]);
        Ok(command)
    }

    /// The response of a command, for which the program must have made room.
    fn respond(&self, response: &(impl IntoBytes + Immutable)) -> Result<Vec<u8>, Errno> {
        self.needs_room(size_of_val(response))?;
        Ok(response.as_bytes().to_vec())
    }

    fn needs_room(&self, len: usize) -> Result<(), Errno> {
        if self.room < len { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// A command without a response.
const DONE: Vec<u8> = Vec::new();
