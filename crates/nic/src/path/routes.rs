//! Routes: where each address of each tenant network is.

use crate::seeded::{HashMap, Seeded};
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
    Outside,
}

/// Location of every known address of every tenant network. Unknown addresses are external.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    places: HashMap<(Vni, Gid), Route>,
    /// The hosts to which some address of a network leads, in order.
    hosts: HashMap<Vni, Vec<IpAddr>>,
}

impl Routes {
    /// No routes yet, in tables whose order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        let seeded = Seeded::new(seed);
        Self { places: HashMap::with_hasher(seeded), hosts: HashMap::with_hasher(seeded) }
    }

    /// Sets the location of an address.
    pub fn insert(&mut self, vni: Vni, gid: Gid, route: Route) {
        let before = self.places.insert((vni, gid), route);
        if before == Some(route) {
            return;
        }
        if let Route::Host(host) = route {
            let hosts = self.hosts.entry(vni).or_default();
            if let Err(at) = hosts.binary_search(&host) {
                hosts.insert(at, host);
            }
        }
        if let Some(Route::Host(host)) = before {
            self.leave(vni, host);
        }
    }

    /// The location of an address.
    pub fn find(&self, vni: Vni, gid: Gid) -> Route {
        self.places.get(&(vni, gid)).copied().unwrap_or(Route::Outside)
    }

    /// The hosts that the addresses of a tenant network lead to, in order. This host is among them only where its own
    /// addresses lead into the tunnel.
    pub fn hosts(&self, vni: Vni) -> &[IpAddr] {
        self.hosts.get(&vni).map_or(&[], Vec::as_slice)
    }

    /// Forgets that a network has addresses on `host`, if it has none any more.
    fn leave(&mut self, vni: Vni, host: IpAddr) {
        if self.places.iter().any(|((network, _), route)| *network == vni && *route == Route::Host(host)) {
            return;
        }
        let Some(hosts) = self.hosts.get_mut(&vni) else { return };
        hosts.retain(|other| *other != host);
        if hosts.is_empty() {
            self.hosts.remove(&vni);
        }
    }

    /// Marks the addresses on the host at `own` as local.
    #[cfg(test)]
    pub(crate) fn localize(&mut self, own: IpAddr) {
        let places: Vec<_> =
            self.places.iter().filter(|(_, route)| **route == Route::Host(own)).map(|(k, _)| *k).collect();
        places.into_iter().for_each(|(vni, gid)| self.insert(vni, gid, Route::Local));
    }
}

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
}
