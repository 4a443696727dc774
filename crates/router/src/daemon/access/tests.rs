//! The rules between addresses against the words of the groups, for random groups and endpoints.

use super::*;
use proptest::prelude::*;
use rdmesh_fabric::store::{Embedded, LocalStore};
use rdmesh_fabric::{EndpointRequest, Host, InterfaceName, Isolation, Labels, PeerEndpoint, Quota, Registry};
use rdmesh_overlay::{Allowed, Guarded};
use std::sync::Arc;

/// Endpoints `e0` to `e5`; the even ones are on this host.
const COUNT: u8 = 6;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn address(n: u8) -> std::net::IpAddr {
    [10, 7, 0, n + 2].into()
}

fn rule() -> impl Strategy<Value = String> {
    let peer = prop_oneof![
        Just("any".to_owned()),
        (0..3).prop_map(|n| format!("group/g{n}")),
        (0..COUNT).prop_map(|n| format!("endpoint/e{n}")),
        (0..COUNT, 29..=32_u8).prop_map(|(n, len)| IpNet::new(address(n), len).unwrap().trunc().to_string()),
    ];
    let ports = prop_oneof![Just(String::new()), (0..4_u8, 0..4_u8).prop_map(|(a, b)| format!("@{}-{}", a, a + b))];
    (peer, ports).prop_map(|(peer, ports)| peer + &ports)
}

/// Members of a group, and its rules in both directions.
type Parts = (BTreeSet<u8>, Vec<String>, Vec<String>);

fn groups() -> impl Strategy<Value = Vec<SecurityGroup>> {
    let members = proptest::collection::btree_set(0..COUNT, 0..4);
    let rules = || proptest::collection::vec(rule(), 0..3);
    let group = (members, rules(), rules());
    proptest::collection::vec(group, 1..4).prop_map(|groups| {
        let rules = |texts: Vec<String>| texts.iter().map(|text| text.parse().unwrap()).collect();
        let group = |(n, (members, from, to)): (usize, Parts)| SecurityGroup {
            name: name(&format!("g{n}")),
            network: name("blue"),
            members: members.into_iter().map(|n| name(&format!("e{n}"))).collect(),
            allow_from: rules(from),
            allow_to: rules(to),
            covers_ip: false,
        };
        groups.into_iter().enumerate().map(group).collect()
    })
}

/// Meaning of the groups' text, rule by rule.
fn says(groups: &[SecurityGroup], from: u8, to: u8, port: u16) -> bool {
    let side = |own: u8, other: u8, rules: fn(&SecurityGroup) -> &Vec<Rule>| {
        let mut own_groups = groups.iter().filter(|group| group.members.contains(&name(&format!("e{own}")))).peekable();
        let other_name = name(&format!("e{other}"));
        let is_meant = |rule: &Rule| match &rule.peer {
            Counterpart::Any => true,
            Counterpart::Group(group) => {
                groups.iter().any(|known| known.name == *group && known.members.contains(&other_name))
            }
            Counterpart::Endpoint(endpoint) => *endpoint == other_name,
            Counterpart::Range(range) => range.contains(&address(other)),
        };
        let grants = |rule: &Rule| is_meant(rule) && rule.ports().contains(&port);
        own_groups.peek().is_none() || own_groups.any(|group| rules(group).iter().any(grants))
    };
    side(from, to, |group| &group.allow_to) && side(to, from, |group| &group.allow_from)
}

fn request(name: Name, addresses: Vec<std::net::IpAddr>) -> EndpointRequest {
    EndpointRequest {
        name,
        network: "blue".parse().unwrap(),
        vni: Some(7),
        host: "here".parse().unwrap(),
        addresses,
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation: Isolation::Namespace,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

/// A registry with the endpoints, those of the other host by their addresses, and the groups of their network.
fn topology(groups: &[SecurityGroup]) -> Topology {
    let registry = Registry::new(Arc::new(Embedded::default()) as Arc<dyn LocalStore>);
    registry.set_host(&Host::new(name("there"), [192, 0, 2, 2].into())).unwrap();
    let mut others = Vec::new();
    for n in 0..COUNT {
        let (own, addresses) = (name(&format!("e{n}")), vec![address(n)]);
        if n.is_multiple_of(2) {
            registry.add_endpoint(request(own, addresses)).unwrap();
        } else {
            let peer = PeerEndpoint { network: name("blue"), vni: Some(7), addresses, link: None };
            others.push(Endpoint { name: own, ..registry.add_peer_endpoint(&name("there"), peer).unwrap().endpoint });
        }
    }
    registry.set_groups(&name("blue"), &NetworkGroups::new(groups.to_vec(), &others)).unwrap();
    registry.watch().unwrap().topology().clone()
}

proptest! {
    #[test]
    fn addresses_are_kept_apart_as_the_groups_say(groups in groups()) {
        let mut rules = AccessRules::new(1);
        add_rules(&mut rules, &topology(&groups), &name("here"));
        for (from, to) in (0..COUNT).flat_map(|a| (0..COUNT).map(move |b| (a, b))) {
            let (a, b) = (Gid::from_ip(address(from)), Gid::from_ip(address(to)));
            for port in 0..8 {
                let expected = says(&groups, from, to, port);
                prop_assert_eq!(rules.may_connect(Vni(7), a, b, port), expected, "e{} to e{}:{}", from, to, port);
            }
            let some = (0..9).any(|port| says(&groups, from, to, port));
            prop_assert_eq!(rules.may_begin(Vni(7), a, b), some, "e{} to e{}", from, to);
        }
    }
}

#[test]
fn other_networks_and_other_addresses_of_an_endpoint_follow() {
    let group = SecurityGroup {
        name: name("g"),
        network: name("blue"),
        members: [name("e0")].into(),
        allow_from: vec!["10.9.0.0/24".parse().unwrap()],
        allow_to: Vec::new(),
        covers_ip: false,
    };
    let mut rules = AccessRules::new(1);
    add_rules(&mut rules, &topology(&[group]), &name("here"));
    let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
    let may_begin = |vni, from: &str, to: &str| rules.may_begin(Vni(vni), gid(from), gid(to));
    assert!(!may_begin(7, "10.7.0.3", "fe80::52:aff:fe07:2"), "its link-local address is no way around");
    assert!(may_begin(7, "10.9.0.77", "10.7.0.2"), "an external peer");
    assert!(!may_begin(7, "10.10.0.77", "10.7.0.2") && !may_begin(7, "10.7.0.2", "10.9.0.77"));
    assert!(may_begin(8, "10.7.0.2", "10.7.0.3"));
}

#[test]
fn ip_is_filtered_for_own_members_with_interfaces_as_all_of_their_groups_say() {
    let group = |n: u8, members: &[u8], from: &str, covers_ip| SecurityGroup {
        name: name(&format!("g{n}")),
        network: name("blue"),
        members: members.iter().map(|n| name(&format!("e{n}"))).collect(),
        allow_from: vec![from.parse().unwrap()],
        allow_to: Vec::new(),
        covers_ip,
    };
    let groups = [group(0, &[0, 1], "group/g1@7", true), group(1, &[0, 1, 2], "10.9.0.0/24", false)];
    let topology = topology(&groups);
    let found = guarded(&topology, &name("here")).remove(&name("blue")).unwrap();
    let peers = |n: &[u8]| Some(n.iter().map(|n| address(*n).into()).collect());
    let expected = Guarded {
        endpoint: topology.endpoints().find(|endpoint| endpoint.name == name("e0")).unwrap().clone(),
        from: vec![
            Allowed { peers: peers(&[0, 1, 2]), ports: 7..=7 },
            Allowed { peers: Some(vec!["10.9.0.0/24".parse().unwrap()]), ports: 0..=u16::MAX },
        ],
        to: Vec::new(),
    };
    assert_eq!(found, [expected]);
    assert_eq!(guarded(&topology, &name("elsewhere"))[&name("blue")], []);
}

/// The rules of a network with one group of which every second endpoint is a member.
fn of_endpoints(count: u16) -> Topology {
    let registry = Registry::new(Arc::new(Embedded::default()) as Arc<dyn LocalStore>);
    for n in 0..count {
        registry.add_endpoint(request(name(&format!("e{n}")), Vec::new())).unwrap();
    }
    let group = SecurityGroup {
        name: name("g"),
        network: name("blue"),
        members: (0..count).step_by(2).map(|n| name(&format!("e{n}"))).collect(),
        allow_from: vec!["any".parse().unwrap()],
        allow_to: vec!["group/g".parse().unwrap()],
        covers_ip: false,
    };
    registry.set_groups(&name("blue"), &NetworkGroups::new(vec![group], &[])).unwrap();
    registry.watch().unwrap().topology().clone()
}

/// `tests/tests/counts.rs` counts the instructions.
#[inline(never)]
fn counted_rules(topology: &Topology) -> AccessRules {
    let mut rules = AccessRules::new(1);
    add_rules(&mut rules, topology, &name("here"));
    rules
}

#[test]
fn rules_of_10_endpoints() {
    assert_eq!(counted_rules(&of_endpoints(10)).classes(), 2);
}

#[test]
fn rules_of_1000_endpoints() {
    assert_eq!(counted_rules(&of_endpoints(1000)).classes(), 2);
}
