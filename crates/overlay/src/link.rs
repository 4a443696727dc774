//! Links and addresses of one network namespace.

use crate::MacAddress;
use crate::netlink::Netlink;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Links of the namespace that the calling thread is in when this is made.
pub(crate) struct Links(Netlink);

/// Index of an interface in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(u32);

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

    /// Makes the bridge `name`.
    pub(crate) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        self.create(link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ]))
    }

    /// Makes a veth pair: `name` here, a port of `bridge`, and `peer` with address `mac` in `peer_namespace`.
    pub(crate) fn add_veth(
        &mut self,
        name: &str,
        bridge: Index,
        peer: &str,
        mac: MacAddress,
        peer_namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let peer = link(vec![
            LinkAttribute::IfName(peer.to_owned()),
            LinkAttribute::Address(mac.octets().to_vec()),
            LinkAttribute::NetNsFd(peer_namespace.as_raw_fd()),
        ]);
        let info = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)));
        self.create(link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Controller(bridge.0),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), info]),
        ]))
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

    fn create(&mut self, message: LinkMessage) -> io::Result<()> {
        self.0.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }
}

fn link(attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = attributes;
    message
}

const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
