//! A virtual machine in an endpoint's namespace, which has the endpoint's addresses in place of the namespace.

use crate::MacAddress;
use crate::link::{Changes, Index, Links};
use ipnet::IpNet;
use std::io;
use std::net::IpAddr;

/// The network of a virtual machine on an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestNetwork {
    /// The link-layer address that its interface must have.
    pub mac: MacAddress,
    /// Addresses that it must give its interface.
    pub addresses: Vec<IpNet>,
    /// Largest packet of its interface, in bytes.
    pub mtu: u32,
}

impl GuestNetwork {
    /// Takes the endpoint's addresses from the interface that has `address` in the calling thread's namespace, and makes the
    /// interface the port of a bridge, of which the virtual machine's is to be another.
    pub fn take(address: IpAddr) -> io::Result<Self> {
        let mut links = Links::open()?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no interface has {address}"));
        let index = links.holder_of(address)?.ok_or_else(missing)?;
        let uplink = links.all()?.into_iter().find(|interface| interface.index == index).ok_or_else(missing)?;
        let mac = uplink.mac.ok_or_else(missing)?;
        let addresses: Vec<IpNet> =
            links.addresses_of(index)?.into_iter().filter(|found| !is_link_local(found.addr())).collect();
        links.apply(
            Changes::default().ensure_bridge(BRIDGE).silence(BRIDGE).set_mtu(BRIDGE, uplink.mtu).set_up(BRIDGE),
        )?;
        let bridge = links.find(BRIDGE)?.ok_or_else(missing)?.index;
        let changes = links
            .addresses_of(index)?
            .into_iter()
            .fold(Changes::default(), |changes, found| changes.remove_address(index, found));
        links.apply(changes.set_mac(&uplink.name, MacAddress::UPLINK).set_bridge(&uplink.name, bridge))?;
        Ok(Self { mac, addresses, mtu: uplink.mtu })
    }

    /// Makes the interface `name`, which the machine monitor has made, a port of the bridge. Returns whether it was there.
    pub fn join(&self, name: &str) -> io::Result<bool> {
        let mut links = Links::open()?;
        let [bridge, port] = links.find_each([BRIDGE, name])?;
        let (Some(bridge), Some(_)) = (bridge, port) else { return Ok(false) };
        links.apply(
            Changes::default().silence(name).set_mtu(name, self.mtu).set_bridge(name, bridge.index).set_up(name),
        )?;
        Ok(true)
    }
}

impl Links {
    /// The addresses of an interface.
    fn addresses_of(&mut self, index: Index) -> io::Result<Vec<IpNet>> {
        self.addresses().map(|all| all.into_iter().filter(|(of, _)| *of == index).map(|(_, net)| net).collect())
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

const BRIDGE: &str = "rdmesh-vm";
