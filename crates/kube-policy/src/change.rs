//! The way from the groups that there are to those that are wanted, without a moment in which a connection is forbidden that is allowed
//! before and after: a router ends such connections at once.
//!
//! A group isolates its members both ways, and each group is a record of its own. So an endpoint that comes into its first group, or
//! leaves its last one, is first put into a group that allows all ([`CHANGE`]), which goes at the end; and a group that changes has the
//! members and rules of before and after in between.

use crate::policies::PREFIX;
use rdmesh_fabric::{Counterpart, Name, Rule, SecurityGroup};
use std::collections::{BTreeMap, BTreeSet};

/// A step: a group is set, or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Set(SecurityGroup),
    Remove { network: Name, name: Name },
}

/// The group that allows all while others change.
const CHANGE: &str = "np-change";

/// The steps from all groups of the router's, those of operators too, to those that are `wanted`.
pub(crate) fn steps(present: &[SecurityGroup], wanted: &[SecurityGroup]) -> Vec<Step> {
    let own = by_key(present.iter().filter(|group| group.name.as_str().starts_with(PREFIX)));
    let wanted = by_key(wanted.iter());
    let changed: Vec<&SecurityGroup> =
        wanted.iter().filter(|(key, group)| own.get(*key) != Some(*group)).map(|(_, group)| *group).collect();
    let gone: Vec<&SecurityGroup> =
        own.iter().filter(|(key, _)| !wanted.contains_key(*key)).map(|(_, group)| *group).collect();
    let mut steps: Vec<Step> = openings(present, &own, &wanted).into_iter().map(Step::Set).collect();
    let opened: BTreeSet<Key> = steps.iter().map(Step::key).collect();
    let mut shrunk = Vec::new();
    for group in changed {
        let Some(before) = own.get(&Key::of(group)) else {
            steps.push(Step::Set(group.clone()));
            continue;
        };
        let both = union(before, group);
        shrunk.extend((both != *group).then(|| Step::Set(group.clone())));
        steps.extend((both != **before).then_some(Step::Set(both)));
    }
    steps.extend(shrunk);
    let (left, gone): (BTreeSet<Key>, BTreeSet<Key>) =
        gone.into_iter().map(Key::of).partition(|key| key.name.as_str() == CHANGE);
    let opened = opened.union(&left).cloned();
    steps.extend(gone.into_iter().chain(opened).map(|Key { network, name }| Step::Remove { network, name }));
    steps
}

/// Network and name of a group, or of an endpoint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    network: Name,
    name: Name,
}

impl Key {
    fn of(group: &SecurityGroup) -> Self {
        Self { network: group.network.clone(), name: group.name.clone() }
    }
}

impl Step {
    fn key(&self) -> Key {
        match self {
            Self::Set(group) => Key::of(group),
            Self::Remove { network, name } => Key { network: network.clone(), name: name.clone() },
        }
    }
}

fn by_key<'a>(groups: impl Iterator<Item = &'a SecurityGroup>) -> BTreeMap<Key, &'a SecurityGroup> {
    groups.map(|group| (Key::of(group), group)).collect()
}

/// For each network the group of the endpoints that come into their first group, or leave their last one.
fn openings(
    present: &[SecurityGroup],
    own: &BTreeMap<Key, &SecurityGroup>,
    wanted: &BTreeMap<Key, &SecurityGroup>,
) -> Vec<SecurityGroup> {
    let others = present.iter().filter(|group| !group.name.as_str().starts_with(PREFIX));
    let (before, after) = (members(own.values().copied()), members(wanted.values().copied()));
    let elsewhere = members(others);
    let mut networks: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    // An endpoint that an operator has put into a group is isolated all the time.
    for Key { network, name } in before.symmetric_difference(&after).filter(|member| !elsewhere.contains(*member)) {
        networks.entry(network.clone()).or_default().insert(name.clone());
    }
    let any = || vec![Rule::from(Counterpart::Any)];
    let group = |(network, members)| SecurityGroup {
        name: CHANGE.parse().expect("a short name"),
        network,
        members,
        allow_from: any(),
        allow_to: any(),
        covers_ip: true,
    };
    networks.into_iter().map(group).collect()
}

/// Network and name of each member.
fn members<'a>(groups: impl Iterator<Item = &'a SecurityGroup>) -> BTreeSet<Key> {
    let members = |group: &'a SecurityGroup| {
        group.members.iter().map(|member| Key { network: group.network.clone(), name: member.clone() })
    };
    groups.flat_map(members).collect()
}

fn union(one: &SecurityGroup, other: &SecurityGroup) -> SecurityGroup {
    let rules = |one: &[Rule], other: &[Rule]| -> Vec<Rule> {
        one.iter().chain(other).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    };
    SecurityGroup {
        name: one.name.clone(),
        network: one.network.clone(),
        members: one.members.union(&other.members).cloned().collect(),
        allow_from: rules(&one.allow_from, &other.allow_from),
        allow_to: rules(&one.allow_to, &other.allow_to),
        covers_ip: one.covers_ip || other.covers_ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, members: &str, from: &str, to: &str) -> SecurityGroup {
        let rules = |text: &str| text.split_whitespace().map(|rule| rule.parse().unwrap()).collect();
        SecurityGroup {
            name: name.parse().unwrap(),
            network: "blue".parse().unwrap(),
            members: members.split_whitespace().map(|name| name.parse().unwrap()).collect(),
            allow_from: rules(from),
            allow_to: rules(to),
            covers_ip: true,
        }
    }

    /// Whether `groups` let `server` take a connection from `client`, and begin one to it.
    fn allow(groups: &[SecurityGroup], server: &str, client: &str) -> (bool, bool) {
        let server: Name = server.parse().unwrap();
        let own: Vec<&SecurityGroup> = groups.iter().filter(|group| group.members.contains(&server)).collect();
        let names = |rule: &Rule| match &rule.peer {
            Counterpart::Any => true,
            Counterpart::Endpoint(name) => name.as_str() == client,
            Counterpart::Group(_) | Counterpart::Range(_) => false,
        };
        let is_open = own.is_empty();
        let allows =
            |rules: fn(&SecurityGroup) -> &[Rule]| is_open || own.iter().any(|group| rules(group).iter().any(names));
        (allows(|group| &group.allow_from), allows(|group| &group.allow_to))
    }

    fn perform(groups: &mut Vec<SecurityGroup>, step: &Step) {
        let key = step.key();
        groups.retain(|group| Key::of(group) != key);
        if let Step::Set(group) = step {
            groups.push(group.clone());
        }
    }

    #[test]
    fn what_is_allowed_before_and_after_is_allowed_all_the_time() {
        let (open_in, open_out) =
            (|members| group("np-open-in", members, "any", ""), |members| group("np-open-out", members, "", "any"));
        let states = [
            vec![],
            vec![group("np-1", "a", "endpoint/b", ""), open_out("a")],
            vec![group("np-1", "a", "endpoint/b", ""), group("np-2", "a", "", "endpoint/b")],
            vec![
                group("np-1", "a c", "endpoint/b endpoint/c", ""),
                open_out("a c"),
                group("np-3", "b", "", "any"),
                open_in("b"),
            ],
            vec![group("np-2", "a", "", "endpoint/b"), open_in("a")],
            vec![group("np-1", "c", "", ""), open_out("c")],
        ];
        for (before, after) in states.iter().flat_map(|before| states.iter().map(move |after| (before, after))) {
            // An operator's own group beside them stays as it is.
            let own = group("own", "d", "endpoint/a", "");
            let mut groups = [before.clone(), vec![own.clone()]].concat();
            let pairs = || ["a", "b", "c"].into_iter().flat_map(|one| ["a", "b", "c"].map(|other| (one, other)));
            for step in steps(&groups.clone(), after) {
                perform(&mut groups, &step);
                for (server, client) in pairs() {
                    let (was, is, will) =
                        (allow(before, server, client), allow(&groups, server, client), allow(after, server, client));
                    assert!(is.0 || !(was.0 && will.0), "from {client} to {server}: {before:?} {after:?} {step:?}");
                    assert!(is.1 || !(was.1 && will.1), "from {server} to {client}: {before:?} {after:?} {step:?}");
                }
            }
            let sorted = |groups: &[SecurityGroup]| by_key(groups.iter()).into_values().cloned().collect::<Vec<_>>();
            assert_eq!(sorted(&groups), sorted(&[after.clone(), vec![own]].concat()));
            assert_eq!(steps(&groups, after), []);
        }
    }

    #[test]
    fn a_change_that_was_not_finished_is() {
        let wanted = [group("np-1", "a", "endpoint/b", "")];
        let present = [wanted[0].clone(), group("np-change", "a", "any", "any")];
        let expected = Step::Remove { network: "blue".parse().unwrap(), name: "np-change".parse().unwrap() };
        assert_eq!(steps(&present, &wanted), [expected]);
    }
}
