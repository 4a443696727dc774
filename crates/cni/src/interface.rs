//! A container's interface, as it is in its network namespace.

use crate::outcome::Interface;
use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::SockaddrStorage;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Opens a namespace's file.
pub(crate) fn open_namespace(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reads interface `name` of a namespace; none where it has no such interface.
pub(crate) fn read(namespace: &OwnedFd, name: &str) -> io::Result<Option<Interface>> {
    // By a thread that goes there: this one, and the programs that it starts, stay where they are.
    std::thread::scope(|scope| scope.spawn(|| read_inside(namespace, name)).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread that reads it has ended")))
}

fn read_inside(namespace: &OwnedFd, name: &str) -> io::Result<Option<Interface>> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let all: Vec<_> = getifaddrs()?.filter(|entry| entry.interface_name == name).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let mac = all.iter().find_map(|entry| Some(entry.address?.as_link_addr()?.to_string()));
    let mtu = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/mtu")).ok();
    Ok(Some(Interface {
        name: name.to_owned(),
        mac: mac.map(|mac| mac.to_lowercase()),
        mtu: mtu.and_then(|mtu| mtu.trim().parse().ok()),
        addresses: all.iter().filter_map(address).filter(|address| !is_link_local(address.addr())).collect(),
    }))
}

fn address(entry: &InterfaceAddress) -> Option<IpNet> {
    let (address, mask) = (ip(entry.address.as_ref()?)?, ip(entry.netmask.as_ref()?)?);
    IpNet::with_netmask(address, mask).ok()
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

/// Addresses that the kernel gives to each interface by itself.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
