//! Moves between engines: whatever is on its way, programs notice nothing.

use super::world::*;
use crate::engine::{Budget, MovingDevice};
use crate::timer::Time;
use rdmesh_verbs::*;
use std::time::Duration;

impl World {
    /// Moves the device of `node` to the engine `to` of the same host.
    pub(super) fn move_to(&mut self, node: &mut Node, to: usize) {
        self.pass_packets();
        self.engines.iter_mut().for_each(|engine| engine.settle_arrivals(self.now, &mut Budget::unlimited()));
        self.pass_packets();
        let from = &mut self.engines[node.engine];
        MovingDevice::prepare(from, self.now);
        self.events.extend(std::iter::from_fn(|| from.poll_event()));
        let moving = MovingDevice::take(from, node.context).unwrap();
        assert!(from.poll_event().is_none(), "it would be about a device that has gone");
        self.pass_packets();
        node.context = moving.put(&mut self.engines[to], self.now);
        node.engine = to;
        assert!(self.engines[to].device(node.context).is_ok());
    }

    /// One poll of each engine, with whose packets nobody deals yet.
    fn poll_only(&mut self) {
        self.engines.iter_mut().for_each(|engine| {
            engine.poll(self.now);
        });
        self.pass_packets();
    }
}

const SMALL: u64 = 64;
const LARGE: u32 = 20_000;

fn write_at(node: &Node, peer: &Node, id: u64, len: u32) -> SendWr {
    let at = id * SMALL % (LEN as u64 / 2 - u64::from(len));
    let op = SendOp::Write { remote_addr: BASE + LEN as u64 / 2 + at, rkey: peer.key, imm: None };
    wr(id, op, &[node.sge(at, len)])
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// One end of a connection, with what it has posted.
struct End {
    node: Node,
    posted: u64,
}

impl End {
    /// Posts a WRITE with immediate, for which the peer has a receive, or a READ, unless many are under way.
    fn post(&mut self, world: &mut World, peer: &Node, seed: &mut u64) {
        if self.posted
            - self.node.cq.entries.lock().unwrap().iter().filter(|wc| wc.opcode != WcOpcode::RecvRdmaWithImm).count()
                as u64
            >= 60
        {
            return;
        }
        let len = if random(seed, 4) == 0 { LARGE } else { SMALL as u32 };
        let mut wr = write_at(&self.node, peer, self.posted, len);
        match &mut wr.op {
            SendOp::Write { imm, .. } if random(seed, 4) != 0 => {
                peer.post_recv(self.posted, &[]);
                *imm = Some(self.posted as u32);
            }
            SendOp::Write { remote_addr, rkey, .. } => wr.op = SendOp::Read { remote_addr: *remote_addr, rkey: *rkey },
            _ => {}
        }
        world.post(&self.node, wr);
        self.posted += 1;
    }

    /// Every request has succeeded, in order, and so have the peer's that took a receive.
    fn check(&self, what: &str) {
        let all: Vec<_> = std::iter::from_fn(|| self.node.poll()).collect();
        let (received, sent): (Vec<_>, Vec<_>) = all.into_iter().partition(|wc| wc.opcode == WcOpcode::RecvRdmaWithImm);
        assert!(received.iter().all(|wc| wc.status == WcStatus::Success), "{what}");
        assert!(received.is_sorted_by_key(|wc| wc.imm) && received.len() > 20, "{what}");
        let sent: Vec<_> = sent.into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, (0..self.posted).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>(), "{what}");
    }
}

/// Connections of one host with three engines, and of two hosts with two each; both ends send, and are moved at random moments,
/// with messages of one and of many packets on their way, and with lost datagrams.
#[test]
fn messages_under_way_are_executed_once_and_in_order() {
    for (hosts, shards, lost) in [(1, 3, 0), (1, 2, 0), (2, 2, 0), (2, 3, 20)] {
        let mut world = World::hosts(hosts, shards);
        let mut seed = 7;
        world.lose = Box::new(move |_, _| lost != 0 && random(&mut seed, lost) == 0);
        let (a, b) = world.pair_at(1, Setup { cqe: 10_000, ..Setup::default() });
        let mut ends = [a, b].map(|node| End { node, posted: 0 });
        let (mut seed, mut moves) = (3, 0);
        for _ in 0..400 {
            let burst = if random(&mut seed, 8) == 0 { 80 } else { 6 };
            for _ in 0..random(&mut seed, burst) {
                let [a, b] = &mut ends;
                let (from, to) = if random(&mut seed, 2) == 0 { (a, b) } else { (b, a) };
                from.post(&mut world, &to.node, &mut seed);
            }
            match random(&mut seed, 3) {
                0 => world.poll_only(),
                1 => drop(world.step()),
                _ => {}
            }
            let second = if hosts == 1 { 0 } else { shards as u64 };
            for (end, first) in ends.iter_mut().zip([0, second]) {
                if random(&mut seed, 3) == 0 {
                    let to = first + random(&mut seed, u64::from(shards));
                    world.move_to(&mut end.node, to as usize);
                    moves += 1;
                }
            }
            // Lost datagrams take longer to be noticed.
            let pause = if lost == 0 { 20 } else { 2000 };
            world.now = world.now.after(Duration::from_micros(random(&mut seed, pause)));
        }
        world.run_until(world.now.after(Duration::from_secs(20)));
        let what = format!("{hosts} hosts of {shards}, one of {lost} lost");
        assert!(ends.iter().all(|end| end.posted > 50) && moves > 200, "{what}");
        ends.iter().for_each(|end| end.check(&what));
    }
}

/// Replies that have come before the move are not overtaken by those to later requests, which take no way at all.
#[test]
fn replies_stay_in_order() {
    let mut world = World::new(2);
    let (a, mut b) = world.pair(Setup::default());
    for id in 0..40 {
        world.post(&a, write_at(&a, &b, id, 8));
    }
    for _ in 0..4 {
        world.engines[0].poll(world.now);
        world.pass_packets();
    }
    world.move_to(&mut b, 0);
    for id in 40..60 {
        world.post(&a, write_at(&a, &b, id, 8));
    }
    world.settle();
    let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
    assert_eq!(done, (0..60).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

/// A queue pair that waits for a time waits no longer, and no less, where it has moved to.
#[test]
fn timers_go_along() {
    for mut world in [World::new(2), World::hosts(2, 2)] {
        let (mut a, b) = world.pair(Setup::default());
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), None, "the receiver is not ready");
        let deadline = world.engines.iter().filter_map(|engine| engine.poll_timeout()).min();
        world.move_to(&mut a, 1);
        assert!(deadline.is_some());
        assert_eq!(world.engines.iter().filter_map(|engine| engine.poll_timeout()).min(), deadline);
        b.post_recv(2, &[b.sge(0, 8)]);
        world.run_until(world.now.after(Duration::from_secs(1)));
        assert_eq!((a.done(), b.done()), (Some((1, WcStatus::Success)), Some((2, WcStatus::Success))));
    }
}

#[test]
fn a_queue_pair_in_error_is_flushed_where_it_is() {
    let mut world = World::new(2);
    let (mut a, b) = world.pair(Setup::default());
    world.modify_state(&a, QpState::Error);
    world.settle();
    world.move_to(&mut a, 1);
    assert_eq!(world.state(&a), QpState::Error);
    a.post_recv(5, &[]);
    world.post(&a, write_at(&a, &b, 6, 8));
    world.run_until(Time(100_000_000));
    let mut flushed = [a.done().unwrap(), a.done().unwrap()];
    flushed.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(flushed, [(5, WcStatus::FlushError), (6, WcStatus::FlushError)]);
}

/// Places on the old engine are used again, and nothing there answers for the device.
#[test]
fn numbers_and_places_are_not_mixed_up() {
    let mut world = World::new(2);
    let mut nodes: Vec<Node> = (0..6).map(|n| world.node(0, 1 + n, Setup::default())).collect();
    for round in 0..20 {
        for (at, node) in nodes.iter_mut().enumerate() {
            let to = (round + at) % 2;
            world.move_to(node, to);
        }
        let gone = nodes.remove(round % 6);
        world.engines[gone.engine].close(gone.context).unwrap();
        nodes.push(world.node(round % 2, 1 + (round % 6) as u8, Setup::default()));
        let mut numbers: Vec<_> = nodes.iter().map(|node| node.qpn).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), nodes.len());
        for node in &nodes {
            let engine = &mut world.engines[node.engine];
            assert_eq!(engine.find_qp(node.qpn), Some((node.context, node.qp)));
            assert_eq!(world.engines[1 - node.engine].find_qp(node.qpn), None);
        }
    }
    let context = nodes[0].context;
    world.engines[nodes[0].engine].close(context).unwrap();
    assert!(MovingDevice::take(&mut world.engines[nodes[0].engine], context).is_none());
}

/// Members of groups are members on the other engine, and not on the first one.
#[test]
fn groups_go_along() {
    let mut world = World::new(2);
    let ud = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let group = Gid::from_ip([239, 1, 2, 3].into());
    let mut nodes: Vec<Node> = (0..3).map(|n| world.node(0, 1 + n, ud)).collect();
    for node in &nodes {
        world.connect(node, node);
        world.engines[0].device(node.context).unwrap().attach_mcast(node.qp, group).unwrap();
    }
    for round in 0..10u64 {
        world.move_to(&mut nodes[(round % 3) as usize], (round / 2 % 2) as usize);
        let from = &nodes[1];
        nodes.iter().for_each(|node| node.post_recv(round, &[node.sge(0, 100)]));
        let av = AddressVector { dgid: group, ..AddressVector::default() };
        let ah = world.engines[from.engine].device(from.context).unwrap().create_ah(from.pd, av).unwrap() + 1;
        let op = SendOp::Datagram { ah, qpn: Qpn::MULTICAST, qkey: QKEY, imm: None };
        world.post(from, wr(100, op, &[from.sge(0, 8)]));
        world.settle();
        for node in &nodes {
            let received = std::iter::from_fn(|| node.done()).filter(|(id, _)| *id == round).count();
            assert_eq!(received, 1, "round {round}");
        }
    }
    let last = &nodes[0];
    world.engines[last.engine].device(last.context).unwrap().detach_mcast(last.qp, group).unwrap();
}

/// A doorbell that has been seen is not forgotten.
#[test]
fn what_was_about_to_be_sent_is_sent() {
    for mut world in [World::new(2), World::hosts(2, 2)] {
        let (mut a, b) = world.pair(Setup::default());
        world.post(&a, write_at(&a, &b, 1, LARGE));
        world.move_to(&mut a, 1);
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::Success)));
    }
}

/// No connection of a number has an epoch that an earlier one of the same number had on another engine.
#[test]
fn epochs_rise_on_the_other_engine() {
    let mut world = World::new(2);
    let mut nodes: Vec<Node> = (0..5).map(|n| world.node(0, 1 + n, Setup::default())).collect();
    let epochs = |world: &World| [0, 1].map(|at| world.engines[at].out.epoch());
    assert!(epochs(&world)[0] > epochs(&world)[1]);
    world.move_to(&mut nodes[0], 1);
    assert_eq!(epochs(&world)[0], epochs(&world)[1]);
}
