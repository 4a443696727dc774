//! Links and addresses of one network namespace.

use crate::namespace::Namespace;
use crate::netlink::{Answer, Netlink, Refusal, Request};
use crate::{Errors, MacAddress};
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Links of one namespace.
pub(crate) struct Links(Netlink);

/// Changes of links, in order. They go to the kernel together, which tries each whatever became of those before it.
#[derive(Default)]
#[must_use]
pub(crate) struct Changes<'a> {
    changes: Vec<Change>,
    /// Requests name open files by their numbers.
    descriptors: PhantomData<BorrowedFd<'a>>,
}

struct Change {
    action: String,
    request: Request,
    /// The errno that says that nothing is to be done.
    needless: Option<i32>,
}

/// Index of an interface in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(pub(crate) u32);

/// Attributes of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: Index,
    pub(crate) mtu: u32,
    pub(crate) mac: Option<MacAddress>,
    /// The bridge of which it is a port.
    pub(crate) bridge: Option<Index>,
}

/// The end of a veth pair that is in another namespace.
#[derive(Clone, Copy)]
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

    /// The links of `namespace`.
    pub(crate) fn of(namespace: &Namespace) -> io::Result<Self> {
        namespace.run(Self::open)
    }

    /// The interface `name`, if there is one.
    pub(crate) fn find(&mut self, name: &str) -> io::Result<Option<Interface>> {
        self.find_each([name]).map(|[found]| found)
    }

    /// The interfaces of these names, as far as they are there.
    pub(crate) fn find_each<const N: usize>(&mut self, names: [&str; N]) -> io::Result<[Option<Interface>; N]> {
        let requests = names.map(|name| Request::new(RouteNetlinkMessage::GetLink(named(name, Vec::new())), 0));
        let mut answers = self.0.execute(requests.into())?.into_iter();
        let mut found = [const { None }; N];
        for (found, name) in found.iter_mut().zip(names) {
            *found = answers.next().map_or(Ok(None), |answer| found_in(answer, name))?;
        }
        Ok(found)
    }

    /// All interfaces.
    pub(crate) fn all(&mut self) -> io::Result<Vec<Interface>> {
        let messages = self.list(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(messages.iter().filter_map(interface).collect())
    }

    /// The interface that has `address`, if one has.
    pub(crate) fn holder_of(&mut self, address: IpAddr) -> io::Result<Option<Index>> {
        let messages = self.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
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

    /// All addresses, each with its interface.
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<(Index, IpNet)>> {
        let messages = self.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let address = |message| {
            let RouteNetlinkMessage::NewAddress(message) = message else { return None };
            let own = |attribute: &AddressAttribute| match attribute {
                AddressAttribute::Local(own) | AddressAttribute::Address(own) => Some(*own),
                _ => None,
            };
            let local = |attribute: &&AddressAttribute| matches!(attribute, AddressAttribute::Local(_));
            let attributes = &message.attributes;
            let address = attributes.iter().find(local).and_then(own).or_else(|| attributes.iter().find_map(own))?;
            Some((Index(message.header.index), IpNet::new(address, message.header.prefix_len).ok()?))
        };
        Ok(messages.into_iter().filter_map(address).collect())
    }

    /// Makes `changes` that build on each other. The error is the first one, as those after it may be its consequences.
    pub(crate) fn apply(&mut self, changes: Changes<'_>) -> io::Result<()> {
        self.make(changes)?.into_iter().collect()
    }

    /// Makes `changes` that are independent of each other. The error is that of all that failed.
    pub(crate) fn apply_each(&mut self, changes: Changes<'_>) -> io::Result<()> {
        Errors::all(self.make(changes)?)
    }

    fn make(&mut self, changes: Changes<'_>) -> io::Result<Vec<io::Result<()>>> {
        let requests = changes.changes.iter().map(|change| change.request.clone()).collect();
        let answers = self.0.execute(requests)?;
        let made = |(change, answer): (Change, Answer)| match answer {
            Err(refusal) if change.needless != Some(refusal.code) => Err(refused(Some(&change.action), &refusal)),
            _ => Ok(()),
        };
        Ok(changes.changes.into_iter().zip(answers).map(made).collect())
    }

    /// All objects of the kind that `message` names. Unreadable ones are left out.
    pub(crate) fn list(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        let answers = self.0.execute(vec![Request::dump(message)])?.into_iter();
        let lists = answers.collect::<Result<Vec<_>, _>>().map_err(|refusal| refused(None, &refusal))?;
        Ok(lists.into_iter().flatten().flatten().collect())
    }
}

impl<'a> Changes<'a> {
    /// Makes the bridge `name`, if there is none.
    pub(crate) fn ensure_bridge(self, name: &str) -> Self {
        // Without an address of its own it would take the lowest one of its ports; as these come and go it would then forget its
        // neighbours.
        let address = LinkAttribute::Address(MacAddress::BRIDGE.octets().to_vec());
        let message = named(name, vec![address, LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)])]);
        let request = Request::new(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL);
        self.with(format!("making bridge `{name}`"), request, Some(EEXIST))
    }

    /// Makes a veth pair: `name` here, a port of `bridge`, and the other end elsewhere.
    pub(crate) fn add_veth(self, name: &str, bridge: Index, mtu: u32, end: VethEnd<'a>) -> Self {
        let peer = named(
            end.name,
            vec![
                LinkAttribute::Address(end.mac.octets().to_vec()),
                LinkAttribute::Mtu(mtu),
                LinkAttribute::NetNsFd(end.namespace.as_raw_fd()),
            ],
        );
        let info = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)));
        let attributes = vec![
            LinkAttribute::Controller(bridge.0),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), info]),
        ];
        self.create(format!("making interfaces `{name}` and `{}`", end.name), named(name, attributes))
    }

    /// Makes the VXLAN device `name` in `namespace`; its own packets use the namespace of the socket.
    pub(crate) fn add_vxlan(self, name: &str, vxlan: Vxlan, namespace: BorrowedFd<'a>) -> Self {
        let local = match vxlan.local {
            IpAddr::V4(v4) => InfoVxlan::Local(v4),
            IpAddr::V6(v6) => InfoVxlan::Local6(v6),
        };
        // Only the overlay says where an address is: neither a late frame nor a forged one may teach the device another place.
        let learning = InfoVxlan::Learning(false);
        let info = InfoData::Vxlan(vec![InfoVxlan::Id(vxlan.vni), local, InfoVxlan::Port(VXLAN_PORT), learning]);
        let attributes = vec![
            LinkAttribute::Mtu(vxlan.mtu),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(info)]),
        ];
        self.create(format!("making VXLAN device `{name}`"), named(name, attributes))
    }

    /// Makes an interface a port of `bridge`.
    pub(crate) fn set_bridge(self, name: &str, bridge: Index) -> Self {
        self.change(format!("adding `{name}` to the bridge"), named(name, vec![LinkAttribute::Controller(bridge.0)]))
    }

    /// Sets the largest packet that the interface `name` takes.
    pub(crate) fn set_mtu(self, name: &str, mtu: u32) -> Self {
        self.change(format!("setting the MTU of `{name}`"), named(name, vec![LinkAttribute::Mtu(mtu)]))
    }

    /// Keeps the kernel from giving the interface `name` an IPv6 address when it is switched on: the host's end of a network has
    /// nothing to say there.
    pub(crate) fn silence(self, name: &str) -> Self {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let attribute = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
        self.change(format!("keeping `{name}` without an IPv6 address"), named(name, vec![attribute]))
    }

    /// Gives the interface `name` another link-layer address.
    pub(crate) fn set_mac(self, name: &str, mac: MacAddress) -> Self {
        let attribute = LinkAttribute::Address(mac.octets().to_vec());
        self.change(format!("changing the address of `{name}`"), named(name, vec![attribute]))
    }

    /// Moves the interface `name` to another namespace.
    pub(crate) fn move_to(self, name: &str, namespace: BorrowedFd<'a>) -> Self {
        let attribute = LinkAttribute::NetNsFd(namespace.as_raw_fd());
        self.change(format!("moving `{name}` to another namespace"), named(name, vec![attribute]))
    }

    /// Removes the interface `name`, if there is one.
    pub(crate) fn remove(self, name: &str) -> Self {
        let request = Request::new(RouteNetlinkMessage::DelLink(named(name, Vec::new())), 0);
        self.with(format!("removing `{name}`"), request, Some(ENODEV))
    }

    /// Switches the interface `name` on.
    pub(crate) fn set_up(self, name: &str) -> Self {
        let mut message = named(name, Vec::new());
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(format!("switching `{name}` on"), message)
    }

    /// Gives an interface an address, if it does not have it.
    pub(crate) fn set_address(self, index: Index, address: IpNet) -> Self {
        let mut message = address_message(index, address);
        if let IpNet::V4(v4) = address {
            // The broadcast address of one address would be this one itself.
            let broadcast = (v4.prefix_len() < 31).then(|| AddressAttribute::Broadcast(v4.broadcast()));
            message.attributes.extend(broadcast);
        } else {
            // Addresses are unique by assignment; without this one could not be used for the first second.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let request = Request::new(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE);
        self.with(format!("adding address {address}"), request, None)
    }

    /// Takes an address from an interface, if it has it.
    pub(crate) fn remove_address(self, index: Index, address: IpNet) -> Self {
        let request = Request::new(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0);
        self.with(format!("removing address {address}"), request, Some(EADDRNOTAVAIL))
    }

    fn change(self, action: String, message: LinkMessage) -> Self {
        self.with(action, Request::new(RouteNetlinkMessage::SetLink(message), 0), None)
    }

    fn create(self, action: String, message: LinkMessage) -> Self {
        self.with(action, Request::new(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL), None)
    }

    /// Adds a request for `action`, whose refusal with the errno `needless` says that nothing is to be done.
    pub(crate) fn with(mut self, action: String, request: Request, needless: Option<i32>) -> Self {
        self.changes.push(Change { action, request, needless });
        self
    }
}

fn address_message(index: Index, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index.0;
    message.header.prefix_len = address.prefix_len();
    message.header.family = if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.attributes = vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}

/// The interface in the answer to a question for `name`.
fn found_in(answer: Answer, name: &str) -> io::Result<Option<Interface>> {
    match answer {
        Ok(objects) => Ok(objects.into_iter().collect::<io::Result<Vec<_>>>()?.iter().find_map(interface)),
        Err(refusal) if refusal.code == ENODEV => Ok(None),
        Err(refusal) => Err(refused(Some(&format!("looking for `{name}`")), &refusal)),
    }
}

fn interface(message: &RouteNetlinkMessage) -> Option<Interface> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let (mut name, mut mtu, mut mac, mut bridge) = (None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(own) => name = Some(own.clone()),
            LinkAttribute::Mtu(own) => mtu = Some(*own),
            LinkAttribute::Address(own) => mac = MacAddress::from_octets(own),
            LinkAttribute::Controller(own) => bridge = Some(Index(*own)),
            _ => {}
        }
    }
    Some(Interface { name: name?, index: Index(message.header.index), mtu: mtu?, mac, bridge })
}

/// A refusal as an error of the kind that its errno has.
fn refused(action: Option<&str>, refusal: &Refusal) -> io::Error {
    let kind = io::Error::from_raw_os_error(refusal.code).kind();
    let text = action.map_or_else(|| refusal.to_string(), |action| format!("{action}: {refusal}"));
    io::Error::new(kind, text)
}

/// A message about the interface `name`.
pub(crate) fn named(name: &str, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    message.attributes.extend(attributes);
    message
}

/// The port that IANA gave to VXLAN; the kernel's own default is an older one.
const VXLAN_PORT: u16 = 4789;
const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
const EADDRNOTAVAIL: i32 = rustix::io::Errno::ADDRNOTAVAIL.raw_os_error();
const EEXIST: i32 = rustix::io::Errno::EXIST.raw_os_error();
