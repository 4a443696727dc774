//! Scheduling: which queue pair sends next, and every budget of one poll.
//!
//! Queue pairs that have something to do wait in three orders: to send to other queue pairs of this host, to send to the
//! network, or to take packets from the host's other engines. Each order is a deficit round robin (Shreedhar and Varghese, 1995) on three levels: tenant, endpoint, queue pair.
//! So two busy tenants share a worker half and half, whatever number of queue pairs either has.

mod list;
mod steps;
mod turns;

use crate::timer::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
pub(crate) use list::NumberList;
use rdmesh_verbs::Vni;
pub use steps::StepRate;
use steps::Steps;
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
    local: Turns,
    wire: Turns,
    arrived: Turns,
    steps: Steps,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// To queue pairs of this host, or nowhere: requests of a queue in error are flushed in this order too.
    Local,
    /// To other hosts.
    Wire,
    /// From other engines of this host, to the queue pair.
    Arrived,
}

impl Schedule {
    /// A queue pair of `owner`, which has this budget of steps, was made.
    pub(crate) fn join(&mut self, qp: u32, owner: Owner, steps: Option<StepRate>) {
        let (endpoint, tenant) = self.shares.join(owner);
        for turns in [&mut self.local, &mut self.wire, &mut self.arrived] {
            turns.reserve(qp, endpoint.max(tenant));
            turns.set_parent(endpoint, tenant);
        }
        if self.classes.len() <= qp as usize {
            self.classes.resize(qp as usize + 1, 0);
        }
        self.classes[qp as usize] = endpoint;
        self.steps.join(endpoint, steps);
    }

    /// The queue pair of `owner` goes.
    pub(crate) fn leave(&mut self, qp: u32, owner: Owner) {
        self.remove(Order::Local, qp);
        self.remove(Order::Wire, qp);
        self.remove(Order::Arrived, qp);
        for class in self.shares.leave(owner) {
            self.local.forget(class);
            self.wire.forget(class);
            self.arrived.forget(class);
            self.steps.forget(class);
        }
    }

    /// The queue pair has something to send; it waits for its turn, once.
    pub(crate) fn add(&mut self, order: Order, qp: u32) {
        let class = self.classes[qp as usize];
        self.turns(order).add(class, qp);
    }

    /// The queue pair has nothing to send any more.
    pub(crate) fn remove(&mut self, order: Order, qp: u32) {
        let class = self.classes[qp as usize];
        self.turns(order).remove(class, qp);
    }

    /// Takes out the queue pair whose turn it is.
    pub(crate) fn next(&mut self, order: Order) -> Option<u32> {
        self.turns(order).next()
    }

    /// Sets what a turn of the queue pair has cost, in the unit of [`cost`], against the shares of its endpoint and tenant.
    pub(crate) fn charge(&mut self, order: Order, qp: u32, cost: u64) {
        let Some(&class) = self.classes.get(qp as usize) else { return };
        self.turns(order).charge(class, cost);
    }

    /// Sets the budget of an endpoint that has queue pairs for steps of chains, or takes it away.
    pub(crate) fn set_step_rate(&mut self, owner: Owner, rate: Option<StepRate>) {
        if let Some(class) = self.shares.endpoints.get(&owner) {
            self.steps.set_rate(class.number, rate);
        }
    }

    /// Time at which the queue pair's endpoint may execute another step of a chain; none for now.
    #[inline]
    pub(crate) fn steps_wait(&mut self, qp: u32, now: Time) -> Option<Time> {
        let class = *self.classes.get(qp as usize)?;
        self.steps.wait(class, now)
    }

    /// The queue pair has executed steps of a chain.
    #[inline]
    pub(crate) fn charge_steps(&mut self, qp: u32, steps: u64) {
        if let Some(&class) = self.classes.get(qp as usize) {
            self.steps.charge(class, steps);
        }
    }

    /// Queue pairs that wait.
    pub(crate) fn len(&self, order: Order) -> usize {
        match order {
            Order::Local => self.local.len(),
            Order::Wire => self.wire.len(),
            Order::Arrived => self.arrived.len(),
        }
    }

    /// Whether no queue pair waits.
    pub(crate) fn is_empty(&self, order: Order) -> bool {
        self.len(order) == 0
    }

    fn turns(&mut self, order: Order) -> &mut Turns {
        match order {
            Order::Local => &mut self.local,
            Order::Wire => &mut self.wire,
            Order::Arrived => &mut self.arrived,
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
