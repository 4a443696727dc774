//! Orders of turns, packets and doorbells of a short exchange with a chain, tried one by one.
//!
//! A client on another host sends two requests. The chain waits for each, counts it by a LOCAL ADD and by an ADD with packets,
//! enables its reply and the next receive. What comes next is chosen each time: the turn of a queue pair that has something to
//! do, of either host, or the arrival of a packet. All exchanges are tried that leave the usual order so many times, and
//! in which so many packets are lost or come twice.

use super::super::world::*;
use super::world::*;
use crate::path::{Datagram, Origin};
use crate::schedule::Order;
use crate::timer::Time;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Request};
use rdmesh_verbs::*;
use std::collections::VecDeque;

/// Something that may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// The turn of a queue pair of an engine, towards its own host or another.
    Turn(usize, Order, u32),
    /// The first packet to an engine arrives.
    Arrive(usize),
    /// The client posts its next request.
    Post,
    /// The first packet to an engine is lost.
    Lose(usize),
    /// The first packet to an engine comes twice.
    Repeat(usize),
}

/// The choices of an exchange: each with the number of ways that there were.
#[derive(Default)]
struct Choices {
    trail: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    fn choose(&mut self, ways: usize) -> usize {
        if self.next == self.trail.len() {
            self.trail.push((0, ways));
        }
        self.next += 1;
        self.trail[self.next - 1].0
    }

    /// The next combination, depth first; false after the last.
    fn advance(&mut self) -> bool {
        self.trail.truncate(self.next);
        self.next = 0;
        while let Some((choice, ways)) = self.trail.pop() {
            if choice + 1 < ways {
                self.trail.push((choice + 1, ways));
                return true;
            }
        }
        false
    }
}

struct Exchange {
    world: World,
    server: Node,
    client: Node,
    replying: Queue,
    control: Queue,
    flying: [VecDeque<Vec<u8>>; 2],
    to_post: u64,
    /// Times that the usual order may still be left, and packets that may still be lost or repeated.
    detours: usize,
    faults: usize,
}

impl Exchange {
    fn new(detours: usize, faults: usize) -> Self {
        let mut world = World::two_hosts();
        let setup = Setup { signal_all: false, ..Setup::default() };
        let (server, client) = (world.node(0, 1, setup), world.node(1, 2, setup));
        let replying = world.plain(&server, 64, true);
        world.manage(&replying, GROUP, 1).unwrap();
        let mut reply = request(ChainOp::SendImm);
        (reply.imm, reply.sges) = (9, [server.sge(64, 8)].into_iter().collect());
        replying.put(&[reply]);
        replying.put_receive(&[server.sge(64, 8)]);
        let control = world.plain(&server, 64, true);
        world.manage(&control, GROUP, 5).unwrap();
        let add = Request { flags: ChainFlags::empty(), ..local(ChainOp::FetchAdd, &server, 8, 1) };
        let add = Request { sges: [server.sge(32, 8)].into_iter().collect(), ..add };
        control.put(&[
            order(ChainOp::Wait, replying.cq, 1, 2),
            local(ChainOp::FetchAdd, &server, 0, 1),
            add,
            Request { imm: 1, ..order(ChainOp::Enable, replying.qp, 1, 0) },
            Request { imm: 1, ..order(ChainOp::RecvEnable, replying.qp, 1, 0) },
        ]);
        let patient = |attr: &mut QpAttr| (attr.retry_cnt, attr.rnr_retry) = (7, 7);
        world.connect_with(&replying.node, &client, patient);
        world.connect_with(&client, &replying.node, patient);
        world.connect(&control.node, &control.node);
        (0..REQUESTS).for_each(|n| client.post_recv(n, &[client.sge(0, 8)]));
        let device = &mut world.device_of(&server);
        device.enable(control.qp, u64::MAX).unwrap();
        device.enable_receives(replying.qp, 1).unwrap();
        let flying = [VecDeque::new(), VecDeque::new()];
        Self { world, server, client, replying, control, flying, to_post: REQUESTS, detours, faults }
    }

    /// The events that may happen, the usual one first.
    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        for engine in 0..2 {
            actions.extend((!self.flying[engine].is_empty()).then_some(Action::Arrive(engine)));
            for order in [Order::Local, Order::Wire] {
                let schedule = &mut self.world.engines[engine].out.schedule;
                let ready: Vec<u32> = std::iter::from_fn(|| schedule.next(order)).collect();
                ready.iter().for_each(|index| schedule.add(order, *index));
                actions.extend(ready.into_iter().map(|index| Action::Turn(engine, order, index)));
            }
        }
        actions.extend((self.to_post > 0).then_some(Action::Post));
        if self.detours == 0 {
            actions.truncate(1);
        }
        if self.faults > 0 {
            let flying = (0..2).filter(|engine| !self.flying[*engine].is_empty());
            actions.extend(flying.flat_map(|engine| [Action::Lose(engine), Action::Repeat(engine)]));
        }
        actions
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Turn(engine, order, index) => self.turn(engine, order, index),
            Action::Arrive(engine) => self.arrive(engine),
            Action::Post => {
                self.to_post -= 1;
                let send = wr(self.to_post, SendOp::Send { imm: None }, &[self.client.sge(128, 8)]);
                self.world.post(&self.client, send);
            }
            Action::Lose(engine) => drop(self.flying[engine].pop_front()),
            Action::Repeat(engine) => {
                let copy = self.flying[engine][0].clone();
                self.flying[engine].push_front(copy);
            }
        }
        for engine in &mut self.world.engines {
            engine.drain_inbox();
            while engine.qps.see_to_chains(&mut engine.contexts, &mut engine.out) != 0 {
                engine.drain_inbox();
            }
        }
    }

    fn turn(&mut self, engine: usize, order: Order, index: u32) {
        let (e, transmits) = (&mut self.world.engines[engine], &mut self.world.transmits);
        e.out.schedule.remove(order, index);
        if order == Order::Local {
            e.run(index);
            return;
        }
        let transmits = transmits.as_mut().expect("nothing is being sent");
        transmits.clear();
        e.take_turn(index, transmits);
        for train in transmits.trains() {
            self.flying[1 - engine].extend(transmits.bytes(train).chunks(train.segment).map(<[u8]>::to_vec));
        }
    }

    fn arrive(&mut self, engine: usize) {
        let Some(bytes) = self.flying[engine].pop_front() else { return };
        let origin = Origin::Host(World::host(1 - engine));
        let datagram = Datagram { origin, traffic_class: 0, received: None, bytes: &bytes };
        self.world.engines[engine].handle_datagram(self.world.now, &datagram);
    }

    /// Time passes to the next deadline. False where there is none.
    fn pass_time(&mut self) -> bool {
        let Some(at) = self.world.engines.iter().filter_map(|engine| engine.poll_timeout()).min() else { return false };
        self.world.now = at.max(Time(self.world.now.0 + 1));
        for engine in &mut self.world.engines {
            engine.out.now = self.world.now;
            engine.expire();
        }
        true
    }

    fn run(&mut self, choices: &mut Choices) {
        for _ in 0..MOST_ACTIONS {
            let actions = self.actions();
            if actions.is_empty() {
                if !self.pass_time() {
                    return;
                }
                continue;
            }
            let usual = if self.detours == 0 { 1 } else { actions.iter().filter(|action| !is_fault(**action)).count() };
            let chosen = if actions.len() > 1 { choices.choose(actions.len()) } else { 0 };
            self.faults -= usize::from(chosen >= usual);
            self.detours -= usize::from(chosen > 0 && chosen < usual);
            self.act(actions[chosen]);
        }
        panic!("endless");
    }

    /// One reply for each request, and no effect twice.
    fn check(&mut self, context: &str) {
        let replies: Vec<_> =
            std::iter::from_fn(|| self.client.poll()).filter(|wc| wc.opcode == WcOpcode::Recv).collect();
        assert_eq!(replies.len() as u64, REQUESTS, "replies {context}");
        assert!(replies.iter().all(|wc| (wc.status, wc.imm) == (WcStatus::Success, 9)), "{replies:?} {context}");
        assert_eq!((self.server.word(0), self.server.word(8)), (REQUESTS, REQUESTS), "{context}");
        assert_eq!(self.world.produced(&self.replying), 2 * REQUESTS, "{context}");
        let entry = self.world.entry(&self.server, GROUP);
        assert_eq!((entry.fault, entry.counts.atomics), (None, 2 * REQUESTS), "{context}");
        assert_eq!(self.world.state(&self.control.node), QpState::Rts, "{context}");
    }
}

fn is_fault(action: Action) -> bool {
    matches!(action, Action::Lose(_) | Action::Repeat(_))
}

/// Number of exchanges with up to so many detours and faults.
fn explore(detours: usize, faults: usize) -> u64 {
    let (mut choices, mut count) = (Choices::default(), 0);
    loop {
        let mut exchange = Exchange::new(detours, faults);
        exchange.run(&mut choices);
        exchange.check(&format!("{:?}", &choices.trail[..choices.next]));
        count += 1;
        if !choices.advance() {
            return count;
        }
    }
}

#[test]
fn every_order_of_turns_answers_each_request_once() {
    let count = explore(4, 0);
    assert!(count > 5000, "{count}");
}

#[test]
fn every_two_losses_or_repetitions_are_survived() {
    let count = explore(1, 2);
    assert!(count > 3000, "{count}");
}

#[test]
fn every_loss_or_repetition_in_other_orders_is_survived() {
    let count = explore(2, 1);
    assert!(count > 3000, "{count}");
}

/// As many detours and faults as `RDMESH_CHAIN_ORDERS` says (`6,0`), for minutes on end: prints how many exchanges there were.
#[test]
fn as_many_orders_as_asked_for_are_survived() {
    let bound = std::env::var("RDMESH_CHAIN_ORDERS").unwrap_or_else(|_| "2,0".to_owned());
    let (detours, faults) = bound.split_once(',').expect("detours and faults, such as 6,0");
    let count = explore(detours.parse().unwrap(), faults.parse().unwrap());
    println!("{count} exchanges with up to {detours} detours and {faults} faults");
    assert!(count > 1);
}

/// Requests of the client.
const REQUESTS: u64 = 2;
const MOST_ACTIONS: usize = 2000;
