//! Routes: where each address of each tenant network is, and which of them may exchange packets.

use super::access::AccessRules;
use crate::seeded::{HashMap, Seeded};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use rdmesh_verbs::{Gid, Vni};

/// Route to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// It is on this host.
    Local,
    /// It is on the host whose router has this address.
    Host(IpAddr),
    /// It is an external peer.
    External,
}

/// Location of every known address of every tenant network. Unknown addresses are external.
///
/// A copy costs little, and so does a change of a copy: they share what they have in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    places: Tree<Route>,
    /// The hosts to which some address of a network leads. Their keys have no address.
    hosts: Tree<Hosts>,
    access: Arc<AccessRules>,
    /// Connections by rdma_cm, at the address that has begun them.
    tracked: Tree<Tracked>,
}

/// Peers in order, each with the number of connections to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Tracked(Vec<(Gid, u32)>);

/// Hosts in order, each with the number of addresses that lead to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Hosts {
    hosts: Vec<IpAddr>,
    counts: Vec<usize>,
}

impl Routes {
    /// No routes yet, in tables whose order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        let seeded = Seeded::new(seed);
        let access = Arc::new(AccessRules::new(seed));
        Self { places: Tree::new(seeded), hosts: Tree::new(seeded), access, tracked: Tree::new(seeded) }
    }

    /// Sets the location of an address.
    pub fn insert(&mut self, vni: Vni, gid: Gid, route: Route) {
        let before = self.places.leaf(NetworkGid::new(vni, gid)).insert(NetworkGid::new(vni, gid), route);
        if before == Some(route) {
            return;
        }
        if let Route::Host(host) = route {
            self.hosts
                .leaf(NetworkGid::new(vni, Gid::default()))
                .entry(NetworkGid::new(vni, Gid::default()))
                .or_default()
                .add(host);
        }
        self.leave(vni, before);
    }

    /// Forgets the location of an address.
    pub fn remove(&mut self, vni: Vni, gid: Gid) {
        let before = self.places.leaf(NetworkGid::new(vni, gid)).remove(&NetworkGid::new(vni, gid));
        self.leave(vni, before);
    }

    /// The location of an address.
    pub fn find(&self, vni: Vni, gid: Gid) -> Route {
        self.places.get(NetworkGid::new(vni, gid)).copied().unwrap_or(Route::External)
    }

    /// The hosts that the addresses of a tenant network lead to, in order. This host is among them only where its own
    /// addresses lead into the tunnel.
    pub fn hosts(&self, vni: Vni) -> &[IpAddr] {
        self.hosts.get(NetworkGid::new(vni, Gid::default())).map_or(&[], |hosts| hosts.hosts.as_slice())
    }

    /// The rules by which addresses may exchange packets.
    pub fn access(&self) -> &Arc<AccessRules> {
        &self.access
    }

    /// Sets which addresses may exchange packets.
    pub fn set_access(&mut self, access: Arc<AccessRules>) {
        self.access = access;
    }

    /// One address of a network has begun a connection to another by rdma_cm. Until as many have ended, the two may exchange
    /// packets, as long as the rules let the one begin.
    pub fn track(&mut self, vni: Vni, from: Gid, to: Gid) {
        let Tracked(peers) =
            self.tracked.leaf(NetworkGid::new(vni, from)).entry(NetworkGid::new(vni, from)).or_default();
        match peers.binary_search_by_key(&to, |(peer, _)| *peer) {
            Ok(at) => peers[at].1 += 1,
            Err(at) => peers.insert(at, (to, 1)),
        }
    }

    /// Such a connection has ended.
    pub fn untrack(&mut self, vni: Vni, from: Gid, to: Gid) {
        let leaf = self.tracked.leaf(NetworkGid::new(vni, from));
        let Some(Tracked(peers)) = leaf.get_mut(&NetworkGid::new(vni, from)) else { return };
        let Ok(at) = peers.binary_search_by_key(&to, |(peer, _)| *peer) else { return };
        peers[at].1 -= 1;
        if peers[at].1 == 0 {
            peers.remove(at);
        }
        if peers.is_empty() {
            leaf.remove(&NetworkGid::new(vni, from));
        }
    }

    /// Whether two addresses of a network may exchange packets: where each may connect to the other, and where one that may
    /// connect to the other has a connection to it.
    pub fn may_talk(&self, vni: Vni, a: Gid, b: Gid) -> bool {
        let has_begun = |from, to| {
            let peers = self.tracked.get(NetworkGid::new(vni, from)).map_or(&[][..], |Tracked(peers)| peers);
            peers.binary_search_by_key(&to, |(peer, _)| *peer).is_ok() && self.access.may_begin(vni, from, to)
        };
        self.access.are_open(vni, a, b) || has_begun(a, b) || has_begun(b, a)
    }

    /// Whether [`Routes::may_talk`] answers as that of `other`: true only where neither rules nor tracked connections have been
    /// changed since one was copied from the other.
    pub(crate) fn talk_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.access, &other.access) && self.tracked.is_copy_of(&other.tracked)
    }

    /// An address of a network has this route no more.
    fn leave(&mut self, vni: Vni, route: Option<Route>) {
        let Some(Route::Host(host)) = route else { return };
        let leaf = self.hosts.leaf(NetworkGid::new(vni, Gid::default()));
        if let Some(hosts) = leaf.get_mut(&NetworkGid::new(vni, Gid::default())) {
            hosts.remove(host);
            if hosts.hosts.is_empty() {
                leaf.remove(&NetworkGid::new(vni, Gid::default()));
            }
        }
    }

    /// Marks the addresses on the host at `own` as local.
    #[cfg(test)]
    pub(crate) fn localize(&mut self, own: IpAddr) {
        let places: Vec<_> =
            self.places.iter().filter(|(_, route)| **route == Route::Host(own)).map(|(k, _)| *k).collect();
        places.into_iter().for_each(|at| self.insert(at.vni, at.gid, Route::Local));
    }
}

impl Hosts {
    fn add(&mut self, host: IpAddr) {
        match self.hosts.binary_search(&host) {
            Ok(at) => self.counts[at] += 1,
            Err(at) => {
                self.hosts.insert(at, host);
                self.counts.insert(at, 1);
            }
        }
    }

    fn remove(&mut self, host: IpAddr) {
        let Ok(at) = self.hosts.binary_search(&host) else { return };
        self.counts[at] -= 1;
        if self.counts[at] == 0 {
            self.hosts.remove(at);
            self.counts.remove(at);
        }
    }
}

/// A GID, and the network on which it is: different networks may have the same GIDs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NetworkGid {
    pub(crate) vni: Vni,
    pub(crate) gid: Gid,
}

impl NetworkGid {
    pub(crate) fn new(vni: Vni, gid: Gid) -> Self {
        Self { vni, gid }
    }
}

type Leaf<V> = HashMap<NetworkGid, V>;

/// A map in two levels of branches, of which copies share all that neither has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tree<V>(Vec<Arc<Vec<Arc<Leaf<V>>>>>);

impl<V> Tree<V> {
    fn new(seeded: Seeded) -> Self {
        let leaf = Arc::new(Leaf::with_hasher(seeded));
        let branch = Arc::new(vec![leaf; WIDTH]);
        Self(vec![branch; WIDTH])
    }

    fn get(&self, key: NetworkGid) -> Option<&V> {
        let (branch, leaf) = way(key);
        self.0[branch][leaf].get(&key)
    }

    /// Whether nothing has been changed since one was copied from the other.
    fn is_copy_of(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, others)| Arc::ptr_eq(own, others))
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = (&NetworkGid, &V)> {
        self.0.iter().flat_map(|branch| branch.iter()).flat_map(|leaf| leaf.iter())
    }
}

impl<V: Clone> Tree<V> {
    /// The part with `key`, to be changed.
    fn leaf(&mut self, key: NetworkGid) -> &mut Leaf<V> {
        let (branch, leaf) = way(key);
        Arc::make_mut(&mut Arc::make_mut(&mut self.0[branch])[leaf])
    }
}

impl<V> Default for Tree<V> {
    fn default() -> Self {
        Self::new(Seeded::default())
    }
}

/// Numbers of the branch and the leaf with a key.
fn way(NetworkGid { vni, gid }: NetworkGid) -> (usize, usize) {
    let (words, _) = gid.0.as_chunks::<4>();
    let mix = |hash: u32, word: u32| (hash ^ word).wrapping_mul(0x9e37_79b1).rotate_left(15);
    let hash = words.iter().fold(vni.0, |hash, word| mix(hash, u32::from_be_bytes(*word)));
    let hash = mix(hash, 0) as usize;
    (hash % WIDTH, hash / WIDTH % WIDTH)
}

/// Branches of a tree, and leaves of a branch.
const WIDTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_on_the_hosts_that_its_addresses_lead_to() {
        let gid = |n| Gid::from_ip([10, 0, 0, n].into());
        let [first, second]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let mut routes = Routes::default();
        routes.insert(Vni(1), gid(1), Route::Host(second));
        routes.insert(Vni(1), gid(2), Route::Host(first));
        routes.insert(Vni(1), gid(3), Route::Host(second));
        routes.insert(Vni(1), gid(4), Route::Local);
        routes.insert(Vni(2), gid(1), Route::Host(first));
        assert_eq!((routes.hosts(Vni(1)), routes.hosts(Vni(2))), (&[first, second][..], &[first][..]));
        assert_eq!(routes.hosts(Vni(3)), &[] as &[IpAddr]);
        routes.insert(Vni(1), gid(1), Route::Host(first));
        assert_eq!(routes.hosts(Vni(1)), [first, second]);
        routes.insert(Vni(1), gid(3), Route::Host(first));
        assert_eq!(routes.hosts(Vni(1)), [first]);
        routes.localize(first);
        assert_eq!((routes.hosts(Vni(1)), routes.hosts(Vni(2)).len()), (&[] as &[IpAddr], 0));
        assert_eq!(routes.find(Vni(2), gid(1)), Route::Local);
    }

    #[test]
    fn a_copy_shares_all_but_what_is_changed() {
        let gid = |n: u32| Gid::from_ip(std::net::Ipv4Addr::from(0x0a00_0000 + n).into());
        let host = Route::Host([192, 0, 2, 1].into());
        let mut routes = Routes::default();
        (0..10_000).for_each(|n| routes.insert(Vni(n % 7), gid(n), host));
        let mut copy = routes.clone();
        copy.insert(Vni(1), gid(20_000), host);
        copy.remove(Vni(3), gid(3));
        assert_eq!((routes.find(Vni(3), gid(3)), copy.find(Vni(3), gid(3))), (host, Route::External));
        assert_eq!((routes.find(Vni(1), gid(20_000)), copy.find(Vni(1), gid(20_000))), (Route::External, host));
        assert!((10..10_000).all(|n| copy.find(Vni(n % 7), gid(n)) == host));
        let leaves = |routes: &Routes| routes.places.0.iter().flat_map(|branch| branch.to_vec()).collect::<Vec<_>>();
        let pairs = || leaves(&routes).into_iter().zip(leaves(&copy));
        assert!(pairs().filter(|(a, b)| !Arc::ptr_eq(a, b)).count() <= 2);
        assert!(pairs().all(|(leaf, _)| leaf.len() < 60), "leaves are of about the same size");
    }

    #[test]
    fn a_host_is_of_a_network_until_its_last_address_goes() {
        let gid = |n| Gid::from_ip([10, 0, 0, n].into());
        let host: IpAddr = [192, 0, 2, 1].into();
        let mut routes = Routes::default();
        (1..4).for_each(|n| routes.insert(Vni(1), gid(n), Route::Host(host)));
        routes.insert(Vni(1), gid(1), Route::Host(host));
        for n in 1..4 {
            assert_eq!(routes.hosts(Vni(1)), [host]);
            routes.remove(Vni(1), gid(n));
            routes.remove(Vni(1), gid(n));
        }
        assert_eq!(routes, Routes::default());
    }
}
