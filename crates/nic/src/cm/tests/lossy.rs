//! Randomised tests over a network that loses, repeats and reorders messages, with owners that act at random. The seed decides
//! everything.

use super::world::*;
use crate::cm::*;
use crate::timer::Time;
use core::time::Duration;
use rdmesh_verbs::{Gid, Psn, Qpn};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Fault rates of the network, in percent, and the number of managers for the two endpoints.
#[derive(Clone, Copy)]
struct Plan {
    loss: u64,
    duplicates: u64,
    is_local: bool,
    connections: u32,
}

#[test]
fn a_good_network_does_no_harm() {
    let runs = (0..300).map(|seed| World::run(seed, Plan { loss: 0, duplicates: 0, is_local: false, connections: 6 }));
    assert!(runs.sum::<usize>() > 300 * 6 / 3);
}

#[test]
fn loss_and_repetition_do_no_harm() {
    let runs = (0..2_000).map(|seed| {
        let loss = [5, 20, 40, 70][seed as usize % 4];
        World::run(seed, Plan { loss, duplicates: 20, is_local: false, connections: 4 })
    });
    assert!(runs.sum::<usize>() > 2_000 * 4 / 4);
}

#[test]
fn one_manager_talks_to_itself() {
    let runs = (0..1_000).map(|seed| {
        let loss = [0, 10, 40][seed as usize % 3];
        World::run(seed, Plan { loss, duplicates: 20, is_local: true, connections: 4 })
    });
    assert!(runs.sum::<usize>() > 1_000 * 4 / 3);
}

#[test]
fn a_dead_network_ends_everything() {
    let runs =
        (0..100).map(|seed| World::run(seed, Plan { loss: 100, duplicates: 0, is_local: false, connections: 4 }));
    assert_eq!(runs.sum::<usize>(), 0);
}

/// An action of the test.
enum Act {
    Deliver(usize, Box<Mad>),
    Connect,
    Owner(usize, CommId, Todo),
}

#[derive(Clone, Copy, PartialEq)]
enum Todo {
    Accept,
    Ready,
    Reject,
    Disconnect,
    Destroy,
}

/// An owner's state of an id.
#[derive(Default)]
struct Known {
    /// Result of a `connect`.
    outcome: Option<&'static str>,
    is_connect: bool,
    is_disconnecting: bool,
    is_disconnected: bool,
    is_destroyed: bool,
    established: Option<ConnectionInfo>,
}

struct World {
    plan: Plan,
    dice: Dice,
    now: Time,
    cms: Vec<Cm>,
    acts: BTreeMap<(Time, u64), Act>,
    count: u64,
    known: HashMap<(usize, CommId), Known>,
    /// The passive id of each active one.
    pairs: HashMap<(usize, CommId), u32>,
}

impl World {
    /// Returns the number of connections that both ends have established.
    fn run(seed: u64, plan: Plan) -> usize {
        let cms = if plan.is_local { vec![Cm::new(seed)] } else { vec![Cm::new(seed), Cm::new(!seed)] };
        let mut world = Self {
            plan,
            dice: Dice(seed << 32),
            now: Time(0),
            cms,
            acts: BTreeMap::new(),
            count: 0,
            known: HashMap::new(),
            pairs: HashMap::new(),
        };
        for _ in 0..plan.connections {
            let when = world.dice.below(100);
            world.schedule(when, Act::Connect);
        }
        world.until_quiet(seed);
        world.check_connects(seed);
        world.end(seed);
        world.check_pairs(seed)
    }

    fn schedule(&mut self, milliseconds: u64, act: Act) {
        self.count += 1;
        self.acts.insert((self.now.after(Duration::from_millis(milliseconds)), self.count), act);
    }

    fn until_quiet(&mut self, seed: u64) {
        for _ in 0..100_000 {
            let timer = self.cms.iter().filter_map(Cm::poll_timeout).min();
            let act = self.acts.first_key_value().map(|(key, _)| key.0);
            let Some(next) = [timer, act].into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            self.cms.iter_mut().for_each(|cm| cm.handle_timeout(self.now));
            while let Some(entry) = self.acts.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let act = entry.remove();
                self.act(act);
                self.collect();
            }
            self.collect();
        }
        panic!("seed {seed}: never quiet");
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Deliver(to, mad) => self.cms[to].handle_mad(self.now, &mad),
            Act::Connect => self.connect(),
            Act::Owner(node, id, todo) => self.todo(node, id, todo),
        }
    }

    fn connect(&mut self) {
        let ends = [(A, B), (B, A), (A, A)][self.dice.below(if self.plan.is_local { 3 } else { 2 }) as usize];
        self.count += 1;
        let params = ReqParams {
            qpn: Qpn::new(self.count as u32),
            ca_guid: ends.0.0[8..].try_into().unwrap(),
            starting_psn: Psn::new(self.dice.next() as u32),
            responder_resources: self.dice.below(9) as u8,
            initiator_depth: self.dice.below(9) as u8,
            ..req()
        };
        let node = self.node(ends.0);
        let id = self.cms[node].connect(self.now, path(ends.0, ends.1), &params).unwrap();
        self.known.insert((node, id), Known { is_connect: true, ..Known::default() });
        if self.dice.chance(5) {
            let when = self.dice.below(300);
            self.schedule(when, Act::Owner(node, id, Todo::Destroy));
        }
    }

    fn node(&self, gid: Gid) -> usize {
        usize::from(!self.plan.is_local && gid == B)
    }

    /// Sends what is to be sent, and tells the owners what happened.
    fn collect(&mut self) {
        for node in 0..self.cms.len() {
            while let Some(mad) = self.cms[node].poll_mad() {
                let copies = 1 + u64::from(self.dice.chance(self.plan.duplicates));
                for _ in 0..copies {
                    if !self.dice.chance(self.plan.loss) {
                        let slow = if self.dice.chance(5) { 100 } else { 5 };
                        let delay = self.dice.below(slow);
                        self.schedule(delay, Act::Deliver(self.node(mad.path.remote), mirrored(mad).into()));
                    }
                }
            }
            while let Some((id, event)) = self.cms[node].poll_event() {
                self.on_event(node, id, event);
            }
        }
    }

    fn on_event(&mut self, node: usize, id: CommId, event: Event) {
        let known = self.known.entry((node, id)).or_default();
        assert!(!known.is_destroyed, "{id:?} is told {event:?} after its end");
        let was = known.outcome;
        match event {
            Event::Request { req, .. } => {
                self.pairs.insert((node, id), req.local_comm_id);
                let todo = if self.dice.chance(75) { Todo::Accept } else { Todo::Reject };
                self.later(node, id, todo);
            }
            Event::Reply(_) => {
                assert_eq!(was, None);
                known.outcome = Some("reply");
                let todo = if self.dice.chance(85) { Todo::Ready } else { Todo::Reject };
                self.later(node, id, todo);
            }
            Event::Rejected { .. } => {
                assert!(!known.is_connect || matches!(was, None | Some("reply")), "{was:?}");
                assert!(!known.is_disconnecting, "a disconnect ends in Disconnected");
                known.outcome = Some("rejected");
            }
            Event::Unreachable => {
                assert_eq!(was, None);
                known.outcome = Some("unreachable");
            }
            Event::Established { .. } => {
                known.established = self.cms[node].info(id);
                if self.dice.chance(40) {
                    self.later(node, id, Todo::Disconnect);
                }
            }
            Event::DisconnectRequested { .. } => self.later(node, id, Todo::Disconnect),
            Event::Disconnected | Event::DisconnectTimedOut => {
                assert!(known.is_disconnecting && !known.is_disconnected);
                known.is_disconnected = true;
            }
            Event::TimeWaitExit => {
                if self.dice.chance(50) {
                    self.later(node, id, Todo::Destroy);
                }
            }
            Event::ServiceRequest { .. } | Event::ServiceResolved(_) => unreachable!("no service is asked for"),
        }
    }

    fn later(&mut self, node: usize, id: CommId, todo: Todo) {
        let todo = if self.dice.chance(7) { Todo::Destroy } else { todo };
        let most = if self.dice.chance(20) { 1_000 } else { 10 };
        let delay = self.dice.below(most);
        if todo == Todo::Accept && self.dice.chance(30) || todo == Todo::Ready && self.dice.chance(10) {
            let code = [18, 0x80 | 18][self.dice.below(2) as usize];
            self.cms[node].prepare(self.now, id, code, b"").unwrap();
        }
        self.schedule(delay, Act::Owner(node, id, todo));
    }

    fn todo(&mut self, node: usize, id: CommId, todo: Todo) {
        let (now, Some(info)) = (self.now, self.cms[node].info(id)) else { return };
        let (cm, known) = (&mut self.cms[node], self.known.entry((node, id)).or_default());
        match todo {
            Todo::Accept => {
                self.count += 1;
                let params = RepParams {
                    ca_guid: info.path.local.0[8..].try_into().unwrap(),
                    qpn: Qpn::new(self.count as u32),
                    starting_psn: Psn::new(self.dice.next() as u32),
                    responder_resources: info.responder_resources / 2,
                    initiator_depth: info.initiator_depth / 2,
                    ..rep()
                };
                let _ended_meanwhile = cm.accept(now, id, &params);
            }
            Todo::Ready => {
                if cm.ready(now, id, b"").is_ok() {
                    known.established = cm.info(id);
                    if self.dice.chance(40) {
                        self.later(node, id, Todo::Disconnect);
                    }
                }
            }
            Todo::Reject => {
                let _ended_meanwhile = cm.reject(now, id, RejectReason::CONSUMER_DEFINED, b"", b"");
            }
            Todo::Disconnect => {
                let is_first = info.state == CmState::Established;
                if cm.disconnect(now, id, b"").is_ok() {
                    known.is_disconnecting = is_first;
                }
            }
            // A disconnect that has begun is watched to its end.
            Todo::Destroy if known.is_disconnecting && !known.is_disconnected => {}
            Todo::Destroy => {
                cm.destroy(now, id);
                known.is_destroyed = true;
            }
        }
    }

    /// Every `connect` came out in some way, and every `disconnect` ended.
    fn check_connects(&self, seed: u64) {
        for ((_, id), known) in &self.known {
            let is_open = known.is_connect && known.outcome.is_none() && !known.is_destroyed;
            assert!(!is_open, "seed {seed}: {id:?} has no result");
            let is_undone = known.is_disconnecting && !known.is_disconnected;
            assert!(!is_undone, "seed {seed}: {id:?} never was disconnected");
            assert!(self.plan.loss < 100 || matches!(known.outcome, None | Some("unreachable")));
        }
    }

    /// Everything is given up, at some moment, and nothing stays.
    fn end(&mut self, seed: u64) {
        let alive = self.known.iter().filter(|(_, known)| !known.is_destroyed);
        let mut ids: Vec<_> = alive.map(|(key, _)| *key).collect();
        ids.sort_unstable();
        for (node, id) in ids {
            let when = self.dice.below(100);
            self.schedule(when, Act::Owner(node, id, Todo::Destroy));
        }
        self.until_quiet(seed);
        // Late repetitions may have made requests that no owner has answered since.
        for node in 0..self.cms.len() {
            self.cms[node]
                .exchange
                .table()
                .ids()
                .into_iter()
                .for_each(|id| self.cms[node].destroy(self.now, CommId(id)));
        }
        self.collect();
        self.until_quiet(seed);
        let is_empty = self.cms.iter().all(|cm| cm.exchange.table().is_empty() && cm.poll_timeout().is_none());
        assert!(is_empty, "seed {seed}: something is left");
    }

    /// Two ends that both say that they are connected mean the same connection.
    fn check_pairs(&self, seed: u64) -> usize {
        let actives: HashMap<(u32, Gid, Gid), ConnectionInfo> = self
            .known
            .iter()
            .filter_map(|((_, id), known)| Some((id.0, known.established.filter(|info| info.is_active)?)))
            .map(|(id, info)| ((id, info.path.local, info.path.remote), info))
            .collect();
        let mut seen = HashSet::new();
        for ((node, id), known) in &self.known {
            let Some(p) = known.established.filter(|info| !info.is_active) else { continue };
            let key = (self.pairs[&(*node, *id)], p.path.remote, p.path.local);
            let Some(a) = actives.get(&key) else { panic!("seed {seed}: {id:?} is connected to no identifier") };
            assert!(seen.insert(key), "seed {seed}: two ends for one connection");
            assert_eq!((a.local_qpn, a.remote_qpn), (p.remote_qpn, p.local_qpn));
            assert_eq!((a.rq_psn, a.sq_psn), (p.sq_psn, p.rq_psn));
            assert_eq!((a.responder_resources, a.initiator_depth), (p.initiator_depth, p.responder_resources));
            assert_eq!((a.qp_type, a.mtu, a.pkey), (p.qp_type, p.mtu, p.pkey));
        }
        seen.len()
    }
}
