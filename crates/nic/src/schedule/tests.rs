//! Shares and order of the schedule.

use super::*;
use crate::policy::{Limits, Rate, Rates};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn owner(vni: u32, endpoint: u32) -> Owner {
    Owner { vni: Vni(vni), endpoint }
}

/// Lets queue pairs that always have more to send have `turns` turns; returns what each owner's have cost.
fn run(schedule: &mut Schedule, owners: &[Owner], turns: u32, cost_of: impl Fn(u32) -> u64) -> BTreeMap<Owner, u64> {
    for (qp, owner) in owners.iter().enumerate() {
        schedule.join(qp as u32, *owner, &Policy::default());
        schedule.add(Order::Wire, qp as u32);
    }
    let mut costs = BTreeMap::new();
    for _ in 0..turns {
        let qp = schedule.next(Order::Wire).expect("all wait");
        *costs.entry(owners[qp as usize]).or_default() += cost_of(qp);
        schedule.add(Order::Wire, qp);
        schedule.charge(Order::Wire, qp, cost_of(qp));
    }
    costs
}

fn assert_equal_shares(costs: &BTreeMap<Owner, u64>, tolerance: u64) {
    let (least, most) = (costs.values().min().unwrap(), costs.values().max().unwrap());
    assert!(most - least <= tolerance, "{costs:?}");
}

#[test]
fn two_tenants_share_half_and_half_whatever_their_numbers_of_queue_pairs() {
    let mut owners = vec![owner(1, 1)];
    owners.extend([owner(2, 2); 1000]);
    let costs = run(&mut Schedule::default(), &owners, 10_000, |qp| if qp == 0 { 700 } else { TURN_COST });
    assert_equal_shares(&costs, 3 * TURN_COST);
}

#[test]
fn endpoints_share_their_tenants_half() {
    let owners = [owner(1, 1), owner(1, 2), owner(1, 2), owner(1, 2), owner(2, 3)];
    let costs = run(&mut Schedule::default(), &owners, 10_000, |_| 10_000);
    let of_tenant = |vni: u32| costs.iter().filter(|(o, _)| o.vni == Vni(vni)).map(|(_, cost)| *cost).sum::<u64>();
    assert!(of_tenant(1).abs_diff(of_tenant(2)) <= 3 * TURN_COST, "{costs:?}");
    assert!(costs[&owner(1, 1)].abs_diff(costs[&owner(1, 2)]) <= 3 * TURN_COST, "{costs:?}");
}

#[test]
fn queue_pairs_of_an_endpoint_have_turns_in_order() {
    let mut schedule = Schedule::default();
    for qp in 0..5 {
        schedule.join(qp, owner(1, 1), &Policy::default());
        schedule.add(Order::Local, qp);
        schedule.add(Order::Local, qp);
    }
    let turns: Vec<_> = std::iter::from_fn(|| schedule.next(Order::Local)).collect();
    assert_eq!(turns, [0, 1, 2, 3, 4]);
}

#[test]
fn a_turn_that_cost_much_is_made_up_for() {
    let owners = [owner(1, 1), owner(2, 2)];
    let costs = run(&mut Schedule::default(), &owners, 10_000, |qp| if qp == 0 { 1024 * PACKET_COST } else { 600 });
    assert_equal_shares(&costs, 2048 * PACKET_COST);
}

#[test]
fn who_was_idle_has_no_more_than_its_share_afterwards() {
    let (mut schedule, owners) = (Schedule::default(), [owner(1, 1), owner(2, 2)]);
    schedule.join(1, owners[1], &Policy::default());
    for _ in 0..10_000 {
        schedule.add(Order::Wire, 1);
        assert_eq!(schedule.next(Order::Wire), Some(1));
        schedule.charge(Order::Wire, 1, TURN_COST);
    }
    assert_equal_shares(&run(&mut schedule, &owners, 100, |_| TURN_COST), 3 * TURN_COST);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u32, u32),
    Leave(u32),
    Add(u32),
    Remove(u32),
    Next(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8_u32, 0..4_u32).prop_map(|(qp, endpoint)| Step::Join(qp, endpoint)),
        (0..8_u32).prop_map(Step::Leave),
        (0..8_u32).prop_map(Step::Add),
        (0..8_u32).prop_map(Step::Remove),
        (0..3 * TURN_COST).prop_map(Step::Next),
    ]
}

proptest! {
    #[test]
    fn who_waits_has_a_turn_and_none_else(steps in prop::collection::vec(step(), 0..300)) {
        let mut schedule = Schedule::default();
        let (mut owners, mut waiting) = (BTreeMap::new(), BTreeSet::new());
        for step in steps {
            match step {
                Step::Join(qp, endpoint) if !owners.contains_key(&qp) => {
                    owners.insert(qp, owner(endpoint / 2, endpoint));
                    schedule.join(qp, owners[&qp], &Policy::default());
                }
                Step::Leave(qp) if owners.contains_key(&qp) => {
                    waiting.remove(&qp);
                    schedule.leave(qp, owners.remove(&qp).unwrap());
                }
                Step::Add(qp) if owners.contains_key(&qp) => {
                    waiting.insert(qp);
                    schedule.add(Order::Local, qp);
                }
                Step::Remove(qp) if owners.contains_key(&qp) => {
                    waiting.remove(&qp);
                    schedule.remove(Order::Local, qp);
                }
                Step::Next(cost) => {
                    let next = schedule.next(Order::Local);
                    prop_assert_eq!(next.is_some(), !waiting.is_empty());
                    if let Some(qp) = next {
                        prop_assert!(waiting.remove(&qp));
                        schedule.charge(Order::Local, qp, cost);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(schedule.len(Order::Local), waiting.len());
            prop_assert!(schedule.is_empty(Order::Wire));
        }
        let rest: BTreeSet<_> = std::iter::from_fn(|| schedule.next(Order::Local)).collect();
        prop_assert_eq!(rest, waiting);
        // What was used is used again.
        for (qp, owner) in owners {
            schedule.leave(qp, owner);
        }
        prop_assert_eq!(schedule.shares.free.len(), schedule.shares.made as usize);
    }
}

/// An operation of the test on gates.
#[derive(Clone, Debug)]
enum GateStep {
    Join(u32, u32),
    Leave(u32),
    Ask(u32, u32),
    Turn,
    SetPolicy(u32, u8, Option<u64>),
    Pass(u64),
}

fn gate_step() -> impl Strategy<Value = GateStep> {
    prop_oneof![
        1 => (0..8_u32, 0..4_u32).prop_map(|(qp, owner)| GateStep::Join(qp, owner)),
        1 => (0..8_u32).prop_map(GateStep::Leave),
        4 => (0..8_u32, 1..5000_u32).prop_map(|(qp, bytes)| GateStep::Ask(qp, bytes)),
        4 => Just(GateStep::Turn),
        1 => (0..4_u32, 0..16_u8, prop::option::of(1_000..10_000_000_u64))
            .prop_map(|(owner, levels, rate)| GateStep::SetPolicy(owner, levels, rate)),
        2 => (0..2_000_000_u64).prop_map(GateStep::Pass),
    ]
}

fn policy(levels: u8, per_second: Option<u64>) -> Policy {
    let rates = Rates { bytes: per_second.map(|rate| Rate::with_usual_burst(rate, 1000)), messages: None };
    let at = |bit: u8| if levels & bit != 0 { rates } else { Rates::default() };
    let priority = Priority::ALL[levels as usize % 3];
    let (host, tenant, endpoint) = (Limits::new(at(1)), Limits::new(at(2)), Limits::new(at(4)));
    Policy { host, tenant, endpoint, qp: at(8), priority, ..Policy::default() }
}

proptest! {
    #[test]
    fn who_is_held_comes_through_whatever_happens(steps in prop::collection::vec(gate_step(), 1..300)) {
        let (mut schedule, mut owners) = (Schedule::default(), BTreeMap::new());
        // Those that have asked, and have not sent since.
        let (mut asking, mut now) = (BTreeMap::new(), Time(1));
        let owner_of = |n: u32| owner(1 + n / 2, n);
        for step in steps {
            match step {
                GateStep::Join(qp, n) if !owners.contains_key(&qp) => {
                    owners.insert(qp, owner_of(n));
                    schedule.join(qp, owner_of(n), &Policy::default());
                }
                GateStep::Leave(qp) => {
                    if let Some(owner) = owners.remove(&qp) {
                        asking.remove(&qp);
                        schedule.leave(qp, owner);
                    }
                }
                GateStep::Ask(qp, bytes) if owners.contains_key(&qp) => {
                    asking.insert(qp, u64::from(bytes));
                    schedule.add(Order::Wire, qp);
                }
                GateStep::Turn => { turn(&mut schedule, &mut asking, now); }
                GateStep::SetPolicy(n, levels, rate) => schedule.set_policy(owner_of(n), &policy(levels, rate)),
                GateStep::Pass(time) => now.0 += time,
                _ => {}
            }
        }
        // A debt of all that was ever sent, at the lowest rate, is paid back in time.
        for _ in 0..100_000 {
            if !turn(&mut schedule, &mut asking, now) {
                if asking.is_empty() {
                    break;
                }
                now = schedule.deadline().expect("a gate opens for who waits").max(now);
            }
        }
        prop_assert!(asking.is_empty(), "{:?} wait for ever", asking);
        prop_assert!(!schedule.has_due() && schedule.is_empty(Order::Wire));
    }
}

/// Lets the next queue pair have its turn, if there is one.
fn turn(schedule: &mut Schedule, asking: &mut BTreeMap<u32, u64>, now: Time) -> bool {
    let opened = schedule.open_gates(now);
    let Some(qp) = schedule.next(Order::Wire) else { return opened };
    if asking.contains_key(&qp) && schedule.admit(Order::Wire, qp, now) {
        let bytes = asking.remove(&qp).unwrap();
        schedule.meter(qp, now, Traffic { bytes, messages: 1 });
    }
    schedule.charge(Order::Wire, qp, 1000);
    true
}
