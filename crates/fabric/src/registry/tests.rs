//! Tests of the registry: addresses, numbers and names.

use super::*;
use crate::SecurityGroup;
use crate::store::{Embedded, LeaseId, Watch};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn registry() -> Registry {
    Registry::new(Arc::new(Embedded::default()))
}

fn request(network: &str, name: &str, addresses: &[&str]) -> EndpointRequest {
    EndpointRequest {
        name: name.parse().unwrap(),
        network: network.parse().unwrap(),
        vni: None,
        host: "here".parse().unwrap(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation: Isolation::Namespace,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

fn add(registry: &Registry, network: &str, name: &str, addresses: &[&str]) -> Result<Vec<String>, RegistryError> {
    let added = registry.add_endpoint(request(network, name, addresses))?;
    Ok(added.endpoint.addresses.iter().map(IpAddr::to_string).collect())
}

#[test]
fn addresses_are_given_in_order_and_again_when_free() {
    let registry = registry();
    assert_eq!(add(&registry, "default", "a", &[]).unwrap(), ["10.77.0.2"]);
    assert_eq!(add(&registry, "default", "b", &["10.77.0.3"]).unwrap(), ["10.77.0.3"]);
    assert_eq!(add(&registry, "default", "c", &[]).unwrap(), ["10.77.0.4"]);
    registry.remove_endpoint(&"default".parse().unwrap(), &"a".parse().unwrap()).unwrap();
    assert_eq!(add(&registry, "default", "d", &[]).unwrap(), ["10.77.0.2"]);
}

/// Each knows a next address, which the other may have given away.
#[test]
fn two_routers_of_one_store_give_each_address_once() {
    let store = Arc::new(Embedded::default());
    let routers = [(); 2].map(|()| Registry::new(Arc::<Embedded>::clone(&store)));
    let mut given: Vec<String> =
        (0..20).flat_map(|n| add(&routers[n / 3 % 2], "default", &format!("e{n}"), &[]).unwrap()).collect();
    let expected: Vec<String> = (2..22).map(|n| format!("10.77.0.{n}")).collect();
    assert_eq!(given, expected);
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 20);
}

#[test]
fn an_address_below_those_of_others_is_left_for_a_gateway_when_it_is_given_back() {
    let registry = registry();
    add(&registry, "default", "gateway", &["10.77.0.1"]).unwrap();
    assert_eq!(add(&registry, "default", "a", &[]).unwrap(), ["10.77.0.2"]);
    registry.remove_endpoint(&"default".parse().unwrap(), &"gateway".parse().unwrap()).unwrap();
    assert_eq!(add(&registry, "default", "b", &[]).unwrap(), ["10.77.0.3"]);
}

/// A store that counts what it is asked for.
#[derive(Default)]
struct Counted {
    store: Embedded,
    commits: AtomicUsize,
    lists: AtomicUsize,
}

impl Counted {
    /// Commits and lists since the last call.
    fn take(&self) -> (usize, usize) {
        (self.commits.swap(0, Ordering::Relaxed), self.lists.swap(0, Ordering::Relaxed))
    }
}

impl LocalStore for Counted {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.store.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.store.list(prefix)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.store.commit(transaction)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease)
    }

    fn watch(&self, prefix: &str) -> Result<(Vec<Entry>, Box<dyn Watch>), StoreError> {
        self.store.watch(prefix)
    }

    fn watch_from(&self, prefix: &str, revision: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch_from(prefix, revision)
    }
}

/// Makes `e0`, `e1` and so on. `tests/tests/counts.rs` counts the instructions.
#[inline(never)]
fn counted_endpoints(registry: &Registry, count: usize) {
    for n in 0..count {
        add(registry, "default", &format!("e{n}"), &[]).unwrap();
    }
}

#[test]
fn a_thousand_endpoints_take_one_commit_each_and_no_search() {
    const COUNT: usize = 1000;
    let store = Arc::new(Counted::default());
    let registry = Registry::new(Arc::<Counted>::clone(&store));
    add(&registry, "default", "first", &[]).unwrap();
    store.take();
    counted_endpoints(&registry, COUNT);
    assert_eq!(store.take(), (COUNT, 0));
    for n in 0..COUNT {
        registry.remove_endpoint(&name("default"), &name(&format!("e{n}"))).unwrap();
    }
    assert_eq!(store.take(), (COUNT, 0));
    assert_eq!(add(&registry, "default", "last", &[]).unwrap(), ["10.77.0.3"]);
}

#[test]
fn endpoints_that_go_together_take_one_commit() {
    let store = Arc::new(Counted::default());
    let registry = Registry::new(Arc::<Counted>::clone(&store));
    add(&registry, "default", "first", &[]).unwrap();
    counted_endpoints(&registry, 50);
    store.take();
    // One was removed before, one never was there.
    registry.remove_endpoint(&name("default"), &name("e7")).unwrap();
    store.take();
    let names: Vec<Name> = (0..=50).map(|n| name(&format!("e{n}"))).collect();
    assert_eq!(registry.remove_endpoints(&name("default"), &names).unwrap().len(), 49);
    assert_eq!(store.take(), (1, 0));
    assert_eq!(registry.remove_endpoints(&name("default"), &names).unwrap(), []);
    assert_eq!(store.take(), (0, 0));
    assert_eq!(registry.endpoints().unwrap().len(), 1);
    assert_eq!(add(&registry, "default", "last", &[]).unwrap(), ["10.77.0.3"]);
}

#[test]
fn the_same_name_and_address_may_be_on_two_networks() {
    let registry = registry();
    assert_eq!(add(&registry, "blue", "a", &["10.7.0.2"]).unwrap(), ["10.7.0.2"]);
    assert_eq!(add(&registry, "red", "a", &["10.7.0.2"]).unwrap(), ["10.7.0.2"]);
    let vnis: Vec<u32> = registry.networks().unwrap().iter().map(|n| n.vni).collect();
    assert_eq!(vnis, [2, 3]);
    assert_eq!(add(&registry, "green", "a", &[]).unwrap(), ["10.80.0.2"]);
}

#[test]
fn what_is_taken_is_refused_and_nothing_leaks() {
    let registry = registry();
    add(&registry, "blue", "a", &["10.7.0.2"]).unwrap();
    assert!(matches!(add(&registry, "blue", "a", &[]), Err(RegistryError::EndpointExists { .. })));
    let taken = add(&registry, "blue", "b", &["10.7.0.2"]);
    assert!(matches!(taken, Err(RegistryError::AddressTaken { holder, .. }) if holder == "`a`"));
    for bad in ["10.8.0.2", "10.7.0.0", "10.7.0.255", "fd00::1"] {
        assert!(matches!(add(&registry, "blue", "b", &[bad]), Err(RegistryError::NotInNetwork { .. })), "{bad}");
    }
    let two = add(&registry, "blue", "b", &["10.7.0.3", "10.7.0.4"]);
    assert!(matches!(two, Err(RegistryError::TooManyAddresses)));
    assert_eq!(add(&registry, "blue", "b", &["10.7.0.3"]).unwrap(), ["10.7.0.3"]);
}

#[test]
fn an_endpoint_may_have_both_families() {
    let registry = registry();
    assert_eq!(add(&registry, "dual", "a", &["10.7.0.2", "fd00::2"]).unwrap(), ["10.7.0.2", "fd00::2"]);
    assert_eq!(add(&registry, "dual", "b", &[]).unwrap(), ["10.7.0.3", "fd00::3"]);
}

#[test]
fn a_full_network_says_so() {
    let registry = registry();
    add(&registry, "small", "first", &["10.7.0.1"]).unwrap();
    for n in 2..255 {
        add(&registry, "small", &format!("e{n}"), &[]).unwrap();
    }
    assert!(matches!(add(&registry, "small", "last", &[]), Err(RegistryError::NetworkFull(_))));
}

#[test]
fn racing_adds_get_different_addresses_and_one_network() {
    let registry = registry();
    let mut addresses: Vec<String> = thread::scope(|scope| {
        let adders: Vec<_> = (0..8)
            .map(|n| {
                let registry = &registry;
                scope.spawn(move || add(registry, "blue", &format!("e{n}"), &[]).unwrap().remove(0))
            })
            .collect();
        adders.into_iter().map(|t| t.join().unwrap()).collect()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 8);
    assert_eq!(registry.networks().unwrap().len(), 1);
    assert_eq!(registry.store.list(VNIS).unwrap().len(), 1);
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn host(registry: &Registry, host: &str, address: &str) -> Result<Revision, RegistryError> {
    registry.set_host(&crate::Host::new(name(host), address.parse().unwrap()))
}

fn at_peer(network: &str, vni: Option<u32>, addresses: &[&str]) -> crate::PeerEndpoint {
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    crate::PeerEndpoint { network: name(network), vni, addresses, link: None }
}

#[test]
fn addresses_of_other_hosts_are_taken_until_the_host_goes() {
    let registry = registry();
    host(&registry, "there", "192.0.2.2").unwrap();
    let remote = at_peer("blue", Some(7), &["10.7.0.2", "fd00::2"]);
    let added = registry.add_peer_endpoint(&name("there"), remote.clone()).unwrap();
    assert_eq!((added.network.vni, added.endpoint.host.as_str()), (7, "there"));
    assert!(registry.add_peer_endpoint(&name("there"), remote.clone()).is_ok());
    let taken = add(&registry, "blue", "a", &["10.7.0.2"]).unwrap_err().to_string();
    assert!(taken.contains("on host `there`"), "{taken}");
    assert_eq!(add(&registry, "blue", "a", &[]).unwrap(), ["10.7.0.3", "fd00::3"]);
    let local = registry.add_peer_endpoint(&name("there"), at_peer("blue", None, &["10.7.0.3"]));
    assert!(matches!(local, Err(RegistryError::AddressTaken { .. })), "{local:?}");
    assert_eq!(registry.peers(&name("here")).unwrap()[0].endpoints, [remote]);
    registry.remove_host(&name("there")).unwrap();
    assert_eq!(add(&registry, "blue", "b", &["10.7.0.2"]).unwrap(), ["10.7.0.2"]);
}

#[test]
fn a_network_keeps_its_number_and_no_other_gets_it() {
    let registry = registry();
    let with_vni = |network: &str, endpoint: &str, vni| {
        registry.add_endpoint(EndpointRequest { vni: Some(vni), ..request(network, endpoint, &[]) })
    };
    assert_eq!(with_vni("blue", "a", 7).unwrap().network.vni, 7);
    assert_eq!(with_vni("blue", "b", 7).unwrap().network.vni, 7);
    assert!(matches!(with_vni("blue", "c", 8), Err(RegistryError::VniDiffers { has: 7, asked: 8, .. })));
    assert!(matches!(with_vni("red", "c", 7), Err(RegistryError::VniTaken { .. })));
    assert!(matches!(with_vni("red", "c", 1), Err(RegistryError::VniTaken { .. })));
    assert!(matches!(with_vni("red", "c", 1 << 24), Err(RegistryError::InvalidVni(_))));
    for n in 0..6 {
        add(&registry, &format!("n{n}"), "a", &[]).unwrap();
    }
    let vnis: BTreeSet<u32> = registry.networks().unwrap().iter().map(|n| n.vni).collect();
    assert_eq!(vnis, (2..=8).collect());
}

#[test]
fn a_peers_network_that_is_new_needs_its_number() {
    let registry = registry();
    let add = |endpoint| registry.add_peer_endpoint(&name("there"), endpoint);
    assert!(matches!(add(at_peer("blue", Some(7), &["10.7.0.2"])), Err(RegistryError::NoSuchHost(_))));
    host(&registry, "there", "192.0.2.2").unwrap();
    assert!(matches!(add(at_peer("blue", None, &["10.7.0.2"])), Err(RegistryError::VniUnknown(_))));
    assert!(matches!(add(at_peer("blue", Some(7), &[])), Err(RegistryError::NoAddress)));
    assert_eq!(add(at_peer("default", None, &["10.77.0.2"])).unwrap().network.vni, 1);
    assert!(matches!(host(&registry, "third", "192.0.2.2"), Err(RegistryError::HostAddressTaken { .. })));
}

#[test]
fn a_topology_follows_the_registry() {
    let registry = registry();
    add(&registry, "blue", "a", &["10.7.0.2"]).unwrap();
    let mut watch = registry.watch().unwrap();
    host(&registry, "there", "192.0.2.2").unwrap();
    let added = registry.add_peer_endpoint(&name("there"), at_peer("blue", None, &["10.7.0.3"])).unwrap();
    assert!(watch.follow(std::time::Duration::ZERO).unwrap());
    assert!(watch.revision() >= added.revision);
    assert_eq!(watch.topology().endpoints().cloned().collect::<Vec<_>>(), registry.endpoints().unwrap());
    assert_eq!(watch.topology().hosts().count(), 1);
    registry.remove_host(&name("there")).unwrap();
    assert!(watch.follow(std::time::Duration::ZERO).unwrap());
    assert_eq!(watch.topology().endpoints().cloned().collect::<Vec<_>>(), registry.endpoints().unwrap());
    assert_eq!(watch.topology().hosts().count(), 0);
}

#[test]
fn waiting_is_ended_though_an_endpoint_of_a_pool_was_acquired_just_before() {
    let registry = registry();
    add(&registry, "blue", "fn-1", &[]).unwrap();
    let mut watch = registry.watch().unwrap();
    let by = Acquisition { owner: None, cgroup: None };
    registry.acquire(&name("blue"), &[name("fn-1")], &by).unwrap();
    watch.cancel()();
    let (begin, limit) = (Instant::now(), Duration::from_secs(20));
    assert!(!watch.follow(limit).unwrap() && begin.elapsed() < limit);
}

proptest! {
    /// After any adds and removes, each address claim belongs to a living endpoint that has the address, and no two share.
    #[test]
    fn claims_and_endpoints_agree(steps in prop::collection::vec((any::<bool>(), 0..5u8, prop::option::of(1..6u8)), 1..40)) {
        let registry = registry();
        for (is_add, name, address) in steps {
            let name = format!("e{name}");
            if is_add {
                let address = address.map(|a| format!("10.77.0.{a}"));
                let _ = add(&registry, "default", &name, address.as_deref().as_slice());
            } else {
                let _ = registry.remove_endpoint(&"default".parse().unwrap(), &name.parse().unwrap());
            }
            let claims: BTreeSet<(String, String)> = registry.store.list(ADDRESSES).unwrap().into_iter()
                .map(|e| (e.key, String::from_utf8(e.value).unwrap())).collect();
            let held: BTreeSet<(String, String)> = registry.endpoints().unwrap().iter()
                .flat_map(|e| e.addresses.iter().map(|&a| (address_key(&e.network, a), e.name.to_string()))).collect();
            prop_assert_eq!(claims, held);
        }
    }
}

#[test]
fn the_next_router_of_a_host_finds_its_endpoints_by_whatever_name() {
    let registry = registry();
    let (here, renamed): (Name, Name) = ("here".parse().unwrap(), "renamed".parse().unwrap());
    assert_eq!(registry.recover(&here).unwrap(), []);
    registry.set_host(&crate::Host::new(here, "192.0.2.1".parse().unwrap())).unwrap();
    add(&registry, "blue", "a", &["10.7.0.2"]).unwrap();
    let elsewhere = EndpointRequest { host: "there".parse().unwrap(), ..request("blue", "b", &["10.7.0.3"]) };
    registry.add_endpoint(elsewhere).unwrap();
    // Killed while it made a third.
    registry.claim("addresses/blue/10.7.0.4", "c").unwrap();
    registry.claim("vnis/9", "red").unwrap();
    let own = registry.recover(&renamed).unwrap();
    assert_eq!((own.len(), own[0].name.as_str(), &own[0].host), (1, "a", &renamed));
    assert_eq!(registry.hosts().unwrap(), []);
    assert_eq!(registry.endpoints().unwrap().len(), 2);
    assert!(add(&registry, "blue", "c", &["10.7.0.3"]).is_err());
    assert_eq!(add(&registry, "blue", "c", &["10.7.0.4"]).unwrap(), ["10.7.0.4"]);
    assert_eq!(registry.network(&"red".parse().unwrap(), Some(9), &[]).unwrap().vni, 9);
}

#[test]
fn a_network_of_the_cluster_is_taken_over_but_keeps_its_number() {
    let registry = registry();
    let cluster = Network { mtu: Some(1400), ..Network::around(name("blue"), 7, &["10.9.0.2".parse().unwrap()]) };
    registry.adopt_network(&cluster).unwrap();
    assert_eq!(add(&registry, "blue", "a", &[]).unwrap(), ["10.9.0.2"]);
    let changed = Network { mtu: None, ..cluster.clone() };
    registry.adopt_network(&changed).unwrap();
    assert_eq!(registry.networks().unwrap(), std::slice::from_ref(&changed));
    let other = Network { vni: 8, ..changed };
    assert!(matches!(registry.adopt_network(&other), Err(RegistryError::VniDiffers { has: 7, asked: 8, .. })));
    let double = Network { name: name("red"), ..cluster };
    assert!(matches!(registry.adopt_network(&double), Err(RegistryError::VniTaken { .. })));
}

#[test]
fn a_network_goes_when_nothing_is_on_it_and_its_number_is_free() {
    let registry = registry();
    let blue: Name = "blue".parse().unwrap();
    add(&registry, "blue", "a", &["10.7.0.5"]).unwrap();
    let vni = registry.network(&blue, None, &[]).unwrap().vni;
    let group = SecurityGroup {
        name: "db".parse().unwrap(),
        network: blue.clone(),
        members: BTreeSet::from(["a".parse().unwrap()]),
        allow_from: Vec::new(),
        allow_to: Vec::new(),
        covers_ip: false,
    };
    registry.set_group(&blue, &group.name, Some(&group)).unwrap();
    let refused = registry.remove_network(&blue).unwrap_err();
    assert!(refused.to_string().contains("still has endpoint `a`"), "{refused}");
    registry.remove_endpoint(&blue, &"a".parse().unwrap()).unwrap();
    // Its name is the beginning of another's.
    add(&registry, "blue2", "b", &[]).unwrap();
    registry.remove_network(&blue).unwrap();
    assert!(matches!(registry.remove_network(&blue), Err(RegistryError::NoSuchNetwork(_))));
    assert_eq!(registry.networks().unwrap().len(), 1);
    assert!(registry.groups(&blue).unwrap().groups.is_empty());
    let other = registry.network(&"other".parse().unwrap(), Some(vni), &[]).unwrap();
    assert_eq!(other.vni, vni);
}
