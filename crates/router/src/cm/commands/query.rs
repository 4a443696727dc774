//! Query commands: addresses, routes and path records of an identifier.

use crate::cm::address;
use crate::cm::call::Call;
use crate::cm::header;
use crate::cm::id::{Device, Id, State};
use crate::cm::node::Node;
use crate::cm::registry::Registry;
use crate::endpoint::PORT;
use rdmesh_uverbs::abi::{
    PathRecordData, QueryAddrResponse, QueryIbServiceResponse, QueryPathResponse, QueryRouteResponse, SaPathRecord,
    UserPathRecord, cm_query,
};
use rdmesh_verbs::{Gid, Mtu};
use rustix::io::Errno;
use std::mem::offset_of;
use std::net::SocketAddr;
use zerocopy::IntoBytes;

/// The only partition.
pub(in crate::cm) const PKEY: u16 = 0xffff;
/// `IBV_RATE_100_GBPS`, as the port says of itself.
pub(in crate::cm) const RATE: u8 = 16;
/// TTL of the packets of connections.
pub(in crate::cm) const HOP_LIMIT: u8 = 64;
/// Packet lifetime, as a code: 0.27 s, as Linux has on Ethernet (`CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFE_TIME: u8 = 16;
/// Selectors of path records: exactly this.
const EXACTLY: u8 = 2;

/// A path, as far as one on Ethernet has attributes.
pub(in crate::cm) struct PathRecord {
    sgid: Gid,
    dgid: Gid,
    service_id: u64,
    mtu: Mtu,
    traffic_class: u8,
    pub(in crate::cm) packet_life_time: u8,
}

impl PathRecord {
    pub(in crate::cm) fn of(id: &Id, device: Device, mtu: Mtu) -> Self {
        let service_id = id.dest.map_or(0, |dest| header::service_id(id.space, dest.port()));
        // The local ACK time-out is twice the life time (IBA 12.7.34).
        let packet_life_time = match id.options.ack_timeout {
            None | Some(0) => PACKET_LIFE_TIME,
            Some(timeout) => timeout - 1,
        };
        let traffic_class = id.options.tos;
        Self { sgid: device.local, dgid: device.remote, service_id, mtu, traffic_class, packet_life_time }
    }

    fn for_user(&self) -> UserPathRecord {
        UserPathRecord {
            dgid: self.dgid.0,
            sgid: self.sgid.0,
            reversible: 1,
            mtu: self.mtu as u32,
            pkey: PKEY.to_be_bytes(),
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
            mtu_selector: EXACTLY,
            rate_selector: EXACTLY,
            rate: RATE,
            packet_life_time_selector: EXACTLY,
            packet_life_time: self.packet_life_time,
            ..Default::default()
        }
    }

    /// The record as the subnet administrator writes it (IBA 15.2.5.16).
    fn packed(&self) -> SaPathRecord {
        let selected = |value: u8| EXACTLY << 6 | value;
        SaPathRecord {
            service_id: self.service_id.to_be_bytes(),
            dgid: self.dgid.0,
            sgid: self.sgid.0,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
            reversible: REVERSIBLE,
            pkey: PKEY.to_be_bytes(),
            mtu: selected(self.mtu as u8),
            rate: selected(RATE),
            packet_life_time: selected(self.packet_life_time),
            ..Default::default()
        }
    }
}

pub(super) fn query(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: rdmesh_uverbs::abi::Query = call.read()?;
    let id = registry.id(call, command.id)?;
    let node = registry.places.node(id.endpoint)?;
    match command.option {
        cm_query::ADDR => query_address(call, id, node),
        cm_query::PATH => query_path(call, id, node),
        cm_query::GID => query_gid(call, id, node),
        // No service is ever found.
        cm_query::IB_SERVICE => call.needs_room(size_of::<QueryIbServiceResponse>()).and(Err(Errno::NODATA)),
        _ => Err(Errno::NOSYS),
    }
}

pub(super) fn query_route(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let room = offset_of!(QueryRouteResponse, ibdev_index);
    call.needs_room(room)?;
    let command: rdmesh_uverbs::abi::Query = call.read_short()?;
    let id = registry.id(call, command.id)?;
    let node = registry.places.node(id.endpoint)?;
    let mut response = QueryRouteResponse::default();
    put(id.source, &mut response.src_addr);
    put(id.dest, &mut response.dst_addr);
    if let Some(device) = id.device {
        response.node_guid = u64::from_ne_bytes(node.spec.guid);
        response.port_num = PORT;
        response.num_paths = u32::from(has_route(id));
        let record = PathRecord::of(id, device, node.mtu).for_user();
        // Without a route the addresses are all that is known.
        let bare = UserPathRecord { dgid: record.dgid, sgid: record.sgid, pkey: record.pkey, ..Default::default() };
        response.ib_route[0] = if has_route(id) { record } else { bare };
    }
    Ok(response.as_bytes()[..size_of_val(&response).min(call.room)].to_vec())
}

fn query_address(call: &Call<'_>, id: &Id, node: &Node) -> Result<Vec<u8>, Errno> {
    let mut response = addresses(call, id, node)?;
    let len = |address: Option<SocketAddr>| address.map_or(0, address::encoded_len) as u16;
    (response.src_size, response.dst_size) = (len(id.source), len(id.dest));
    put(id.source, &mut response.src_addr);
    put(id.dest, &mut response.dst_addr);
    finish(call, &response)
}

fn query_gid(call: &Call<'_>, id: &Id, node: &Node) -> Result<Vec<u8>, Errno> {
    let mut response = addresses(call, id, node)?;
    let (local, remote) = id.device.map_or_else(Default::default, |device| (device.local, device.remote));
    let service = |address: Option<SocketAddr>| header::service_id(id.space, address.map_or(0, |a| a.port()));
    (response.src_size, response.dst_size) = (address::IB_LEN as u16, address::IB_LEN as u16);
    address::encode_ib(local, PKEY, service(id.source), &mut response.src_addr);
    address::encode_ib(remote, PKEY, service(id.dest), &mut response.dst_addr);
    finish(call, &response)
}

/// The device's part of both address queries.
fn addresses(call: &Call<'_>, id: &Id, node: &Node) -> Result<QueryAddrResponse, Errno> {
    call.needs_room(offset_of!(QueryAddrResponse, ibdev_index))?;
    let mut response = QueryAddrResponse::default();
    if id.device.is_some() {
        response.node_guid = u64::from_ne_bytes(node.spec.guid);
        response.port_num = PORT;
        response.pkey = PKEY.to_be_bytes();
    }
    Ok(response)
}

/// Programs that were built before them have no room for the last members.
fn finish(call: &Call<'_>, response: &QueryAddrResponse) -> Result<Vec<u8>, Errno> {
    Ok(response.as_bytes()[..size_of_val(response).min(call.room)].to_vec())
}

fn query_path(call: &Call<'_>, id: &Id, node: &Node) -> Result<Vec<u8>, Errno> {
    call.needs_room(size_of::<QueryPathResponse>())?;
    let device = id.device.filter(|_| has_route(id));
    let head = QueryPathResponse { num_paths: u32::from(device.is_some()), reserved: 0 };
    let mut bytes = head.as_bytes().to_vec();
    if let Some(device) = device.filter(|_| call.room >= size_of::<QueryPathResponse>() + size_of::<PathRecordData>()) {
        let path_rec = PathRecord::of(id, device, node.mtu).packed();
        bytes.extend_from_slice(PathRecordData { flags: PRIMARY_PATH, reserved: 0, path_rec }.as_bytes());
    }
    Ok(bytes)
}

fn has_route(id: &Id) -> bool {
    matches!(id.state, State::RouteResolved | State::Connect | State::Disconnect)
}

fn put(address: Option<SocketAddr>, to: &mut [u8]) {
    if let Some(address) = address {
        address::encode(address, to);
    }
}

/// `IB_PATH_GMP`, `IB_PATH_PRIMARY` and both directions.
pub(super) const PRIMARY_PATH: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// The path may be used both ways.
const REVERSIBLE: u8 = 0x80;
