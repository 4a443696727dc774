//! Bridge of a tenant network on this host, in a namespace of its own.

use crate::MacAddress;
use crate::link::{Index, Interface, Links, VethEnd, Vxlan};
use crate::namespace::Namespace;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

/// The namespace of a network. Beside the endpoints' ports the bridge in it has a VXLAN device, where there are other hosts,
/// and attached interfaces of the host.
#[derive(Debug)]
pub(crate) struct Bridge(Namespace);

/// Forwarding entry of the VXLAN device to another host: frames for `mac`, or with [`MacAddress::ANY`] broadcast frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Remote {
    pub(crate) mac: MacAddress,
    pub(crate) host: IpAddr,
}

impl Bridge {
    /// The network whose namespace is in `file`, made if there is none.
    pub(crate) fn ensure(file: &Path) -> io::Result<Self> {
        let (namespace, _) = Namespace::ensure(file)?;
        namespace.run(|| {
            let mut links = Links::open()?;
            if links.find(BRIDGE)?.is_none() {
                links.add_bridge(BRIDGE)?;
            }
            let bridge = bridge(&mut links)?;
            links.set_up(bridge)
        })?;
        Ok(Self(namespace))
    }

    /// The network whose namespace is in `file`, if there is one.
    pub(crate) fn open(file: &Path) -> io::Result<Option<Self>> {
        Ok(Namespace::open(file)?.map(Self))
    }

    /// Gives back all attached interfaces of the network in `file`, and removes its VXLAN device: the kernel would do that
    /// later, and until then no other one with the same number could be made.
    pub(crate) fn dissolve(file: &Path) -> io::Result<()> {
        let Some(bridge) = Self::open(file)? else { return Ok(()) };
        let given_back = bridge.guests()?.iter().map(|guest| bridge.give_back(&guest.name)).fold(Ok(()), Result::and);
        given_back.and(bridge.remove_port(VXLAN))
    }

    /// Gives the bridge a port that leads to `end`, if it has none of that name.
    pub(crate) fn ensure_port(&self, name: &str, mtu: u32, end: VethEnd<'_>) -> io::Result<()> {
        self.0.run(|| {
            let mut links = Links::open()?;
            if links.find(name)?.is_none() {
                let bridge = bridge(&mut links)?;
                links.add_veth(name, bridge, mtu, end)?;
            }
            let port = links.find(name)?.ok_or(io::ErrorKind::NotFound)?;
            links.set_up(port)
        })
    }

    /// Removes a port, if there is one of that name.
    pub(crate) fn remove_port(&self, name: &str) -> io::Result<()> {
        self.0.run(|| Links::open()?.remove(name))
    }

    /// Removes all ports that were made here but those named.
    pub(crate) fn remove_ports_but(&self, kept: &BTreeSet<String>) -> io::Result<()> {
        let others: Vec<_> =
            self.ports()?.into_iter().filter(|port| is_own(&port.name) && !kept.contains(&port.name)).collect();
        self.0.run(|| {
            let mut links = Links::open()?;
            others.iter().try_for_each(|port| links.remove(&port.name))
        })
    }

    /// Gives the bridge its VXLAN device, whose own packets use the calling thread's namespace; returns whether it had none.
    pub(crate) fn ensure_vxlan(&self, vxlan: Vxlan) -> io::Result<bool> {
        if self.0.run(|| Links::open()?.find(VXLAN))?.is_some() {
            return Ok(false);
        }
        Links::open()?.add_vxlan(VXLAN, vxlan, self.0.as_fd()).map_err(|error| explain(error, vxlan.vni))?;
        self.0.run(|| {
            let mut links = Links::open()?;
            let bridge = bridge(&mut links)?;
            let device = links.find(VXLAN)?.ok_or(io::ErrorKind::NotFound)?;
            links.set_bridge(device, bridge)?;
            links.set_up(device)
        })?;
        Ok(true)
    }

    /// Changes the forwarding entries of the VXLAN device.
    pub(crate) fn reach(&self, before: &BTreeSet<Remote>, now: &BTreeSet<Remote>) -> io::Result<()> {
        self.0.run(|| {
            let mut links = Links::open()?;
            let device = links.find(VXLAN)?.ok_or(io::ErrorKind::NotFound)?;
            before.difference(now).try_for_each(|gone| links.remove_forwarding(device, gone.mac, gone.host))?;
            now.difference(before).try_for_each(|new| links.add_forwarding(device, new.mac, new.host))
        })
    }

    /// The interfaces that were attached.
    pub(crate) fn guests(&self) -> io::Result<Vec<Interface>> {
        Ok(self.ports()?.into_iter().filter(|port| !is_own(&port.name)).collect())
    }

    /// Takes `interface` from the calling thread's namespace and makes it a port.
    pub(crate) fn take_in(&self, interface: &Interface) -> io::Result<()> {
        Links::open()?.move_to(interface.index, self.0.as_fd())?;
        let joined = self.0.run(|| {
            let mut links = Links::open()?;
            let bridge = bridge(&mut links)?;
            let port = links.find(&interface.name)?.ok_or(io::ErrorKind::NotFound)?;
            links.set_bridge(port, bridge)?;
            links.set_up(port)
        });
        if joined.is_err() {
            // The first error is reported.
            let _ = self.hand_over(&interface.name);
        }
        joined
    }

    /// Gives the attached interface `name` back to the calling thread's namespace.
    pub(crate) fn give_back(&self, name: &str) -> io::Result<()> {
        if !self.guests()?.iter().any(|guest| guest.name == name) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "it is not attached: `rdmesh network ls` lists those that are",
            ));
        }
        self.hand_over(name)
    }

    /// Sets the MTU of all ports but the attached interfaces'. The bridge follows.
    pub(crate) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let ports = self.ports()?;
        self.0.run(|| {
            let mut links = Links::open()?;
            ports.iter().filter(|port| is_own(&port.name)).try_for_each(|port| links.set_mtu(port.index, mtu))
        })
    }

    fn ports(&self) -> io::Result<Vec<Interface>> {
        self.0.run(|| {
            let mut links = Links::open()?;
            let Some(bridge) = links.find(BRIDGE)? else { return Ok(Vec::new()) };
            Ok(links.all()?.into_iter().filter(|link| link.bridge == Some(bridge)).collect())
        })
    }

    fn hand_over(&self, name: &str) -> io::Result<()> {
        let home = Namespace::own()?;
        self.0.run(|| {
            let mut links = Links::open()?;
            let index = links.find(name)?.ok_or(io::ErrorKind::NotFound)?;
            links.move_to(index, home.as_fd())
        })?;
        let mut links = Links::open()?;
        let index = links.find(name)?.ok_or(io::ErrorKind::NotFound)?;
        links.set_up(index)
    }
}

fn bridge(links: &mut Links) -> io::Result<Index> {
    Ok(links.find(BRIDGE)?.ok_or(io::ErrorKind::NotFound)?)
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
pub(crate) const PORT_PREFIX: &str = "v";
const BRIDGE: &str = "br0";
const VXLAN: &str = "vxlan0";
