//! Rates of hosts, tenants, endpoints and queue pairs, priorities and weights.

use super::world::*;
use crate::policy::{Held, Level, Limits, Policy, Priority, Rate, Rates, Weight};
use crate::timer::Time;
use rdmesh_verbs::*;
use std::sync::Arc;

/// An endpoint with connected pairs that always have requests posted.
struct Sender {
    pairs: Vec<(Node, Node)>,
    op: fn(&Node) -> SendOp,
    len: u32,
    done: Vec<u64>,
}

impl Sender {
    fn new(world: &mut World, host: u8, setup: Setup, pairs: usize, len: u32) -> Self {
        let pairs: Vec<_> = (0..pairs).map(|_| world.pair_at(host, setup)).collect();
        let write = |to: &Node| SendOp::Write { remote_addr: BASE, rkey: to.key, imm: None };
        Self { done: vec![0; pairs.len()], pairs, op: write, len }
    }

    /// Sets the policy of all its devices.
    fn set(&self, world: &mut World, policy: &Policy) {
        for (node, _) in &self.pairs {
            world.device_of(node).set_policy(policy.clone());
        }
    }

    fn post(&self, world: &mut World, pair: usize) {
        let (a, b) = &self.pairs[pair];
        if self.pairs[pair].0.qp_type != QpType::Rc {
            b.post_recv(0, &[b.sge(0, self.len)]);
        }
        world.post(a, wr(0, (self.op)(b), &[a.sge(0, self.len)]));
    }

    fn start(&self, world: &mut World) {
        for pair in 0..self.pairs.len() {
            (0..DEPTH).for_each(|_| self.post(world, pair));
        }
    }

    /// Posts as much as has completed.
    fn go_on(&mut self, world: &mut World) {
        for pair in 0..self.pairs.len() {
            while let Some((_, status)) = self.pairs[pair].0.done() {
                assert_eq!(status, WcStatus::Success);
                self.done[pair] += 1;
                self.post(world, pair);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.done.iter().sum::<u64>() * u64::from(self.len)
    }
}

/// Lets senders send, all of which are limited, for so long; returns how often an engine was woken.
fn run(world: &mut World, senders: &mut [&mut Sender], millis: u64) -> usize {
    let end = Time(world.now.0 + millis * MS);
    let mut wakes = 0;
    while world.now < end {
        let mut polls = 0;
        while world.step() {
            senders.iter_mut().for_each(|sender| sender.go_on(world));
            polls += 1;
            assert!(polls < 100_000, "somebody sends without end");
        }
        assert!(world.engines.iter().all(|engine| !engine.has_work() && !engine.has_to_transmit()), "an engine spins");
        let next = world.engines.iter().filter_map(|engine| engine.poll_timeout()).min().expect("a gate opens");
        assert!(next > world.now);
        world.now = next;
        wakes += 1;
    }
    wakes
}

fn rate(per_second: u64) -> Limits {
    Limits::new(Rates { bytes: Some(Rate::with_usual_burst(per_second, 65_536)), messages: None })
}

fn assert_near(found: u64, expected: u64, percent: u64) {
    assert!(found.abs_diff(expected) <= expected * percent / 100, "{found}, not {expected}");
}

#[test]
fn an_endpoint_keeps_its_rate_whatever_it_sends() {
    let ops: [fn(&Node) -> SendOp; 2] = [
        |to| SendOp::Write { remote_addr: BASE, rkey: to.key, imm: None },
        |to| SendOp::Read { remote_addr: BASE, rkey: to.key },
    ];
    for (kind, mut world) in World::kinds().into_iter().enumerate() {
        for (op, len) in ops.into_iter().zip([700, 40_000]) {
            let mut sender = Sender { op, ..Sender::new(&mut world, 1, Setup::default(), 3, len) };
            sender.set(&mut world, &Policy { endpoint: rate(12_500_000), ..Policy::default() });
            sender.start(&mut world);
            let wakes = run(&mut world, &mut [&mut sender], 1000);
            assert_near(sender.bytes(), 12_500_000, 2);
            let fair = sender.bytes() / u64::from(len) / 3;
            sender.done.iter().for_each(|done| assert_near(*done, fair, 5));
            assert!(wakes < 9000, "{kind}: {wakes} wakes");
            sender.pairs.iter().for_each(|(a, _)| world.modify_state(a, QpState::Error));
        }
    }
}

#[test]
fn messages_have_a_rate_of_their_own() {
    for mut world in World::kinds() {
        let mut sender = Sender::new(&mut world, 1, Setup::default(), 2, 8);
        let messages = Some(Rate::with_usual_burst(5000, 16));
        let limits = Limits::new(Rates { bytes: None, messages });
        sender.set(&mut world, &Policy { endpoint: limits, ..Policy::default() });
        sender.start(&mut world);
        run(&mut world, &mut [&mut sender], 1000);
        assert_near(sender.bytes() / 8, 5000, 2);
    }
}

#[test]
fn every_queue_pair_has_the_rate_of_a_queue_pair() {
    for mut world in World::kinds() {
        let mut sender = Sender::new(&mut world, 1, Setup::default(), 3, 1000);
        let qp = Rates { bytes: Some(Rate::with_usual_burst(1_000_000, 10_000)), messages: None };
        sender.set(&mut world, &Policy { qp, ..Policy::default() });
        sender.start(&mut world);
        run(&mut world, &mut [&mut sender], 1000);
        sender.done.iter().for_each(|done| assert_near(*done * 1000, 1_000_000, 3));
    }
}

#[test]
fn a_tenants_rate_is_shared_by_its_endpoints_whatever_their_queue_pairs() {
    for mut world in World::kinds() {
        let mut few = Sender::new(&mut world, 1, Setup::default(), 1, 20_000);
        let mut many = Sender::new(&mut world, 3, Setup::default(), 20, 3000);
        let tenant = rate(20_000_000);
        for sender in [&few, &many] {
            sender.set(&mut world, &Policy { tenant: tenant.clone(), ..Policy::default() });
            sender.start(&mut world);
        }
        run(&mut world, &mut [&mut few, &mut many], 1000);
        assert_near(few.bytes() + many.bytes(), 20_000_000, 2);
        assert_near(few.bytes(), 10_000_000, 10);
    }
}

#[test]
fn a_hosts_rate_is_shared_by_weight() {
    for mut world in World::kinds() {
        let mut light = Sender::new(&mut world, 1, Setup::default(), 8, 10_000);
        let mut heavy = Sender::new(&mut world, 3, Setup { vni: 2, ..Setup::default() }, 1, 10_000);
        let host = rate(40_000_000);
        light.set(&mut world, &Policy { host: host.clone(), ..Policy::default() });
        let tenant_weight = Weight::new(300).unwrap();
        heavy.set(&mut world, &Policy { host, tenant_weight, ..Policy::default() });
        [&light, &heavy].into_iter().for_each(|sender| sender.start(&mut world));
        run(&mut world, &mut [&mut light, &mut heavy], 1000);
        assert_near(light.bytes() + heavy.bytes(), 40_000_000, 2);
        assert_near(heavy.bytes(), 30_000_000, 10);
    }
}

#[test]
fn limits_below_a_limit_hold_too() {
    for mut world in World::kinds() {
        let mut slow = Sender::new(&mut world, 1, Setup::default(), 4, 5000);
        let mut other = Sender::new(&mut world, 3, Setup::default(), 4, 5000);
        let tenant = rate(20_000_000);
        slow.set(&mut world, &Policy { tenant: tenant.clone(), endpoint: rate(2_000_000), ..Policy::default() });
        other.set(&mut world, &Policy { tenant, ..Policy::default() });
        [&slow, &other].into_iter().for_each(|sender| sender.start(&mut world));
        run(&mut world, &mut [&mut slow, &mut other], 1000);
        assert_near(slow.bytes(), 2_000_000, 4);
        assert_near(other.bytes(), 18_000_000, 4);
    }
}

/// Parts of `millis` for which an endpoint was held, in per cent by level.
fn shares(held: &Held, millis: u64) -> [u64; 4] {
    Level::ALL.map(|level| held.by(level) * 100 / (millis * MS))
}

#[test]
fn time_that_rates_cost_is_counted_by_level() {
    let cases: [(Level, fn() -> Policy); 3] = [
        (Level::Tenant, || Policy { tenant: rate(2_000_000), endpoint: rate(900_000_000), ..Policy::default() }),
        (Level::Endpoint, || Policy { host: rate(900_000_000), endpoint: rate(2_000_000), ..Policy::default() }),
        (Level::Qp, || {
            let qp = Rates { bytes: Some(Rate::with_usual_burst(1_000_000, 10_000)), messages: None };
            Policy { qp, ..Policy::default() }
        }),
    ];
    for (level, policy) in cases {
        for mut world in World::kinds() {
            let mut sender = Sender::new(&mut world, 1, Setup::default(), 2, 1000);
            let policy = policy();
            let held = Arc::clone(&policy.held);
            sender.set(&mut world, &policy);
            sender.start(&mut world);
            run(&mut world, &mut [&mut sender], 1000);
            let mut shares = shares(&held, 1000);
            let own = std::mem::take(&mut shares[level as usize]);
            assert!((90..=100).contains(&own), "{level:?}: {own} %");
            assert!(shares.iter().all(|share| *share <= 1), "{level:?}: {shares:?}");
        }
    }
}

#[test]
fn who_stays_below_its_rate_is_never_held() {
    for mut world in World::kinds() {
        let mut busy = Sender::new(&mut world, 1, Setup::default(), 4, 5000);
        let (a, b) = world.pair_at(3, Setup { vni: 2, ..Setup::default() });
        busy.set(&mut world, &Policy { endpoint: rate(2_000_000), ..Policy::default() });
        let policy = Policy { endpoint: rate(2_000_000), ..Policy::default() };
        world.device_of(&a).set_policy(policy.clone());
        busy.start(&mut world);
        for _ in 0..500 {
            let write = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
            world.post(&a, wr(0, write, &[a.sge(0, 3000)]));
            run(&mut world, &mut [&mut busy], 2);
            assert_eq!(a.done().map(|(_, status)| status), Some(WcStatus::Success));
        }
        assert_eq!(shares(&policy.held, 1000), [0; 4]);
    }
}

#[test]
fn datagrams_are_limited_too() {
    for mut world in World::kinds() {
        let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
        let (a, b) = world.pair(setup);
        let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
        let ah = world.device_of(&a).create_ah(a.pd, av).unwrap() + 1;
        world.device_of(&a).set_policy(Policy { endpoint: rate(2_000_000), ..Policy::default() });
        let datagram = wr(0, SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY, imm: None }, &[a.sge(0, 1000)]);
        (0..DEPTH).for_each(|_| world.post(&a, datagram.clone()));
        let (end, mut sent) = (Time(world.now.0 + 1000 * MS), 0_u64);
        while world.now < end {
            while world.step() {
                while let Some((_, status)) = a.done() {
                    assert_eq!(status, WcStatus::Success);
                    sent += 1;
                    world.post(&a, datagram.clone());
                }
            }
            world.now = world.engines.iter().filter_map(|engine| engine.poll_timeout()).min().expect("a gate opens");
        }
        assert_near(sent * 1000, 2_000_000 + 65_536, 1);
    }
}

#[test]
fn a_new_policy_holds_at_once_also_for_those_who_wait() {
    for mut world in World::kinds() {
        let mut sender = Sender::new(&mut world, 1, Setup::default(), 2, 1000);
        sender.set(&mut world, &Policy { endpoint: rate(1000), ..Policy::default() });
        sender.start(&mut world);
        run(&mut world, &mut [&mut sender], 10);
        let before = sender.bytes();
        sender.set(&mut world, &Policy { endpoint: rate(10_000_000), ..Policy::default() });
        run(&mut world, &mut [&mut sender], 1000);
        assert_near(sender.bytes() - before, 10_000_000, 3);
        let before = sender.bytes();
        sender.set(&mut world, &Policy::default());
        (0..1000).for_each(|_| {
            world.step();
            sender.go_on(&mut world);
        });
        assert!(sender.bytes() > before + 500_000, "without a limit nobody waits");
    }
}

#[test]
fn the_same_policy_again_lifts_no_limit() {
    for mut world in World::kinds() {
        let mut sender = Sender::new(&mut world, 1, Setup::default(), 2, 1000);
        let qp = Rates { bytes: Some(Rate::with_usual_burst(1_000_000, 10_000)), messages: None };
        let policy = Policy { endpoint: rate(1_500_000), qp, ..Policy::default() };
        sender.set(&mut world, &policy);
        sender.start(&mut world);
        let end = Time(world.now.0 + 1000 * MS);
        while world.now < end {
            run(&mut world, &mut [&mut sender], 1);
            sender.set(&mut world, &policy);
        }
        let burst = 65_536;
        assert!(sender.bytes() <= 1_500_000 + 2 * burst, "{} bytes", sender.bytes());
        assert!(sender.done.iter().all(|done| *done * 1000 <= 1_000_000 + 20_000), "{:?}", sender.done);
    }
}

#[test]
fn who_is_held_can_be_destroyed_and_ended() {
    for mut world in World::kinds() {
        let mut sender = Sender::new(&mut world, 1, Setup::default(), 4, 1000);
        let policy = Policy { host: rate(10_000), endpoint: rate(10_000), ..Policy::default() };
        sender.set(&mut world, &policy);
        sender.start(&mut world);
        run(&mut world, &mut [&mut sender], 300);
        let (ended, _) = &sender.pairs[0];
        world.modify_state(ended, QpState::Error);
        world.settle();
        let flushed = std::iter::from_fn(|| ended.done()).filter(|(_, status)| *status == WcStatus::FlushError).count();
        assert!(flushed > 0, "requests that wait for a gate are flushed");
        let (destroyed, _) = &sender.pairs[1];
        world.device_of(destroyed).destroy_qp(destroyed.qp).unwrap();
        let mut rest = Sender { pairs: sender.pairs.split_off(2), done: vec![0; 2], ..sender };
        run(&mut world, &mut [&mut rest], 3000);
        assert_near(rest.bytes(), 30_000, 40);
    }
}

#[test]
fn a_higher_priority_goes_first() {
    for mut world in World::kinds() {
        let mut bulk = Sender::new(&mut world, 1, Setup::default(), 30, 60_000);
        let mut urgent = Sender::new(&mut world, 3, Setup { vni: 2, ..Setup::default() }, 1, 8);
        urgent.set(&mut world, &Policy { priority: Priority::High, ..Policy::default() });
        bulk.set(&mut world, &Policy { priority: Priority::Low, ..Policy::default() });
        bulk.start(&mut world);
        for _ in 0..10 {
            world.step();
        }
        urgent.start(&mut world);
        for _ in 0..100 {
            world.step();
            [&mut bulk, &mut urgent].into_iter().for_each(|sender| sender.go_on(&mut world));
        }
        let each = urgent.done[0] / 100;
        assert!(each >= 1, "{} requests of the higher class", urgent.done[0]);
        assert!(bulk.bytes() > 0, "what is left is for the lower");
    }
}

const DEPTH: usize = 8;
const MS: u64 = 1_000_000;

#[test]
fn everything_that_was_posted_is_sent_in_the_end() {
    for (kind, mut world) in World::kinds().into_iter().enumerate() {
        let pairs: Vec<_> = (0..4).map(|_| world.pair_at(1, Setup::default())).collect();
        for (a, _) in &pairs {
            world.device_of(a).set_policy(Policy { endpoint: rate(12_500_000), ..Policy::default() });
        }
        let (mut left, mut done) = ([TOTAL; 4], [0; 4]);
        let end = Time(world.now.0 + 20_000 * MS);
        while done.iter().sum::<usize>() < 4 * TOTAL {
            for (pair, (a, b)) in pairs.iter().enumerate() {
                while let Some((_, status)) = a.done() {
                    assert_eq!(status, WcStatus::Success);
                    done[pair] += 1;
                }
                while b.done().is_some() {}
                while left[pair] > 0 && TOTAL - left[pair] - done[pair] < 4 * DEPTH {
                    b.post_recv(0, &[b.sge(0, 1000)]);
                    world.post(a, wr(0, SendOp::Send { imm: None }, &[a.sge(0, 1000)]));
                    left[pair] -= 1;
                }
            }
            if world.step() || pairs.iter().any(|(a, _)| !a.cq.entries.lock().unwrap().is_empty()) {
                continue;
            }
            let next = world.engines.iter().filter_map(|engine| engine.poll_timeout()).min();
            let next = next.filter(|at| *at < end).or_else(|| (done == [TOTAL; 4]).then_some(end));
            world.now = next.unwrap_or_else(|| panic!("{kind}: nobody wakes up, {done:?} done"));
        }
    }
}

const TOTAL: usize = 3000;
