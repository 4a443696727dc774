//! Security groups, worked out as access rules between addresses, for the workers and rdma_cm.
//!
//! Endpoints that are in the same groups, and that the same rules name, are one class: there are few, however many endpoints.

mod ip;

pub(super) use ip::guarded;

use crate::endpoint::gid_table;
use ipnet::IpNet;
use rdmesh_fabric::{Counterpart, Endpoint, Groups, Name, NetworkGroups, Rule, SecurityGroup, Topology};
use rdmesh_nic::{AccessRules, ClassRules, Grant, Peers};
use rdmesh_verbs::{Gid, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Adds the access rules of all networks, on the host `own`.
pub(super) fn add_rules(rules: &mut AccessRules, topology: &Topology, own: &Name) {
    let guarded: HashMap<Name, &NetworkGroups> = topology.groups().collect();
    if guarded.is_empty() {
        return;
    }
    let mut endpoints: HashMap<&Name, Vec<&Endpoint>> = HashMap::new();
    topology.endpoints().for_each(|endpoint| endpoints.entry(&endpoint.network).or_default().push(endpoint));
    for network in topology.networks() {
        if let Some(groups) = guarded.get(&network.name) {
            let endpoints = endpoints.remove(&network.name).unwrap_or_default();
            add_network(rules, Vni(network.vni), groups, &endpoints, own);
        }
    }
}

/// Mark of the endpoints of one class: the groups that they are in, and the other sides of rules that they are.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    groups: Vec<&'a Name>,
    named: BTreeSet<&'a Counterpart>,
}

fn add_network(rules: &mut AccessRules, vni: Vni, known: &NetworkGroups, endpoints: &[&Endpoint], own: &Name) {
    let groups = Groups::new(&known.groups);
    let counterparts = groups.counterparts();
    let mut kinds: BTreeMap<Kind<'_>, Vec<Gid>> = BTreeMap::new();
    for endpoint in endpoints {
        // Other hosts' endpoints have names of their addresses here.
        let elsewhere = endpoint.addresses.first().filter(|_| endpoint.host != *own);
        let name = elsewhere.and_then(|address| known.name_of(*address)).unwrap_or(&endpoint.name);
        let named = counterparts.iter().filter(|peer| groups.names(peer, name, &endpoint.addresses)).copied().collect();
        let kind = Kind { groups: groups.of(name).map(|group| &group.name).collect(), named };
        kinds.entry(kind).or_default().extend(gid_table(endpoint).into_iter().filter(|gid| !gid.is_zero()));
    }
    let classes = Classes { first: rules.classes(), kinds: kinds.keys().collect() };
    let of_kinds: Vec<_> = kinds.keys().map(|kind| classes.rules_of(kind, &known.groups)).collect();
    for (of_kind, gids) in of_kinds.into_iter().zip(kinds.values()) {
        let class = rules.add_class(of_kind);
        gids.iter().for_each(|gid| rules.assign(vni, *gid, class));
    }
}

/// The classes of a network, by number from `first` on.
struct Classes<'a> {
    first: u32,
    kinds: Vec<&'a Kind<'a>>,
}

impl Classes<'_> {
    /// None for a class in no group.
    fn rules_of(&self, kind: &Kind<'_>, groups: &[SecurityGroup]) -> Option<ClassRules> {
        let of_kind = || groups.iter().filter(|group| kind.groups.contains(&&group.name));
        let grants = |side: fn(&SecurityGroup) -> &Vec<Rule>| {
            of_kind().flat_map(side).flat_map(|rule| self.grants(rule)).collect()
        };
        let (to, from) = (grants(|group| &group.allow_to), grants(|group| &group.allow_from));
        (!kind.groups.is_empty()).then_some(ClassRules { to, from })
    }

    fn grants(&self, rule: &Rule) -> Vec<Grant> {
        let peers = match &rule.peer {
            Counterpart::Any => vec![Peers::Any],
            peer => {
                let numbered = (self.first..).zip(&self.kinds);
                let named = numbered.filter(|(_, kind)| kind.named.contains(peer)).map(|(class, _)| class).collect();
                let range = if let Counterpart::Range(range) = peer { Some(external(range)) } else { None };
                [Peers::Classes(named)].into_iter().chain(range).collect()
            }
        };
        peers.into_iter().map(|peers| Grant { peers, ports: rule.ports() }).collect()
    }
}

/// The external peers of a range.
fn external(range: &IpNet) -> Peers {
    Peers::Range(Gid::from_ip(range.network()), Gid::from_ip(range.broadcast()))
}

#[cfg(test)]
mod tests;
