//! Access between the addresses of tenant networks, as security groups allow it.
//!
//! Addresses for which the same rules hold are a class. Rules are about who begins a connection; packets carry both of its
//! directions. Who begins is known where rdma_cm connects, see [`Routes::track`](super::Routes::track).

use super::routes::{NetworkGid, Routes};
use crate::seeded::{HashMap, Seeded};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use rdmesh_verbs::{Gid, Vni};

/// Access rules of tenant networks, by class of addresses. Networks without any are open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessRules {
    classes: HashMap<NetworkGid, u32>,
    rules: Vec<Option<ClassRules>>,
}

/// Rules of a class of addresses that are in security groups: what none of them names is forbidden.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassRules {
    /// Peers that it may connect to.
    pub to: Vec<Grant>,
    /// Peers that may connect to it.
    pub from: Vec<Grant>,
}

/// The other side of a connection that is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The other side.
    pub peers: Peers,
    /// Ports of the side that is connected to.
    pub ports: RangeInclusive<u16>,
}

/// Addresses that a rule names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peers {
    /// All.
    Any,
    /// These classes, in order.
    Classes(Vec<u32>),
    /// A range, for addresses of external peers, which are in no class.
    Range(Gid, Gid),
}

impl AccessRules {
    /// No rules yet, in tables whose order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        Self { classes: HashMap::with_hasher(Seeded::new(seed)), rules: Vec::new() }
    }

    /// Adds a class of addresses; without rules it is open to all that its peers' rules let in. Returns its number, which counts up
    /// from 0.
    pub fn add_class(&mut self, rules: Option<ClassRules>) -> u32 {
        self.rules.push(rules);
        self.rules.len() as u32 - 1
    }

    /// Number of classes.
    pub fn classes(&self) -> u32 {
        self.rules.len() as u32
    }

    /// No rules yet, in a table like this one's.
    pub fn cleared(&self) -> Self {
        Self { classes: HashMap::with_hasher(*self.classes.hasher()), rules: Vec::new() }
    }

    /// Puts an address into a class.
    pub fn assign(&mut self, vni: Vni, gid: Gid, class: u32) {
        self.classes.insert(NetworkGid::new(vni, gid), class);
    }

    /// Whether there are no rules at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether an address of a network that has rules is known.
    pub(crate) fn knows(&self, vni: Vni, gid: Gid) -> bool {
        self.classes.contains_key(&NetworkGid::new(vni, gid))
    }

    /// Whether one address of a network may begin a connection to `port` of another.
    pub fn may_connect(&self, vni: Vni, from: Gid, to: Gid, port: u16) -> bool {
        self.ports(vni, from, to).any(|ports| ports.contains(&port))
    }

    /// Whether one address of a network may begin a connection to some port of another.
    pub fn may_begin(&self, vni: Vni, from: Gid, to: Gid) -> bool {
        self.ports(vni, from, to).next().is_some()
    }

    /// Whether each of two addresses may connect to all ports of the other: then nobody need know who begins.
    pub fn are_open(&self, vni: Vni, a: Gid, b: Gid) -> bool {
        let is_open = |from, to| self.ports(vni, from, to).any(|ports| ports == (0..=u16::MAX));
        is_open(a, b) && is_open(b, a)
    }

    /// The ports of `to` that `from` may connect to.
    fn ports(&self, vni: Vni, from: Gid, to: Gid) -> impl Iterator<Item = RangeInclusive<u16>> {
        let (from, to) = (NetworkGid::new(vni, from), NetworkGid::new(vni, to));
        let leaving = self.granted(from, |rules| &rules.to, to);
        leaving.flat_map(move |out| {
            let entering = self.granted(to, |rules| &rules.from, from);
            entering.filter_map(move |into| {
                let (first, last) = (*out.start().max(into.start()), *out.end().min(into.end()));
                (first <= last).then_some(first..=last)
            })
        })
    }

    /// Ports that the rules of `own` grant to `peer`: all, if it has none.
    fn granted(
        &self,
        own: NetworkGid,
        side: fn(&ClassRules) -> &Vec<Grant>,
        peer: NetworkGid,
    ) -> impl Iterator<Item = RangeInclusive<u16>> {
        let class = |address| self.classes.get(&address).copied();
        let rules = class(own).and_then(|class| self.rules.get(class as usize)?.as_ref());
        let all = rules.is_none().then_some(0..=u16::MAX);
        let class = class(peer);
        let names = move |grant: &&Grant| match &grant.peers {
            Peers::Any => true,
            Peers::Classes(classes) => class.is_some_and(|class| classes.binary_search(&class).is_ok()),
            Peers::Range(first, last) => class.is_none() && (*first..=*last).contains(&peer.gid),
        };
        let grants = rules.map_or(&[][..], |rules| side(rules).as_slice()).iter();
        all.into_iter().chain(grants.filter(names).map(|grant| grant.ports.clone()))
    }
}

/// Answers of [`Routes::may_talk`] that were given lately: datagrams ask for each packet, and there may be many rules.
#[derive(Default)]
pub(crate) struct Verdicts(Box<[Option<Verdict>]>);

/// Two addresses of a network, of which the first is an endpoint's of this host.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    vni: Vni,
    own: Gid,
    peer: Gid,
}

#[derive(Clone, Copy)]
struct Verdict {
    pair: Pair,
    is_allowed: bool,
}

impl Verdicts {
    /// None yet, of new routes.
    pub(crate) fn of(routes: &Routes) -> Self {
        Self(if routes.access().is_empty() { Box::default() } else { vec![None; VERDICTS].into_boxed_slice() })
    }

    /// Whether two addresses may exchange packets, by the routes of which these answers are.
    pub(crate) fn may_talk(&mut self, routes: &Routes, vni: Vni, own: Gid, peer: Gid) -> bool {
        let (pair, at) = (Pair { vni, own, peer }, place(own, peer));
        let Some(slot) = self.0.get_mut(at) else { return routes.may_talk(vni, own, peer) };
        if let Some(verdict) = slot.filter(|verdict| verdict.pair == pair) {
            return verdict.is_allowed;
        }
        let is_allowed = routes.may_talk(vni, own, peer);
        *slot = Some(Verdict { pair, is_allowed });
        is_allowed
    }
}

/// A collision costs only a second look at the rules.
fn place(own: Gid, peer: Gid) -> usize {
    let words = [own, peer].map(|gid| u128::from_be_bytes(gid.0) as u64);
    let mix = words[0].rotate_left(32).wrapping_add(words[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix >> 32) as usize % VERDICTS
}

const VERDICTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        Gid::from_ip([10, 0, 0, last].into())
    }

    /// 1 is a client of 2 on ports 10 to 15; 3 is in no group; 2 lets external peers of 10.0.0.100 to 110 in, on port 15; 4 may
    /// connect to 3 and to external peers, and the other way round.
    fn access() -> AccessRules {
        let mut access = AccessRules::new(5);
        let to = vec![Grant { peers: Peers::Classes(vec![1]), ports: 0..=15 }];
        let client = access.add_class(Some(ClassRules { to, from: Vec::new() }));
        let from = vec![
            Grant { peers: Peers::Classes(vec![0]), ports: 10..=20 },
            Grant { peers: Peers::Range(gid(100), gid(110)), ports: 15..=15 },
        ];
        let server = access.add_class(Some(ClassRules { to: Vec::new(), from }));
        let open = access.add_class(None);
        let peers = vec![Peers::Classes(vec![2]), Peers::Range(gid(0), gid(255))];
        let all: Vec<_> = peers.into_iter().map(|peers| Grant { peers, ports: 0..=u16::MAX }).collect();
        let friend = access.add_class(Some(ClassRules { to: all.clone(), from: all }));
        let classes = [(1, client), (2, server), (3, open), (4, friend)];
        classes.into_iter().for_each(|(n, class)| access.assign(Vni(7), gid(n), class));
        access
    }

    #[test]
    fn both_sides_must_allow_the_port() {
        let access = access();
        let may = |from, to, port| access.may_connect(Vni(7), gid(from), gid(to), port);
        assert!(may(1, 2, 10) && may(1, 2, 15));
        assert!(!may(1, 2, 9) && !may(1, 2, 16) && !may(2, 1, 12) && !may(3, 2, 12) && !may(1, 3, 12));
        assert!(access.may_connect(Vni(8), gid(1), gid(3), 12), "another network has no rules");
    }

    #[test]
    fn packets_go_both_ways_where_both_may_begin_or_one_has() {
        let mut routes = Routes::default();
        routes.set_access(access().into());
        let may = |routes: &Routes, a, b| {
            let answers = [routes.may_talk(Vni(7), gid(a), gid(b)), routes.may_talk(Vni(7), gid(b), gid(a))];
            assert_eq!(answers[0], answers[1], "{a} and {b}");
            answers[0]
        };
        assert!(may(&routes, 3, 4) && may(&routes, 4, 99) && may(&routes, 3, 99));
        assert!(!may(&routes, 1, 2) && !may(&routes, 1, 3) && !may(&routes, 2, 100) && !may(&routes, 2, 4));
        // Twice, of which one ends.
        for _ in 0..2 {
            routes.track(Vni(7), gid(1), gid(2));
        }
        routes.untrack(Vni(7), gid(1), gid(2));
        routes.track(Vni(7), gid(100), gid(2));
        // The rules do not let these begin: nothing that is tracked changes that.
        [(2, 3), (4, 2), (111, 2)].iter().for_each(|(a, b)| routes.track(Vni(7), gid(*a), gid(*b)));
        assert!(may(&routes, 1, 2) && may(&routes, 100, 2));
        assert!(!may(&routes, 1, 3) && !may(&routes, 2, 3) && !may(&routes, 4, 2) && !may(&routes, 111, 2));
        let mut verdicts = Verdicts::of(&routes);
        for _ in 0..2 {
            for (a, b) in (0..120).flat_map(|a| (0..5).map(move |b| (a, b))) {
                assert_eq!(verdicts.may_talk(&routes, Vni(7), gid(a), gid(b)), may(&routes, a, b), "{a} and {b}");
            }
        }
        routes.untrack(Vni(7), gid(1), gid(2));
        assert!(!may(&routes, 1, 2) && may(&routes, 2, 100));
        assert!(AccessRules::default().is_empty() && Routes::default().may_talk(Vni(7), gid(1), gid(2)));
    }
}
