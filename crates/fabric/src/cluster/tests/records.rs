//! Tests of records, of addresses in plain order, and of views.

use super::*;
use crate::{Counterpart, Policy, PolicyScope, PublicKey, Rate, Rotated, SecurityGroup, Tenant};
use std::collections::BTreeSet;
use std::net::IpAddr;

fn shared() -> (Time, Arc<dyn Store>) {
    let time = Time::default();
    let store = Arc::new(time.store());
    (time, store)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn networks_have_numbers_of_their_own_and_tenants_their_limits() {
    run(async {
        let cluster = Cluster::new(shared().1);
        let one = Tenant { max_networks: Some(1), ..Tenant::new(name("t")) };
        cluster.set_tenant(&one).await.unwrap();
        let first = cluster.network_or_new(&name("a"), &name("t"), &[]).await.unwrap();
        assert_eq!(cluster.network_or_new(&name("a"), &name("t"), &[]).await.unwrap(), first);
        let second = cluster.network_or_new(&name("b"), &name("t"), &[]).await;
        assert_eq!(second, Err(ClusterError::TooManyNetworks(name("t"))));
        let other = cluster.network_or_new(&name("b"), &name("u"), &[]).await.unwrap();
        assert_ne!(other.vni, first.vni);
        let taken = Network { name: name("c"), ..other.clone() };
        let holder = ClusterError::VniTaken { vni: other.vni, holder: "b".into() };
        assert_eq!(cluster.add_network(&taken).await, Err(holder));
        let invalid = cluster.add_network(&Network { mtu: Some(1), ..taken }).await.unwrap_err();
        assert_eq!(invalid.to_string(), "`mtu`: must be at least 1280, as IPv6 demands");
        cluster.remove_network(&name("b")).await.unwrap();
        assert_eq!(cluster.network(&name("b")).await, Ok(None));
        assert_eq!(cluster.add_network(&other).await, Ok(other));
    });
}

#[test]
fn hosts_give_addresses_of_their_own_blocks_also_while_the_store_is_away() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/24");
        let (a, b) = (join(&store, &time, 0).await, join(&store, &time, 1).await);
        let range = network.subnets[0];
        let mut given = BTreeSet::new();
        for member in [&a, &b, &a] {
            for _ in 0..6 {
                assert!(given.insert(member.take(&network, range).await.unwrap()));
            }
        }
        assert_eq!(given.first().unwrap().to_string(), "10.7.0.2");
        time.pass(Duration::from_secs(55));
        assert_eq!(a.take(&network, range).await, Err(ClusterError::Lapsed));
        time.pass(Duration::from_secs(6));
        assert_eq!(b.renew().await, Ok(Renewal::Anew));
        let mut given = BTreeSet::new();
        for _ in 0..22 {
            given.insert(b.take(&network, range).await.unwrap());
        }
        // Also what was fresh in the blocks that were this host's.
        assert_eq!(a.renew().await, Ok(Renewal::Anew));
        assert!(given.insert(a.take(&network, range).await.unwrap()));
        assert_eq!(given.len(), 23);
    });
}

#[test]
fn an_endpoint_keeps_its_address_on_another_host_and_others_wait_for_it() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/24");
        let (a, b) = (join(&store, &time, 0).await, join(&store, &time, 1).await);
        let first = a.take(&network, network.subnets[0]).await.unwrap();
        let on_a = endpoint(a.host(), "web", first);
        a.publish(&network, &on_a).await.unwrap();
        let taken = b.take_exactly(&network, &name("web"), first).await;
        assert!(matches!(taken, Err(ClusterError::AddressTaken { .. })), "{taken:?}");
        a.release(&on_a).await.unwrap();
        assert!(b.take_exactly(&network, &name("other"), first).await.is_err(), "it rests");
        b.take_exactly(&network, &name("web"), first).await.unwrap();
        let on_b = endpoint(b.host(), "web", first);
        b.publish(&network, &on_b).await.unwrap();
        let double = a.publish(&network, &on_a).await;
        assert!(matches!(double, Err(ClusterError::Elsewhere { .. })), "{double:?}");
        b.release(&on_b).await.unwrap();
        time.pass(Duration::from_secs(21));
        for member in [&a, &b] {
            member.renew().await.unwrap();
        }
        b.take_exactly(&network, &name("other"), first).await.unwrap();
        // What the host has not given away itself is nobody else's.
        let fresh = b.take_exactly(&network, &name("x"), address("10.7.0.5")).await.unwrap_err();
        assert!(fresh.to_string().contains("a block of host `h0`"), "{fresh}");
        // The gateway's is given by nobody, but can be asked for.
        b.take_exactly(&network, &name("gateway"), address("10.7.0.1")).await.unwrap();
        assert!(a.take_exactly(&network, &name("x"), address("10.7.0.1")).await.is_err());
        assert!(a.take_exactly(&network, &name("x"), address("10.7.0.255")).await.is_err());
    });
}

#[test]
fn addresses_that_were_given_back_are_given_again_after_their_rest() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/29");
        let a = join(&store, &time, 0).await;
        let range = network.subnets[0];
        let mut living = Vec::new();
        while let Ok(address) = a.take(&network, range).await {
            let endpoint = endpoint(a.host(), &format!("e{}", living.len()), address);
            a.publish(&network, &endpoint).await.unwrap();
            living.push(endpoint);
        }
        assert_eq!(living.len(), 5, "8, without network, gateway and broadcast");
        a.release(&living[2]).await.unwrap();
        assert_eq!(a.take(&network, range).await, Err(ClusterError::NetworkFull(name("blue"))));
        for _ in 0..3 {
            time.pass(Duration::from_secs(8));
            a.renew().await.unwrap();
        }
        assert_eq!(a.take(&network, range).await, Ok(living[2].addresses[0]));
    });
}

#[test]
fn a_reserve_is_filled_up_and_leaves_a_block_to_others() {
    run(async {
        let (time, store) = shared();
        // 32 blocks of 8.
        let network = network("10.7.0.0/24");
        let range = network.subnets[0];
        let stocked = join_with(&store, &time, 0, Terms { reserve: 20, ..terms() }).await;
        let blocks = async || store.list(&keys::blocks(&network.name), None).await.unwrap().entries.len();
        stocked.stock(&network).await.unwrap();
        assert_eq!(blocks().await, 3);
        stocked.stock(&network).await.unwrap();
        assert_eq!(blocks().await, 3, "it is full");
        for _ in 0..5 {
            stocked.take(&network, range).await.unwrap();
        }
        stocked.stock(&network).await.unwrap();
        assert_eq!(blocks().await, 4);
        let greedy = join_with(&store, &time, 1, Terms { reserve: 4096, ..terms() }).await;
        greedy.stock(&network).await.unwrap();
        assert_eq!(blocks().await, 31);
        let other = join(&store, &time, 2).await;
        other.stock(&network).await.unwrap();
        assert_eq!(blocks().await, 31, "nothing is kept by default");
        other.take(&network, range).await.unwrap();
        assert_eq!(blocks().await, 32);
    });
}

#[test]
fn an_address_that_the_store_was_not_told_of_stays_its_hosts() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/29");
        let (a, b) = (join(&store, &time, 0).await, join(&store, &time, 1).await);
        let range = network.subnets[0];
        let untold = a.take(&network, range).await.unwrap();
        let told = endpoint(a.host(), "told", a.take(&network, range).await.unwrap());
        a.publish(&network, &told).await.unwrap();
        a.release(&told).await.unwrap();
        for _ in 0..3 {
            time.pass(Duration::from_secs(8));
            a.renew().await.unwrap();
        }
        // The other address of the block is made fresh, and given again.
        assert_eq!(a.take(&network, range).await, Ok(told.addresses[0]));
        let taken = b.take_exactly(&network, &name("x"), untold).await;
        assert!(matches!(taken, Err(ClusterError::AddressTaken { .. })), "{taken:?}");
    });
}

#[test]
fn the_endpoints_of_a_host_that_dies_go_and_its_addresses_rest() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/29");
        let (a, b) = (join(&store, &time, 0).await, join(&store, &time, 1).await);
        let mut follower = Follower::of_network(b.cluster().clone(), &name("blue"));
        b.cluster().add_network(&network).await.unwrap();
        let first = a.take(&network, network.subnets[0]).await.unwrap();
        a.publish(&network, &endpoint(a.host(), "web", first)).await.unwrap();
        follower.follow().await.unwrap();
        assert_eq!(follower.view().placed().map(|(_, host)| host.address).collect::<Vec<_>>(), [a.host().address]);
        drop(a);
        time.pass(Duration::from_secs(9));
        b.renew().await.unwrap();
        time.pass(Duration::from_secs(2));
        follower.follow().await.unwrap();
        assert_eq!((follower.view().placed().count(), follower.view().hosts().count()), (0, 0));
        assert!(b.take_exactly(&network, &name("web"), first).await.is_err());
        for _ in 0..6 {
            time.pass(Duration::from_secs(9));
            b.renew().await.unwrap();
        }
        b.take_exactly(&network, &name("web"), first).await.unwrap();
        assert!(b.cluster().hosts().await.unwrap().iter().eq([b.host()]));
    });
}

#[test]
fn a_host_has_one_router() {
    run(async {
        let (time, store) = shared();
        let local: Arc<Embedded> = Arc::new(time.store());
        let again = |local: &Arc<Embedded>| {
            let (cluster, local) = (Cluster::new(Arc::clone(&store)), Arc::<Embedded>::clone(local));
            Member::join(cluster, local, time.clock(), terms(), host(0))
        };
        assert_eq!(again(&local).await.unwrap().1, Renewal::Anew);
        assert_eq!(again(&local).await.unwrap().1, Renewal::Kept);
        let double = again(&Arc::new(time.store())).await.err();
        assert_eq!(double, Some(ClusterError::Exists { what: "host", name: "h0".into() }));
    });
}

#[test]
fn followers_of_a_network_see_the_same_whatever_they_missed() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/24");
        let a = join(&store, &time, 0).await;
        let cluster = a.cluster();
        cluster.add_network(&network).await.unwrap();
        let mut steady = Follower::of_network(cluster.clone(), &name("blue"));
        steady.follow().await.unwrap();
        let mut late = Follower::of_network(cluster.clone(), &name("blue"));
        late.follow().await.unwrap();
        let group = SecurityGroup {
            name: name("g"),
            network: name("blue"),
            members: [name("web")].into(),
            allow_from: vec![Counterpart::Any.into()],
            allow_to: Vec::new(),
            covers_ip: false,
        };
        let scope = PolicyScope::Endpoint { network: name("blue"), name: name("web") };
        let policy = Policy { rate: Some(Rate::bits(1_000_000)), ..Policy::default() };
        cluster.set_group(&group).await.unwrap();
        steady.follow().await.unwrap();
        cluster.set_policy(&scope, Some(&policy)).await.unwrap();
        steady.follow().await.unwrap();
        let first = a.take(&network, network.subnets[0]).await.unwrap();
        let last = a.publish(&network, &endpoint(a.host(), "web", first)).await.unwrap();
        steady.follow().await.unwrap();
        store.compact(last).await.unwrap();
        while late.revision() < last {
            late.follow().await.unwrap();
        }
        assert_eq!(late.view(), steady.view());
        let view = late.view();
        assert_eq!((view.network(), view.groups().next()), (Some(&network), Some(&group)));
        assert!(view.policies().eq([(&name("web"), &policy)]));
        // Other networks are not its concern.
        cluster.network_or_new(&name("red"), &name("t"), &[]).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), late.follow()).await.is_err());
    });
}

#[test]
fn hosts_tell_of_attached_interfaces() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/24");
        let (a, blue) = (join(&store, &time, 0).await, name("blue"));
        a.cluster().add_network(&network).await.unwrap();
        let mut follower = Follower::of_network(a.cluster().clone(), &blue);
        follower.follow().await.unwrap();
        let has_attached =
            |follower: &Follower<NetworkView>| follower.view().hosts().any(|host| host.capabilities.has_attached);
        a.set_announced(Announced { attached: [blue.clone()].into(), ..Announced::default() });
        let first = a.take(&network, network.subnets[0]).await.unwrap();
        a.publish(&network, &endpoint(a.host(), "web", first)).await.unwrap();
        follower.follow().await.unwrap();
        assert!(has_attached(&follower), "with the first endpoint");
        a.set_announced(Announced::default());
        a.tell_of_host(&blue).await.unwrap();
        follower.follow().await.unwrap();
        assert!(!has_attached(&follower));
        a.tell_of_host(&blue).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), follower.follow()).await.is_err(), "nothing new");
    });
}

#[test]
fn hosts_tell_of_their_public_keys_and_the_store_has_no_secret() {
    run(async {
        let (time, store) = shared();
        let network = network("10.7.0.0/24");
        let (a, blue) = (join(&store, &time, 0).await, name("blue"));
        a.cluster().add_network(&network).await.unwrap();
        let keys = Rotated::from(PublicKey::from_bytes([1; 32]));
        a.set_announced(Announced { public_keys: Some(keys.clone()), ..Announced::default() });
        let first = a.take(&network, network.subnets[0]).await.unwrap();
        a.publish(&network, &endpoint(a.host(), "web", first)).await.unwrap();
        let mut follower = Follower::of_network(a.cluster().clone(), &blue);
        follower.follow().await.unwrap();
        let seen = |follower: &Follower<NetworkView>| follower.view().hosts().next().unwrap().public_keys.clone();
        assert_eq!(seen(&follower), Some(keys.clone()));
        let next = keys.followed_by(PublicKey::from_bytes([2; 32]));
        a.set_announced(Announced { public_keys: Some(next.clone()), ..Announced::default() });
        a.tell_of_host(&blue).await.unwrap();
        follower.follow().await.unwrap();
        assert_eq!(seen(&follower), Some(next), "the one before is told as well");
        assert!(store.list("secrets/", None).await.unwrap().entries.is_empty());
    });
}
