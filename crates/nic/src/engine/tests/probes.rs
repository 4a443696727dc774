//! Tests of probes between two hosts.

use super::world::*;
use crate::Time;
use crate::engine::{ProbeError, ProbeRequest};
use crate::path::{AccessRules, ClassRules, Route};
use rdmesh_verbs::{Gid, Mtu, Vni};
use std::sync::Arc;

fn request(from: &Node, to: Gid, tid: u64) -> ProbeRequest {
    ProbeRequest { tid, vni: Vni(1), source: from.gid, dest: to, len: Mtu::B256 }
}

/// Sends a probe; what the engines know of it: whether it has left, and flags of its answer.
fn probed(world: &mut World, request: &ProbeRequest) -> (bool, Option<(bool, bool)>) {
    world.engines[0].probes(Time(5)).send(request).unwrap();
    world.settle();
    let states: Vec<_> = world.engines.iter_mut().map(|engine| engine.probes(Time(5)).take(request)).collect();
    let answer = states.iter().find_map(|state| state.answer);
    (states[0].sent.is_some(), answer.map(|reply| (reply.answer.is_here, reply.answer.is_allowed)))
}

#[test]
fn the_other_engine_answers_those_of_any_length() {
    for shards in [1, 3] {
        let mut world = World::hosts(2, shards);
        let last = world.engines.len() - 1;
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(last, 2, Setup::default()));
        for len in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
            let request = ProbeRequest { len, ..request(&a, b.gid, len as u64) };
            assert_eq!(probed(&mut world, &request), (true, Some((true, true))), "{len:?}");
            let again = world.engines[0].probes(Time(5)).take(&request);
            assert_eq!((again.sent, again.answer), (None, None), "it is forgotten");
        }
        assert!(
            world.engines.iter_mut().all(|engine| engine.poll_mad().is_none()),
            "they concern no connection manager"
        );
    }
}

#[test]
fn an_answer_says_what_the_other_router_knows() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    let mut rules = AccessRules::default();
    let class = rules.add_class(Some(ClassRules::default()));
    rules.assign(Vni(1), b.gid, class);
    world.set_access(rules);
    assert_eq!(probed(&mut world, &request(&a, b.gid, 1)), (true, Some((true, false))));
    // An address that only the sender takes for one of that host.
    let nobody = Gid::from_ip([10, 0, 0, 99].into());
    let routes = Arc::make_mut(&mut world.engines[0].out.routes);
    routes.insert(Vni(1), nobody, Route::Host(World::host(1)));
    assert_eq!(probed(&mut world, &request(&a, nobody, 2)), (true, Some((false, false))));
}

#[test]
fn those_to_other_routers_wait_in_a_short_queue() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    let near = world.node(0, 3, Setup::default());
    let send = |world: &mut World, request| world.engines[0].probes(Time(5)).send(&request);
    let outside = Gid::from_ip([172, 16, 0, 9].into());
    assert_eq!(send(&mut world, request(&a, outside, 1)), Err(ProbeError::External));
    assert_eq!(send(&mut world, request(&a, near.gid, 1)), Ok(()));
    let state = world.engines[0].probes(Time(5)).take(&request(&a, near.gid, 1));
    assert!(state.sent.is_some() && state.answer.is_some_and(|reply| reply.answer.is_here), "answered at once");
    for tid in 0..64 {
        assert_eq!(send(&mut world, request(&a, b.gid, tid)), Ok(()));
    }
    assert_eq!(send(&mut world, request(&a, b.gid, 64)), Err(ProbeError::Full));
    world.settle();
    // Nobody waits for so many of one host: the last ones are remembered.
    let answered: Vec<u64> = (0..64)
        .filter(|tid| world.engines[0].probes(Time(5)).take(&request(&a, b.gid, *tid)).answer.is_some())
        .collect();
    assert_eq!(answered, (56..64).collect::<Vec<_>>());
}

#[test]
fn a_host_that_answers_without_being_asked_loses_its_own_answers_only() {
    let mut world = World::hosts(3, 1);
    let nodes = [0, 1, 2].map(|n| world.node(n, n as u8 + 1, Setup::default()));
    assert_eq!(probed(&mut world, &request(&nodes[0], nodes[1].gid, 1)).1, Some((true, true)));
    world.engines[0].probes(Time(5)).send(&request(&nodes[0], nodes[1].gid, 2)).unwrap();
    world.settle();
    for tid in 100..200 {
        world.engines[0].probes(Time(5)).send(&request(&nodes[0], nodes[2].gid, tid)).unwrap();
        world.settle();
    }
    // Nor does it answer for the other one, even if it guesses the number.
    assert!(world.engines[0].probes(Time(5)).take(&request(&nodes[0], nodes[1].gid, 199)).answer.is_none());
    assert!(world.engines[0].probes(Time(5)).take(&request(&nodes[0], nodes[1].gid, 2)).answer.is_some());
}
