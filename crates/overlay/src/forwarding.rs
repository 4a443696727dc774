//! Entries by which a network's bridge and its VXLAN device know endpoints of other hosts without asking for them.

use crate::MacAddress;
use crate::link::{Changes, Index, Links, named};
use crate::netlink::Request;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::link::{InfoBridgePort, InfoPortData, InfoPortKind, LinkAttribute, LinkInfo};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// An entry. The kernel neither forgets it nor lets a received frame change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// The VXLAN device sends frames for this address to the host; with [`MacAddress::ANY`] broadcast and unknown ones.
    Host(MacAddress, IpAddr),
    /// The bridge passes frames for this address to the VXLAN device, whatever frames with that source it gets from elsewhere.
    Port(MacAddress),
    /// The bridge itself answers who has this IP address.
    Neighbour(IpAddr, MacAddress),
}

/// The interfaces that have entries.
#[derive(Clone, Copy)]
pub(crate) struct Devices {
    pub(crate) bridge: Index,
    pub(crate) vxlan: Index,
}

impl Links {
    /// The entries of the kind [`Entry::Neighbour`] that the interface `index` has.
    pub(crate) fn neighbours(&mut self, index: Index) -> io::Result<Vec<Entry>> {
        let all = self.list(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()))?;
        Ok(all.iter().filter_map(|message| neighbour_of(message, index)).collect())
    }
}

impl Changes<'_> {
    /// Adds an entry.
    pub(crate) fn add_entry(self, devices: Devices, entry: Entry) -> Self {
        // A VXLAN device has one entry for each host that frames for an address go to.
        let multiple = if matches!(entry, Entry::Host(..)) { NLM_F_APPEND } else { NLM_F_REPLACE };
        let message = RouteNetlinkMessage::NewNeighbour(entry.message(devices));
        self.with(format!("adding {}", entry.name()), Request::new(message, NLM_F_CREATE | multiple), None)
    }

    /// Takes back [`Changes::add_entry`].
    pub(crate) fn remove_entry(self, devices: Devices, entry: Entry) -> Self {
        let message = RouteNetlinkMessage::DelNeighbour(entry.message(devices));
        self.with(format!("removing {}", entry.name()), Request::new(message, 0), Some(ENOENT))
    }

    /// Makes the port `name` of a bridge one whose addresses are known: it learns none from frames, and what is known of them
    /// is answered on its behalf. Where it `is_flooded`, frames for others reach it too.
    pub(crate) fn set_known_port(self, name: &str, is_flooded: bool) -> Self {
        let options = vec![
            InfoBridgePort::Learning(false),
            InfoBridgePort::NeighSupress(true),
            InfoBridgePort::UnicastFlood(is_flooded),
            InfoBridgePort::MulticastFlood(is_flooded),
            InfoBridgePort::BroadcastFlood(is_flooded),
        ];
        let info =
            vec![LinkInfo::PortKind(InfoPortKind::Bridge), LinkInfo::PortData(InfoPortData::BridgePort(options))];
        // To SETLINK the options of a port mean nothing.
        let message = RouteNetlinkMessage::NewLink(named(name, vec![LinkAttribute::LinkInfo(info)]));
        self.with(format!("setting options of port `{name}`"), Request::new(message, 0), None)
    }
}

impl Entry {
    fn message(self, devices: Devices) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        let (mac, index, family) = match self {
            Self::Host(mac, _) | Self::Port(mac) => (mac, devices.vxlan, AddressFamily::Bridge),
            Self::Neighbour(address, mac) => (mac, devices.bridge, family_of(address)),
        };
        (message.header.family, message.header.ifindex) = (family, index.0);
        (message.header.state, message.header.flags) = match self {
            Self::Host(..) => (NeighbourState::Permanent, NeighbourFlags::Own),
            // To a bridge a permanent entry is an address of its own.
            Self::Port(_) => (NeighbourState::Noarp, NeighbourFlags::Controller | NeighbourFlags::Sticky),
            Self::Neighbour(..) => (NeighbourState::Permanent, NeighbourFlags::empty()),
        };
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.octets().to_vec())];
        if let Self::Host(_, address) | Self::Neighbour(address, _) = self {
            message.attributes.push(NeighbourAttribute::Destination(match address {
                IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
                IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
            }));
        }
        message
    }

    fn name(self) -> String {
        match self {
            Self::Host(mac, host) => format!("the host {host} of frames for {mac}"),
            Self::Port(mac) => format!("the port of frames for {mac}"),
            Self::Neighbour(address, mac) => format!("the neighbour {address} at {mac}"),
        }
    }
}

fn neighbour_of(message: &RouteNetlinkMessage, index: Index) -> Option<Entry> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
    if message.header.ifindex != index.0 || message.header.state != NeighbourState::Permanent {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    });
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(octets) => MacAddress::from_octets(octets),
        _ => None,
    });
    Some(Entry::Neighbour(address?, mac?))
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
