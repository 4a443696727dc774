//! Filters of tenant networks: which endpoints of this host take connections by IP, and begin them, and with whom.
//!
//! The rules are in a table of nftables in the network's own namespace, which no tenant enters, at the bridge that all IP of the
//! network passes. They keep no state, as some kernels have no connection tracking for bridges: of TCP they hold the packet that
//! begins a connection, of other protocols packets in both directions. An endpoint of which nothing is said is not filtered.

use crate::MacAddress;
use crate::bridge::port_name;
use crate::firewall::{FirewallError, nft};
use ipnet::IpNet;
use rdmesh_fabric::Endpoint;
use std::fmt::Write;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// An endpoint of this host whose IP is filtered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guarded {
    /// The endpoint, known by its port at the bridge, or in a pool by its addresses.
    pub endpoint: Endpoint,
    /// Connections that it takes.
    pub from: Vec<Allowed>,
    /// Connections that it begins.
    pub to: Vec<Allowed>,
}

/// Connections that are allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// Addresses of the other side; none: all.
    pub peers: Option<Vec<IpNet>>,
    /// Ports of the side that is connected to.
    pub ports: RangeInclusive<u16>,
}

/// A filter of a network, as `nft -f` reads it. The empty one removes what was there before.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Filter(String);

impl Filter {
    /// The filter for these endpoints.
    pub(crate) fn new(guarded: &[Guarded]) -> Self {
        if guarded.is_empty() {
            return Self::default();
        }
        let mut chains = String::new();
        for (index, endpoint) in guarded.iter().enumerate() {
            let incoming = chain(&endpoint.from, &endpoint.to, "saddr");
            let outgoing = chain(&endpoint.to, &endpoint.from, "daddr");
            let _ = write!(chains, "  chain to_{index} {{\n{incoming}  }}\n  chain from_{index} {{\n{outgoing}  }}\n");
        }
        Self(format!(
            "table bridge {TABLE} {{\n{chains}  chain forward {{\n    type filter hook forward priority 0; policy accept;\n{PASSING}{}{}  }}\n}}\n",
            jumps(guarded, &Side { port: "oifname", address: "daddr", chain: "to" }),
            jumps(guarded, &Side { port: "iifname", address: "saddr", chain: "from" }),
        ))
    }

    /// Puts it into force in the calling thread's network namespace, in place of the one before, in one step.
    pub(crate) fn apply(&self) -> Result<(), FirewallError> {
        nft(&["-f", "-"], &format!("add table bridge {TABLE}\ndelete table bridge {TABLE}\n{}", self.0)).map(drop)
    }
}

/// Rules for packets between an endpoint and others, whose address is in the field `peer`: those of connections that `begun` allows the
/// sender to begin, and answers to those that `answered` allows the receiver to begin.
fn chain(begun: &[Allowed], answered: &[Allowed], peer: &str) -> String {
    let begun = begun.iter().map(|allowed| (allowed, "", &["tcp dport", "udp dport"][..]));
    let answered = answered.iter().map(|allowed| (allowed, "meta l4proto != tcp ", &["udp sport"][..]));
    let mut rules = String::new();
    for (allowed, all_ports, fields) in begun.chain(answered) {
        for peers in matches(allowed, peer) {
            // A text takes all that is written to it.
            let mut rule = |what: &str| {
                let _ = writeln!(rules, "    {peers}{what}return");
            };
            if allowed.ports == ALL {
                rule(all_ports);
                continue;
            }
            let (first, last) = (allowed.ports.start(), allowed.ports.end());
            fields.iter().for_each(|field| rule(&format!("{field} {first}-{last} ")));
            // Errors, such as of the path's MTU.
            rule("meta l4proto { icmp, ipv6-icmp } ");
        }
    }
    rules.push_str("    counter drop\n");
    rules
}

/// Expressions that match the other sides, one for each family.
fn matches(allowed: &Allowed, peer: &str) -> Vec<String> {
    let Some(peers) = &allowed.peers else { return vec![String::new()] };
    // Ranges within others, which a set would refuse.
    let (v4, v6): (Vec<IpNet>, Vec<IpNet>) =
        IpNet::aggregate(peers).into_iter().partition(|range| range.addr().is_ipv4());
    let family = |family: &str, ranges: Vec<IpNet>| {
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| format!("{family} {peer} {{ {} }} ", texts.join(", ")))
    };
    [family("ip", v4), family("ip6", v6)].into_iter().flatten().collect()
}

/// Side of a packet that an endpoint is on.
struct Side {
    /// Expression for the bridge's port there.
    port: &'static str,
    /// Field with the address there.
    address: &'static str,
    /// Beginning of the names of the endpoints' chains.
    chain: &'static str,
}

/// Jumps to the chains of endpoints: by their port at the bridge, or by their addresses where others of a pool share the port.
fn jumps(guarded: &[Guarded], side: &Side) -> String {
    let Side { port, address, chain } = side;
    let of = |key: fn(&Endpoint) -> Vec<String>| {
        let jump = |(index, guarded): (usize, &Guarded)| {
            key(&guarded.endpoint).into_iter().map(move |key| format!("{key} : jump {chain}_{index}"))
        };
        guarded.iter().enumerate().flat_map(jump).collect::<Vec<String>>()
    };
    let map = |selector: String, jumps: Vec<String>| match jumps.is_empty() {
        true => String::new(),
        false => format!("    {selector} vmap {{ {} }}\n", jumps.join(", ")),
    };
    map((*port).to_owned(), of(port_of))
        + &map(format!("ip {address}"), of(|endpoint| shared_addresses(endpoint, IpAddr::is_ipv4)))
        + &map(format!("ip6 {address}"), of(|endpoint| shared_addresses(endpoint, IpAddr::is_ipv6)))
}

/// The port that an endpoint has for itself. What comes through it is its, whatever addresses it names.
fn port_of(endpoint: &Endpoint) -> Vec<String> {
    let is_own = endpoint.pool.is_none();
    is_own.then(|| format!("\"{}\"", port_name(MacAddress::of(endpoint.link())))).into_iter().collect()
}

/// Addresses of an endpoint that shares its port.
fn shared_addresses(endpoint: &Endpoint, is_wanted: fn(&IpAddr) -> bool) -> Vec<String> {
    let addresses = endpoint.addresses.iter().filter(|address| endpoint.pool.is_some() && is_wanted(address));
    addresses.map(ToString::to_string).collect()
}

const TABLE: &str = "rdmesh";
const ALL: RangeInclusive<u16> = 0..=u16::MAX;
/// Packets that pass in any case: ARP and the discovery of neighbours, those of TCP connections that have begun, and fragments behind
/// the first, which are nothing without it. Nothing else passes that is not IP.
const PASSING: &str = "    ether type arp accept
    ether type != { ip, ip6 } drop
    icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept
    tcp flags & (syn | ack) != syn accept
    ip frag-off & 0x1fff != 0 accept
";

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use rdmesh_fabric::{InterfaceName, Isolation, Labels, PoolMember, Quota};

    fn endpoint(addresses: &[&str], pool: bool) -> Endpoint {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Endpoint {
            name: "e".parse().unwrap(),
            network: "blue".parse().unwrap(),
            host: "here".parse().unwrap(),
            pool: pool.then(|| PoolMember { name: "p".parse().unwrap(), link: addresses[0] }),
            addresses,
            quota: Quota::default(),
            allowed_uid: None,
            owner_pid: None,
            isolation: Isolation::Namespace,
            interface: InterfaceName::default(),
            labels: Labels::default(),
        }
    }

    fn guarded() -> Vec<Guarded> {
        let allowed = |peers: Option<&[&str]>, ports| Allowed {
            peers: peers.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect()),
            ports,
        };
        let some = ["10.7.0.3/32", "10.7.0.0/24", "fd00::3/128"];
        vec![
            Guarded {
                endpoint: endpoint(&["10.7.0.2", "fd00::2"], false),
                from: vec![allowed(Some(&some), 6379..=6380), allowed(None, 22..=22)],
                to: Vec::new(),
            },
            Guarded {
                endpoint: endpoint(&["10.7.0.4", "fd00::4"], true),
                from: vec![allowed(Some(&[]), ALL)],
                to: vec![allowed(None, ALL)],
            },
        ]
    }

    #[test]
    fn each_endpoint_has_chains_for_both_directions() {
        let Filter(text) = Filter::new(&guarded());
        let port = port_name(MacAddress::of("10.7.0.2".parse().unwrap()));
        assert!(text.contains(&format!("oifname vmap {{ \"{port}\" : jump to_0 }}")), "{text}");
        // One that shares its port is known by its addresses.
        assert!(text.contains("ip daddr vmap { 10.7.0.4 : jump to_1 }"), "{text}");
        assert!(text.contains("ip6 saddr vmap { fd00::4 : jump from_1 }"), "{text}");
        assert!(text.contains("ip saddr { 10.7.0.0/24 } tcp dport 6379-6380 return"), "{text}");
        assert!(text.contains("ip6 daddr { fd00::3/128 } udp sport 6379-6380 return"), "{text}");
        assert_eq!(text.matches("counter drop").count(), 4, "{text}");
        assert_eq!(Filter::new(&[]), Filter::default());
    }

    #[test]
    fn the_kernel_takes_them_and_gives_them_up() {
        let test = || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err()
                || matches!(Filter::default().apply(), Err(FirewallError::NoProgram))
            {
                return println!("skipped: needs root and nftables");
            }
            let listed = || nft(&["list", "ruleset"], "").unwrap();
            for _ in 0..2 {
                Filter::new(&guarded()).apply().unwrap();
                assert_eq!(listed().matches("counter packets 0 bytes 0 drop").count(), 4);
            }
            Filter::default().apply().unwrap();
            assert_eq!(listed(), "");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
