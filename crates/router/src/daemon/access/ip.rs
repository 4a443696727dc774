//! Security groups that cover IP, worked out as filters of the networks' bridges.

use ipnet::IpNet;
use rdmesh_fabric::{Counterpart, Endpoint, Name, NetworkGroups, Rule, SecurityGroup, Topology};
use rdmesh_overlay::{Allowed, Guarded};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// The endpoints of the host `own` whose IP is filtered, by network.
pub(in crate::daemon) fn guarded(topology: &Topology, own: &Name) -> BTreeMap<Name, Vec<Guarded>> {
    let covers_ip = |groups: &&NetworkGroups| groups.groups.iter().any(|group| group.covers_ip);
    let networks = topology.groups().filter(|(_, groups)| covers_ip(groups));
    networks
        .map(|(network, groups)| (network.clone(), Members::new(topology, &network, groups, own).guarded()))
        .collect()
}

/// Endpoints of a network, and its groups.
struct Members<'a> {
    own: Vec<&'a Endpoint>,
    groups: &'a [SecurityGroup],
    /// Addresses of all endpoints that groups may name.
    addresses: HashMap<&'a Name, &'a [IpAddr]>,
}

impl<'a> Members<'a> {
    fn new(topology: &'a Topology, network: &Name, groups: &'a NetworkGroups, own: &Name) -> Self {
        let here = topology.endpoints().filter(|endpoint| endpoint.network == *network && endpoint.host == *own);
        let here: Vec<&Endpoint> = here.collect();
        let elsewhere = groups.addresses.iter().map(|(name, addresses)| (name, addresses.as_slice()));
        let addresses = here.iter().map(|endpoint| (&endpoint.name, endpoint.addresses.as_slice()));
        Self { addresses: elsewhere.chain(addresses).collect(), own: here, groups: &groups.groups }
    }

    /// Those of this host that have an interface, and are in a group that covers IP: then all of their groups count.
    fn guarded(&self) -> Vec<Guarded> {
        let guarded = self.own.iter().filter(|endpoint| endpoint.isolation.has_interface()).filter_map(|endpoint| {
            let groups: Vec<&SecurityGroup> =
                self.groups.iter().filter(|group| group.members.contains(&endpoint.name)).collect();
            let allowed = |rules: fn(&SecurityGroup) -> &Vec<Rule>| {
                groups.iter().flat_map(|group| rules(group)).map(|rule| self.allowed(rule)).collect()
            };
            groups.iter().any(|group| group.covers_ip).then(|| Guarded {
                endpoint: (*endpoint).clone(),
                from: allowed(|group| &group.allow_from),
                to: allowed(|group| &group.allow_to),
            })
        });
        guarded.collect()
    }

    fn allowed(&self, rule: &Rule) -> Allowed {
        let of = |name: &Name| self.addresses.get(name).copied().unwrap_or_default().iter().copied().map(IpNet::from);
        let members = |group: &SecurityGroup| group.members.iter().flat_map(of).collect::<Vec<_>>();
        let peers = match &rule.peer {
            Counterpart::Any => None,
            Counterpart::Range(range) => Some(vec![*range]),
            Counterpart::Endpoint(name) => Some(of(name).collect()),
            Counterpart::Group(name) => {
                let group = self.groups.iter().find(|group| group.name == *name);
                Some(group.map(members).unwrap_or_default())
            }
        };
        Allowed { peers, ports: rule.ports() }
    }
}
