//! Path check: how an endpoint, or its network, reaches an address.

use super::Finding;
use crate::failure::Failure;
use rdmesh_fabric::api::{EndpointInfo, Status};
use rdmesh_fabric::{Client, Name, Peer};
use rdmesh_overlay::Underlay;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUBJECT: &str = "path";
/// Of the tunnel between routers (RFC 8926).
const TUNNEL_PORT: u16 = 6081;
/// Of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// Datagrams that a port is asked by, and the time between them.
const PROBES: u32 = 4;
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// The kernel sends three ARP requests, a second apart.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// Findings about the path from the endpoint `name` of `net`, or from any other of it, to an address.
pub(crate) fn check(net: &Name, name: Option<&Name>, to: IpAddr, client: &Client) -> Result<Vec<Finding>, Failure> {
    let from = name.map(|name| client.endpoint(net, name)).transpose()?;
    let mut findings = Vec::new();
    if let Some(from) = &from
        && !from.endpoint.addresses.iter().any(|address| address.is_ipv4() == to.is_ipv4())
    {
        findings.push(Finding::fail(
            "endpoint",
            format!("{} has no address of the family of {to}", from.endpoint.name),
            "make it with one of each family: rdmesh run --ip ADDRESS --ip ADDRESS",
        ));
    }
    let (endpoints, peers) = (client.endpoints()?, client.peers()?.hosts);
    let holder = endpoints.iter().find(|info| has(info, to) && info.endpoint.network == *net);
    let host = peers.iter().find(|peer| peer.endpoints.iter().any(|e| e.network == *net && e.addresses.contains(&to)));
    if let Some(holder) = holder {
        findings
            .push(Finding::ok(SUBJECT, format!("{to} is endpoint {}, on this host; MTU 4096", holder.endpoint.name)));
    } else if let Some(host) = host {
        findings.extend(between_hosts(&client.status()?, host, to));
    } else {
        findings.extend(strangers(&endpoints, &peers, net, to));
        let namespace = from.or_else(|| endpoints.into_iter().find(|info| info.endpoint.network == *net));
        findings.push(outside(namespace.and_then(|info| info.namespace), net, to));
    }
    Ok(findings)
}

fn has(info: &EndpointInfo, address: IpAddr) -> bool {
    info.endpoint.addresses.contains(&address)
}

/// Whether this host can send to the router of another.
pub(crate) fn between_hosts(status: &Status, host: &Peer, to: IpAddr) -> Vec<Finding> {
    let place = format!("{to} is on host {}, whose router is at {}", host.name, host.address);
    let Some(own) = status.underlay else {
        let fix = "rdmesh down, and rdmesh up --underlay ADDRESS";
        return vec![Finding::fail(
            SUBJECT,
            format!("{place}, but this router has no address towards other hosts"),
            fix,
        )];
    };
    let room = match Underlay::find(own) {
        Ok(underlay) => Finding::ok(SUBJECT, format!("{place}; room for packets of {} bytes", underlay.tenant_mtu())),
        Err(error) => Finding::fail(SUBJECT, format!("{place}; {error}"), "see `rdmesh doctor`"),
    };
    vec![room, router_at(own, host)]
}

fn router_at(own: IpAddr, host: &Peer) -> Finding {
    let (subject, name, address) = ("other router", &host.name, host.address);
    match reach(address, TUNNEL_PORT).and_then(|()| probe(own, address, TUNNEL_PORT)) {
        Ok(()) => Finding::ok(subject, format!("{address} does not refuse UDP port {TUNNEL_PORT}")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Finding::fail(
            subject,
            format!("no router runs on {name}: {address} refuses UDP port {TUNNEL_PORT}"),
            format!("rdmesh up --underlay {address}, on {name}"),
        ),
        Err(error) => Finding::fail(
            subject,
            format!("{address} cannot be reached: {error}"),
            format!("ping {address}; is it still the address of {name}? (`rdmesh peer ls`)"),
        ),
    }
}

/// The endpoint that has the address in another network.
fn strangers(endpoints: &[EndpointInfo], peers: &[Peer], net: &Name, to: IpAddr) -> Option<Finding> {
    let here = endpoints.iter().find(|info| has(info, to)).map(|info| &info.endpoint.network);
    let there =
        || peers.iter().flat_map(|peer| &peer.endpoints).find(|e| e.addresses.contains(&to)).map(|e| &e.network);
    let other = here.or_else(there)?;
    Some(Finding::warn(
        SUBJECT,
        format!("{to} is an endpoint of network {other}, which {net} does not lead to"),
        format!("put both on one network: rdmesh run --net {other}"),
    ))
}

/// Path to an external machine, as far as IP shows.
fn outside(namespace: Option<PathBuf>, net: &Name, to: IpAddr) -> Finding {
    let unknown = format!("no endpoint of {net} has {to}, on this host or on those that it knows");
    let fix = format!(
        "is the address right? For an endpoint of another host: `rdmesh peer endpoint`. For a machine outside rdmesh: \
         `rdmesh network attach {net} INTERFACE`, with an interface that leads to it"
    );
    // A thread of its own, because it stays in the namespace.
    let asked = std::thread::spawn(move || ask_stranger(namespace.as_deref(), to)).join();
    match asked.unwrap_or_else(|_| Err(ErrorKind::Other.into())) {
        Ok(()) => {
            Finding::ok(SUBJECT, format!("{unknown}; a machine outside rdmesh has it, and does not refuse RoCEv2"))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Finding::fail(
            SUBJECT,
            format!("{unknown}; a machine outside rdmesh has it, but refuses RoCEv2 (UDP port {ROCE_PORT})"),
            "an RDMA device there: rdma link add rxe0 type rxe netdev INTERFACE",
        ),
        Err(error) if error.kind() == ErrorKind::HostUnreachable => {
            Finding::fail(SUBJECT, format!("{unknown}, and no machine outside rdmesh answers to it"), fix)
        }
        Err(error) => {
            Finding::fail(SUBJECT, format!("{unknown}, and there is no path to machines outside rdmesh: {error}"), fix)
        }
    }
}

/// Sends an empty datagram to a machine's RoCEv2 port, which is ignored there.
fn ask_stranger(namespace: Option<&Path>, to: IpAddr) -> io::Result<()> {
    if let Some(path) = namespace {
        move_into_link_name_space(File::open(path)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    reach(to, ROCE_PORT)?;
    probe(any, to, ROCE_PORT)
}

/// Whether a machine has the address, tested by TCP: UDP reports no error for an address without a machine.
fn reach(to: IpAddr, port: u16) -> io::Result<()> {
    match TcpStream::connect_timeout(&(to, port).into(), CONNECT_TIMEOUT) {
        // A refusal proves that there is a machine; silence proves nothing.
        Err(error) if !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::TimedOut) => Err(error),
        _ => Ok(()),
    }
}

/// Sends some empty datagrams; silence is success, for a closed port answers, though not each time: the kernel limits such answers, and
/// other senders may use them up (`net.ipv4.icmp_ratelimit`).
fn probe(from: IpAddr, to: IpAddr, port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
    socket.connect((to, port))?;
    for _ in 0..PROBES {
        socket.send(&[])?;
        match socket.recv(&mut [0]) {
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_an_open_port() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let open = UdpSocket::bind((local, 0)).unwrap();
        let port = open.local_addr().unwrap().port();
        probe(local, local, port).unwrap();
        drop(open);
        let error = probe(local, local, port).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
