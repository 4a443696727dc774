//! Scheduling: which queue pair sends next, and every budget of one poll.
//!
//! Queue pairs that have something to do wait in three orders: to send to other queue pairs of this host, to send to the
//! network, or to take packets from the host's other engines. Each order is a deficit round robin (Shreedhar and Varghese, 1995) on three levels: tenant, endpoint, queue pair.
//! So two busy tenants share a worker half and half, whatever number of queue pairs either has; weights change the shares. There
//! is one set of orders for each priority class. Queue pairs that have used up their rates wait before their [`gates`].

mod gates;
mod list;
mod turns;

use crate::policy::{Policy, Priority, Traffic};
use crate::timer::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use gates::Gates;
pub(crate) use list::NumberList;
use rdmesh_verbs::Vni;
use turns::Turns;

/// An endpoint, to which a share is due, and its tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner {
    /// The tenant network.
    pub(crate) vni: Vni,
    /// The endpoint, by a number that is unique on this host.
    pub(crate) endpoint: u32,
}

/// The orders in which an engine's queue pairs send.
#[derive(Default)]
pub(crate) struct Schedule {
    shares: Shares,
    /// The class of each queue pair, by index.
    classes: Vec<u32>,
    /// Priority class of each class of an endpoint.
    priorities: Vec<Priority>,
    /// By priority class.
    orders: [Orders; Priority::ALL.len()],
    gates: Gates,
}

/// The orders of one priority class.
struct Orders {
    local: Turns,
    wire: Turns,
    arrived: Turns,
}

/// The classes of tenants and endpoints that have queue pairs.
#[derive(Default)]
struct Shares {
    tenants: BTreeMap<Vni, Class>,
    endpoints: BTreeMap<Owner, Class>,
    free: Vec<u32>,
    made: u32,
}

/// A class by number, and how many use it: queue pairs of an endpoint, endpoints of a tenant.
struct Class {
    number: u32,
    users: usize,
}

/// Destination of a queue pair's packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Order {
    /// To queue pairs of this host, or nowhere: requests of a queue in error are flushed in this order too.
    #[default]
    Local,
    /// To other hosts.
    Wire,
    /// From other engines of this host, to the queue pair.
    Arrived,
}

impl Schedule {
    /// A queue pair of `owner` was made, for which `policy` holds.
    pub(crate) fn join(&mut self, qp: u32, owner: Owner, policy: &Policy) {
        let is_first = !self.shares.endpoints.contains_key(&owner);
        let (endpoint, tenant) = self.shares.join(owner);
        for turns in self.orders.iter_mut().flat_map(Orders::all) {
            turns.reserve(qp, endpoint.max(tenant));
            turns.set_parent(endpoint, tenant);
        }
        self.gates.reserve(qp, endpoint.max(tenant));
        if self.classes.len() <= qp as usize {
            self.classes.resize(qp as usize + 1, 0);
        }
        self.classes[qp as usize] = endpoint;
        if is_first {
            self.set_policy(owner, policy);
        }
    }

    /// The queue pair of `owner` goes.
    pub(crate) fn leave(&mut self, qp: u32, owner: Owner) {
        for order in Order::ALL {
            self.remove(order, qp);
        }
        self.gates.leave(qp, self.classes[qp as usize]);
        for class in self.shares.leave(owner) {
            self.orders.iter_mut().flat_map(Orders::all).for_each(|turns| turns.forget(class));
            self.gates.forget(class);
        }
    }

    /// Sets the policy of an endpoint, if it has queue pairs here.
    pub(crate) fn set_policy(&mut self, owner: Owner, policy: &Policy) {
        let Some(endpoint) = self.shares.endpoints.get(&owner).map(|class| class.number) else { return };
        let Some(tenant) = self.shares.tenants.get(&owner.vni).map(|class| class.number) else { return };
        for turns in self.orders.iter_mut().flat_map(Orders::all) {
            turns.set_weight(endpoint, policy.weight);
            turns.set_weight(tenant, policy.tenant_weight);
        }
        self.set_priority(endpoint, policy.priority);
        if !self.gates.set(endpoint, tenant, policy) {
            return;
        }
        let qps = self.classes.iter().zip(0..).filter(|(class, _)| **class == endpoint);
        qps.for_each(|(_, qp)| self.gates.renew(qp));
    }

    /// The queue pairs of an endpoint wait in the orders of another priority class.
    fn set_priority(&mut self, endpoint: u32, priority: Priority) {
        let place = endpoint as usize;
        if self.priorities.len() <= place {
            self.priorities.resize(place + 1, Priority::default());
        }
        let before = core::mem::replace(&mut self.priorities[place], priority);
        if before == priority {
            return;
        }
        for order in Order::ALL {
            let waiting: Vec<u32> = self.orders[before as usize].of(order).drain(endpoint).collect();
            let turns = self.orders[priority as usize].of(order);
            waiting.into_iter().for_each(|qp| turns.add(endpoint, qp));
        }
    }

    /// The queue pair has something to send; it waits for its turn, once.
    pub(crate) fn add(&mut self, order: Order, qp: u32) {
        let class = self.classes[qp as usize];
        self.turns(order, class).add(class, qp);
    }

    /// The queue pair has nothing to send any more.
    pub(crate) fn remove(&mut self, order: Order, qp: u32) {
        let class = self.classes[qp as usize];
        self.turns(order, class).remove(class, qp);
    }

    /// Takes out the queue pair whose turn it is.
    #[inline]
    pub(crate) fn next(&mut self, order: Order) -> Option<u32> {
        self.orders.iter_mut().find_map(|orders| orders.of(order).next())
    }

    /// Sets what a turn of the queue pair has cost, in the unit of [`cost`], against the shares of its endpoint and tenant.
    pub(crate) fn charge(&mut self, order: Order, qp: u32, cost: u64) {
        let Some(&class) = self.classes.get(qp as usize) else { return };
        self.turns(order, class).charge(class, cost);
        if order != Order::Arrived {
            self.gates.end_turn(qp, class);
        }
    }

    /// Whether the queue pair may send a packet now; else it joins the order when its rates allow it.
    #[inline]
    pub(crate) fn admit(&mut self, order: Order, qp: u32, now: Time) -> bool {
        self.gates.admit(qp, self.classes[qp as usize], order, now)
    }

    /// The queue pair has sent so much, which counts against its rates.
    #[inline]
    pub(crate) fn meter(&mut self, qp: u32, now: Time, traffic: Traffic) {
        self.gates.charge(qp, self.classes[qp as usize], now, traffic);
    }

    /// Those who were held by their rates, and may send now, join their orders. Returns whether there were any.
    #[inline]
    pub(crate) fn open_gates(&mut self, now: Time) -> bool {
        let mut has_any = false;
        while let Some((qp, order)) = self.gates.next(now, |qp| self.classes[qp as usize]) {
            self.add(order, qp);
            has_any = true;
        }
        has_any
    }

    /// Whether somebody comes through a gate now.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        self.gates.has_due()
    }

    /// Time at which the next gate opens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.gates.deadline()
    }

    /// Time at which the queue pair's endpoint may execute another step of a chain; none for now.
    #[inline]
    pub(crate) fn steps_wait(&mut self, qp: u32, now: Time) -> Option<Time> {
        self.gates.steps(*self.classes.get(qp as usize)?)?.wait(now)
    }

    /// The queue pair has executed steps of a chain.
    #[inline]
    pub(crate) fn charge_steps(&mut self, qp: u32, now: Time, steps: u64) {
        if let Some(bucket) = self.classes.get(qp as usize).and_then(|class| self.gates.steps(*class)) {
            bucket.charge(now, steps);
        }
    }

    /// Queue pairs that wait.
    pub(crate) fn len(&self, order: Order) -> usize {
        self.orders.iter().map(|orders| orders.len(order)).sum()
    }

    /// Whether no queue pair waits.
    pub(crate) fn is_empty(&self, order: Order) -> bool {
        self.len(order) == 0
    }

    fn turns(&mut self, order: Order, endpoint: u32) -> &mut Turns {
        let priority = self.priorities.get(endpoint as usize).copied().unwrap_or_default();
        self.orders[priority as usize].of(order)
    }
}

impl Order {
    const ALL: [Self; 3] = [Self::Local, Self::Wire, Self::Arrived];
}

impl Default for Orders {
    fn default() -> Self {
        Self { local: Turns::new(QUANTUM), wire: Turns::new(QUANTUM), arrived: Turns::new(QUANTUM) }
    }
}

impl Orders {
    fn all(&mut self) -> [&mut Turns; 3] {
        [&mut self.local, &mut self.wire, &mut self.arrived]
    }

    fn of(&mut self, order: Order) -> &mut Turns {
        match order {
            Order::Local => &mut self.local,
            Order::Wire => &mut self.wire,
            Order::Arrived => &mut self.arrived,
        }
    }

    fn len(&self, order: Order) -> usize {
        match order {
            Order::Local => self.local.len(),
            Order::Wire => self.wire.len(),
            Order::Arrived => self.arrived.len(),
        }
    }
}

impl Shares {
    /// One more queue pair; returns the classes of its endpoint and its tenant.
    fn join(&mut self, owner: Owner) -> (u32, u32) {
        let Self { tenants, endpoints, free, made } = self;
        let mut new = || Class {
            number: free.pop().unwrap_or_else(|| {
                *made += 1;
                *made
            }),
            users: 0,
        };
        let tenant = tenants.entry(owner.vni).or_insert_with(&mut new);
        let endpoint = endpoints.entry(owner).or_insert_with(&mut new);
        tenant.users += usize::from(endpoint.users == 0);
        endpoint.users += 1;
        (endpoint.number, tenant.number)
    }

    /// One queue pair less; returns the classes that have no user any more.
    fn leave(&mut self, owner: Owner) -> impl Iterator<Item = u32> + use<> {
        let endpoint = drop_user(&mut self.endpoints, owner);
        let tenant = endpoint.and_then(|_| drop_user(&mut self.tenants, owner.vni));
        self.free.extend(endpoint.into_iter().chain(tenant));
        endpoint.into_iter().chain(tenant)
    }
}

/// One user less of the class under `key`; returns the class's number if that was the last.
fn drop_user<K: Ord>(classes: &mut BTreeMap<K, Class>, key: K) -> Option<u32> {
    let class = classes.get_mut(&key)?;
    class.users -= 1;
    if class.users != 0 {
        return None;
    }
    classes.remove(&key).map(|class| class.number)
}

/// Cost of `packets` with `bytes` together: a packet takes about as long as copying so many bytes.
pub(crate) fn cost(packets: u64, bytes: u64) -> u64 {
    bytes + packets * PACKET_COST
}

/// Cost of a packet without data, in bytes copied: some 200 ns, in which a core copies so much.
const PACKET_COST: u64 = 4096;
/// Cost of the turns of an endpoint or tenant of the usual weight before it is the next one's turn.
const QUANTUM: i64 = 64 * 1024;
/// Queue pairs that have a turn in one poll, at most.
pub(crate) const TURNS_PER_POLL: usize = 64;
/// Cost of one poll, at most, but for its last turn: doorbells that ring meanwhile are looked at afterwards.
pub(crate) const POLL_COST: u64 = 512 * 1024;
/// Packets for other hosts that are made in one poll, at most, but for the last turn.
pub(crate) const PACKETS_PER_POLL: usize = 64;
/// Packets for other engines that may wait before no more are made.
pub(crate) const OUTBOX_LIMIT: usize = 128;
/// Packets of one turn of a queue pair, at most.
pub(crate) const TURN_PACKETS: usize = 16;
/// Cost of one turn, at most, but for its last packet. A poll gives a queue pair that is alone one
/// turn: a smaller one would cost bandwidth.
pub(crate) const TURN_COST: u64 = 256 * 1024;
/// Bytes of packets for other hosts of one turn, at most, but for its last packet.
pub(crate) const TURN_BYTES: usize = 64 * 1024;
/// Requests of one turn towards another host, at most: not every request becomes a packet.
pub(crate) const TURN_STEPS: usize = 64;
/// Requests of a queue in error that are flushed in one turn.
pub(crate) const FLUSH_TURN: usize = 256;
/// Queue pairs in error whose receive queues are looked at in one poll.
pub(crate) const FAILED_PER_POLL: usize = 32;

#[cfg(test)]
mod tests;
