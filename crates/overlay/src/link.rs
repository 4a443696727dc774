//! Links and addresses of one network namespace.

use crate::MacAddress;
use crate::netlink::Netlink;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Links of the namespace that the calling thread is in when this is made.
pub(crate) struct Links(Netlink);

/// Index of an interface in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(u32);

/// Attributes of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: Index,
    pub(crate) mtu: u32,
    /// The bridge of which it is a port.
    pub(crate) bridge: Option<Index>,
}

/// The end of a veth pair that is in another namespace.
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: MacAddress,
    pub(crate) namespace: BorrowedFd<'a>,
}

/// A VXLAN device (RFC 7348).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vxlan {
    pub(crate) vni: u32,
    /// The address that its packets come from.
    pub(crate) local: IpAddr,
    pub(crate) mtu: u32,
}

/// `lo` is the first interface of every namespace.
pub(crate) const LOOPBACK: Index = Index(1);

impl Links {
    /// The links of the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Netlink::open().map(Self)
    }

    /// The interface `name`, if there is one.
    pub(crate) fn find(&mut self, name: &str) -> io::Result<Option<Index>> {
        let message = link(vec![LinkAttribute::IfName(name.to_owned())]);
        match self.0.request(RouteNetlinkMessage::GetLink(message), 0) {
            Ok(Some(RouteNetlinkMessage::NewLink(found))) => Ok(Some(Index(found.header.index))),
            Ok(_) => Ok(None),
            Err(error) if error.raw_os_error() == Some(ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All interfaces.
    pub(crate) fn all(&mut self) -> io::Result<Vec<Interface>> {
        let messages = self.0.dump(RouteNetlinkMessage::GetLink(link(Vec::new())))?;
        let described = messages.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(found) => Interface::read(&found),
            _ => None,
        });
        Ok(described.collect())
    }

    /// The interface that has `address`, if one has.
    pub(crate) fn holder_of(&mut self, address: IpAddr) -> io::Result<Option<Index>> {
        let messages = self.0.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let has_it = |message: &AddressMessage| {
            let own =
                |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Local(own) if *own == address);
            let other = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Local(_));
            let only =
                |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Address(own) if *own == address);
            // Where both are given, `Address` is the other end of a point-to-point link.
            let attributes = &message.attributes;
            attributes.iter().any(own) || (!attributes.iter().any(other) && attributes.iter().any(only))
        };
        let holder = messages.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewAddress(found) if has_it(&found) => Some(Index(found.header.index)),
            _ => None,
        });
        Ok(holder)
    }

    /// Makes the bridge `name`.
    pub(crate) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        self.create(link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ]))
    }

    /// Makes a veth pair: `name` here, a port of `bridge`, and the other end elsewhere.
    pub(crate) fn add_veth(&mut self, name: &str, bridge: Index, mtu: u32, end: VethEnd<'_>) -> io::Result<()> {
        let peer = link(vec![
            LinkAttribute::IfName(end.name.to_owned()),
            LinkAttribute::Address(end.mac.octets().to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(end.namespace.as_raw_fd()),
        ]);
        let info = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)));
        self.create(link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Controller(bridge.0),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), info]),
        ]))
    }

    /// Makes the VXLAN device `name` in `namespace`; its own packets use the namespace of this socket.
    pub(crate) fn add_vxlan(&mut self, name: &str, vxlan: Vxlan, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let local = match vxlan.local {
            IpAddr::V4(v4) => InfoVxlan::Local(v4),
            IpAddr::V6(v6) => InfoVxlan::Local6(v6),
        };
        let info = InfoData::Vxlan(vec![InfoVxlan::Id(vxlan.vni), local, InfoVxlan::Port(VXLAN_PORT)]);
        self.create(link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(vxlan.mtu),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(info)]),
        ]))
    }

    /// Makes a VXLAN device send frames for `mac` (all zero: broadcast and unknown addresses) to `host`.
    pub(crate) fn add_forwarding(&mut self, index: Index, mac: MacAddress, host: IpAddr) -> io::Result<()> {
        let message = forwarding(index, mac, host);
        self.0.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_APPEND).map(drop)
    }

    /// Takes back [`Links::add_forwarding`].
    pub(crate) fn remove_forwarding(&mut self, index: Index, mac: MacAddress, host: IpAddr) -> io::Result<()> {
        match self.0.request(RouteNetlinkMessage::DelNeighbour(forwarding(index, mac, host)), 0) {
            Err(error) if error.raw_os_error() == Some(ENOENT) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Makes an interface a port of `bridge`.
    pub(crate) fn set_bridge(&mut self, index: Index, bridge: Index) -> io::Result<()> {
        self.change(index, LinkAttribute::Controller(bridge.0))
    }

    /// Sets the largest packet that an interface takes.
    pub(crate) fn set_mtu(&mut self, index: Index, mtu: u32) -> io::Result<()> {
        self.change(index, LinkAttribute::Mtu(mtu))
    }

    /// Moves an interface to another namespace.
    pub(crate) fn move_to(&mut self, index: Index, namespace: BorrowedFd<'_>) -> io::Result<()> {
        self.change(index, LinkAttribute::NetNsFd(namespace.as_raw_fd()))
    }

    /// Removes the interface `name`, if there is one.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        let message = link(vec![LinkAttribute::IfName(name.to_owned())]);
        match self.0.request(RouteNetlinkMessage::DelLink(message), 0) {
            Err(error) if error.raw_os_error() == Some(ENODEV) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Switches an interface on.
    pub(crate) fn set_up(&mut self, index: Index) -> io::Result<()> {
        let mut message = link(Vec::new());
        message.header.index = index.0;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.0.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Gives an interface an address, if it does not have it.
    pub(crate) fn set_address(&mut self, index: Index, address: IpNet) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index.0;
        message.header.prefix_len = address.prefix_len();
        message.header.family = if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.attributes = vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
        if let IpNet::V4(v4) = address {
            message.attributes.push(AddressAttribute::Broadcast(v4.broadcast()));
        } else {
            // Addresses are unique by assignment; without this one could not be used for the first second.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.0.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
    }

    fn change(&mut self, index: Index, attribute: LinkAttribute) -> io::Result<()> {
        let mut message = link(vec![attribute]);
        message.header.index = index.0;
        self.0.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    fn create(&mut self, message: LinkMessage) -> io::Result<()> {
        self.0.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }
}

impl Interface {
    fn read(message: &LinkMessage) -> Option<Self> {
        let name = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
        let mtu = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })?;
        let bridge = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Controller(bridge) => Some(Index(*bridge)),
            _ => None,
        });
        Some(Self { name, index: Index(message.header.index), mtu, bridge })
    }
}

/// An entry of a VXLAN device's table. The kernel neither forgets it nor lets a received packet change it.
fn forwarding(index: Index, mac: MacAddress, host: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index.0;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    let host = match host {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    message.attributes =
        vec![NeighbourAttribute::LinkLayerAddress(mac.octets().to_vec()), NeighbourAttribute::Destination(host)];
    message
}

fn link(attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = attributes;
    message
}

/// The port that IANA gave to VXLAN; the kernel's own default is an older one.
const VXLAN_PORT: u16 = 4789;
const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
