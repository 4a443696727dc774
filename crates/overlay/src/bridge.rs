//! Bridge of a tenant network on this host, in a namespace of its own.

use crate::forwarding::{Devices, Entry};
use crate::link::{Changes, Index, Interface, Links, VethEnd, Vxlan};
use crate::namespace::Namespace;
use crate::{Errors, MacAddress};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The namespace of a network. Beside the endpoints' ports the bridge in it has a VXLAN device, where there are other hosts,
/// and attached interfaces of the host.
pub(crate) struct Bridge {
    namespace: Namespace,
    links: Links,
}

/// A network's knowledge of other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) entries: BTreeSet<Entry>,
    /// Whether every address there is known, so that frames for others need not go there.
    pub(crate) is_complete: bool,
}

impl Bridge {
    /// The network whose namespace is in `file`, made if there is none.
    pub(crate) fn ensure(file: &Path) -> io::Result<Self> {
        let namespace = Namespace::ensure(file)?;
        let mut links = Links::of(&namespace)?;
        links.apply(Changes::default().ensure_bridge(BRIDGE).silence(BRIDGE).set_up(BRIDGE))?;
        Ok(Self { namespace, links })
    }

    /// The network whose namespace is in `file`, if there is one.
    pub(crate) fn open(file: &Path) -> io::Result<Option<Self>> {
        let Some(namespace) = Namespace::open(file)? else { return Ok(None) };
        let links = Links::of(&namespace)?;
        Ok(Some(Self { namespace, links }))
    }

    /// Gives back all attached interfaces of the network in `file`, and removes all other ports: the kernel would do that later.
    /// Until then no other VXLAN device with the same number could be made, and given namespaces would keep their interface.
    pub(crate) fn dissolve(file: &Path) -> io::Result<()> {
        let Some(mut bridge) = Self::open(file)? else { return Ok(()) };
        let given_back =
            bridge.guests().and_then(|guests| Errors::all(guests.iter().map(|guest| bridge.hand_over(&guest.name))));
        // One that is no port yet too.
        Errors::all([given_back, bridge.remove_ports_but(&BTreeSet::new()), bridge.remove_port(VXLAN)])
    }

    /// Gives the bridge a port that leads to `end`, if it has none of that name.
    pub(crate) fn ensure_port(&mut self, name: &str, mtu: u32, end: VethEnd<'_>) -> io::Result<()> {
        match self.links.find(name)? {
            Some(_) => self.links.apply(Changes::default().set_up(name)),
            None => self.replace_port(name, mtu, end),
        }
    }

    /// Gives the bridge a port that leads to `end`; one of that name that leads elsewhere is removed.
    pub(crate) fn replace_port(&mut self, name: &str, mtu: u32, end: VethEnd<'_>) -> io::Result<()> {
        let bridge = self.index()?;
        self.links.apply(Changes::default().remove(name).add_veth(name, bridge, mtu, end).silence(name).set_up(name))
    }

    /// Whether there is a port of that name.
    pub(crate) fn has_port(&mut self, name: &str) -> io::Result<bool> {
        Ok(self.links.find(name)?.is_some())
    }

    /// Removes a port, if there is one of that name.
    pub(crate) fn remove_port(&mut self, name: &str) -> io::Result<()> {
        self.links.apply(Changes::default().remove(name))
    }

    /// Removes all ports that were made here but those named.
    pub(crate) fn remove_ports_but(&mut self, kept: &BTreeSet<String>) -> io::Result<()> {
        let ports = self.ports()?;
        let others = ports.iter().map(|port| &port.name).filter(|name| is_own(name) && !kept.contains(*name));
        let removal = others.fold(Changes::default(), |changes, name| changes.remove(name));
        self.links.apply_each(removal)
    }

    /// Gives the bridge its VXLAN device, whose own packets use the calling thread's namespace; returns whether it had none.
    pub(crate) fn ensure_vxlan(&mut self, vxlan: Vxlan) -> io::Result<bool> {
        let [bridge, existing] = self.links.find_each([BRIDGE, VXLAN])?;
        if existing.is_some() {
            return Ok(false);
        }
        let bridge = bridge.ok_or(io::ErrorKind::NotFound)?.index;
        let device = Changes::default().add_vxlan(VXLAN, vxlan, self.namespace.as_fd());
        Links::open()?.apply(device).map_err(|error| explain(error, vxlan.vni))?;
        // Neighbours behind the device of a router that has died: those of the VXLAN device itself went with it.
        let devices = Devices { bridge, vxlan: bridge };
        let stale = self.links.neighbours(bridge)?.into_iter();
        self.links.apply_each(stale.fold(Changes::default(), |changes, entry| changes.remove_entry(devices, entry)))?;
        self.links.apply(
            Changes::default().set_bridge(VXLAN, bridge).set_known_port(VXLAN, true).silence(VXLAN).set_up(VXLAN),
        )?;
        Ok(true)
    }

    /// Changes what is known of other hosts.
    pub(crate) fn reach(&mut self, before: &Remote, now: &Remote) -> io::Result<()> {
        let [bridge, vxlan] = self.links.find_each([BRIDGE, VXLAN])?;
        let index = |found: Option<Interface>| found.map(|interface| interface.index).ok_or(io::ErrorKind::NotFound);
        let devices = Devices { bridge: index(bridge)?, vxlan: index(vxlan)? };
        let gone = before.entries.difference(&now.entries);
        let removal = gone.fold(Changes::default(), |changes, gone| changes.remove_entry(devices, *gone));
        let new = now.entries.difference(&before.entries);
        let changed = self.links.apply_each(new.fold(removal, |changes, new| changes.add_entry(devices, *new)));
        Errors::all([changed, self.flood(now)])
    }

    /// Lets broadcast frames and those for unknown addresses go to other hosts where somebody may have them: behind attached
    /// interfaces, here or there, are machines that nobody has told of.
    pub(crate) fn flood(&mut self, remote: &Remote) -> io::Result<()> {
        if self.links.find(VXLAN)?.is_none() {
            return Ok(());
        }
        let is_flooded = !remote.is_complete || !self.guests()?.is_empty();
        self.links.apply(Changes::default().set_known_port(VXLAN, is_flooded))
    }

    /// The interfaces that were attached.
    pub(crate) fn guests(&mut self) -> io::Result<Vec<Interface>> {
        Ok(self.ports()?.into_iter().filter(|port| !is_own(&port.name)).collect())
    }

    /// Takes `interface` from the calling thread's namespace and makes it a port.
    pub(crate) fn take_in(&mut self, interface: &Interface) -> io::Result<()> {
        let name = &interface.name;
        Links::open()?.apply(Changes::default().move_to(name, self.namespace.as_fd()))?;
        let bridge = self.index();
        let joined =
            bridge.and_then(|bridge| self.links.apply(Changes::default().set_bridge(name, bridge).set_up(name)));
        joined.map_err(|error| Errors::join(error, self.hand_over(name)))
    }

    /// Gives the attached interface `name` back to the calling thread's namespace.
    pub(crate) fn give_back(&mut self, name: &str) -> io::Result<()> {
        if !self.guests()?.iter().any(|guest| guest.name == name) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "it is not attached: `rdmesh network ls` lists those that are",
            ));
        }
        self.hand_over(name)
    }

    /// Sets the MTU of all ports but the attached interfaces'. The bridge follows.
    pub(crate) fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        let own = self.own_ports()?;
        self.links.apply_each(own.iter().fold(Changes::default(), |changes, name| changes.set_mtu(name, mtu)))
    }

    /// The names of the ports that were made here.
    pub(crate) fn own_ports(&mut self) -> io::Result<BTreeSet<String>> {
        Ok(self.ports()?.into_iter().map(|port| port.name).filter(|name| is_own(name)).collect())
    }

    fn ports(&mut self) -> io::Result<Vec<Interface>> {
        let links = self.links.all()?;
        let Some(bridge) = links.iter().find(|link| link.name == BRIDGE).map(|link| link.index) else {
            return Ok(Vec::new());
        };
        Ok(links.into_iter().filter(|link| link.bridge == Some(bridge)).collect())
    }

    /// Its own MTU: the smallest of its ports, where it has some.
    pub(crate) fn mtu(&mut self) -> io::Result<u32> {
        Ok(self.links.find(BRIDGE)?.ok_or(io::ErrorKind::NotFound)?.mtu)
    }

    fn index(&mut self) -> io::Result<Index> {
        Ok(self.links.find(BRIDGE)?.ok_or(io::ErrorKind::NotFound)?.index)
    }

    fn hand_over(&mut self, name: &str) -> io::Result<()> {
        let home = Namespace::own()?;
        self.links.apply(Changes::default().move_to(name, home.as_fd()))?;
        Links::open()?.apply(Changes::default().set_up(name))
    }
}

/// Name of the bridge port that leads to the interface with `mac`: unique on its network, as the first address is.
pub(crate) fn port_name(mac: MacAddress) -> String {
    mac.octets().iter().fold(String::from(PORT_PREFIX), |name, byte| format!("{name}{byte:02x}"))
}

/// Whether a port is one that was made here.
fn is_own(name: &str) -> bool {
    let hex = name.strip_prefix(PORT_PREFIX).filter(|rest| rest.len() == 12);
    name == VXLAN || hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn explain(error: io::Error, vni: u32) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("this host has a VXLAN device with number {vni} already: choose another --vni")
        }
        io::ErrorKind::AddrInUse => "another program has UDP port 4789, which VXLAN needs".to_owned(),
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Prefix of the names of endpoints' bridge ports; 12 hexadecimal digits follow.
const PORT_PREFIX: &str = "v";
const BRIDGE: &str = "br0";
const VXLAN: &str = "vxlan0";
