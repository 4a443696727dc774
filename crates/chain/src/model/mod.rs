//! The reference interpreter of chains.
//!
//! It says what a chain means: every rule of fetch, order and counting, and nothing about speed. A [`Model`] has memory with
//! keys, completion queues that count, managed send and receive queues, and clients with memory of their own. It advances by
//! one [`Step`] at a time; which of the possible steps comes next is the caller's to choose ([`Model::step`]) or a schedule's
//! ([`Model::run`]), so that a test can try every order that the rules allow.
//!
//! A work request that is not LOCAL has four moments: it is *fetched* (its slot is copied), *started* (sent), *executed* at the
//! responder, and *finished* (its result lies in the requester's memory, and its completion counts). A LOCAL one, NOP, WAIT
//! and ENABLE have the last three at once. Within a queue each kind of moment comes in the order of the requests.
//!
//! Not in the model: packets (a message lands as a whole), receivers without credit, errors of the network.

mod execute;
mod history;
mod memory;

pub use history::{Change, Fetched, History, Writer};
use memory::{Memory, Touched};
pub use rdmesh_verbs::chain::Counts;
use rdmesh_verbs::chain::{BadRequest, ChainFlags, ChainOp, Request, offset};
use rdmesh_verbs::{Access, Key, Sge, WcStatus};
use std::collections::VecDeque;

/// Moment at which slots are copied. A chain is right if its result is the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// As soon as the rules allow, up to a lap ahead: when a slot is enabled, even behind a WAIT, and no LOCAL request before it
    /// is left.
    Earliest,
    /// Start of the request.
    AtStart,
    /// At any moment between; [`Step::Fetch`] is a step of its own.
    Between,
}

/// Choice of the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// The first that is possible.
    First,
    /// By chance, from a seed.
    Random(u64),
}

/// Something that can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Step {
    Fetch {
        queue: u32,
    },
    Start {
        queue: u32,
    },
    Execute {
        queue: u32,
    },
    Finish {
        queue: u32,
    },
    Receive {
        queue: u32,
    },
    /// The processor stores a word; see [`Model::store_later`].
    Store,
}

/// The error that stopped the chain: the first one, which stops all queues of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The queue.
    pub queue: u32,
    /// Whether it is a receive queue.
    pub is_receive: bool,
    /// The request, counted from the queue's first.
    pub index: u64,
    /// Its failure.
    pub status: WcStatus,
}

/// A message that a client received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Immediate data.
    pub imm: Option<u32>,
    /// Its data; of a WRITE, what it wrote.
    pub data: Vec<u8>,
}

/// The world of one chain group.
#[derive(Clone, Debug)]
pub struct Model {
    memory: Memory,
    produced: Vec<u64>,
    queues: Vec<SendQueue>,
    receives: Vec<RecvQueue>,
    clients: Vec<Client>,
    counts: Counts,
    fault: Option<Fault>,
    fetch: Fetch,
    chance: u64,
    trace: Option<Vec<(u32, u64, ChainOp)>>,
    history: Option<History>,
}

#[derive(Clone, Debug)]
struct SendQueue {
    key: u32,
    cycle: u64,
    stride: usize,
    cq: u32,
    client: Option<u32>,
    limit: u64,
    next: u64,
    fetched: VecDeque<(Vec<u8>, Result<Request, BadRequest>)>,
    in_flight: VecDeque<InFlight>,
}

/// A request between its start and its end.
#[derive(Clone, Debug)]
struct InFlight {
    index: u64,
    request: Request,
    slot: Vec<u8>,
    /// Data that the responder returned, once it has executed the request.
    result: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct RecvQueue {
    key: u32,
    cycle: u64,
    stride: usize,
    cq: u32,
    limit: u64,
    next: u64,
    arrived: VecDeque<Vec<u8>>,
}

#[derive(Clone, Debug, Default)]
struct Client {
    memory: Memory,
    inbox: Vec<Message>,
}

impl Model {
    /// A world without objects.
    pub fn new(fetch: Fetch) -> Self {
        Self {
            memory: Memory::default(),
            produced: Vec::new(),
            queues: Vec::new(),
            receives: Vec::new(),
            clients: Vec::new(),
            counts: Counts::default(),
            fault: None,
            fetch,
            chance: 0,
            trace: None,
            history: None,
        }
    }

    /// Registers memory, and returns its key.
    pub fn register(&mut self, base: u64, bytes: Vec<u8>, access: Access) -> u32 {
        self.memory.register(base, bytes, access)
    }

    /// A completion queue that counts.
    pub fn create_cq(&mut self) -> u32 {
        self.produced.push(0);
        self.produced.len() as u32 - 1
    }

    /// A client, which is reached by queues that are connected to it.
    pub fn create_client(&mut self) -> u32 {
        self.clients.push(Client::default());
        self.clients.len() as u32 - 1
    }

    /// Registers memory of a client, for the chain to write.
    pub fn register_at_client(&mut self, client: u32, base: u64, bytes: Vec<u8>) -> u32 {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.clients[client as usize].memory.register(base, bytes, access)
    }

    /// A managed send queue of so many slots. It leads to a client, or back to the chain's own memory. Returns its handle
    /// and the key of its ring, where slot `n` lies at address `n * stride`.
    pub fn create_queue(&mut self, slots: usize, stride: usize, cq: u32, client: Option<u32>) -> (u32, u32) {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let key = self.memory.register(0, vec![0; slots * stride], access);
        let (fetched, in_flight) = (VecDeque::new(), VecDeque::new());
        let cycle = slots as u64;
        self.queues.push(SendQueue { key, cycle, stride, cq, client, limit: 0, next: 0, fetched, in_flight });
        (self.queues.len() as u32 - 1, key)
    }

    /// A managed receive queue. Returns its handle and the key of its ring.
    pub fn create_receive_queue(&mut self, slots: usize, stride: usize, cq: u32) -> (u32, u32) {
        let key = self.memory.register(0, vec![0; slots * stride], Access::LOCAL_WRITE);
        let (cycle, arrived) = (slots as u64, VecDeque::new());
        self.receives.push(RecvQueue { key, cycle, stride, cq, limit: 0, next: 0, arrived });
        (self.receives.len() as u32 - 1, key)
    }

    /// Lets a send queue execute up to an index, as an ordinary queue's ENABLE does.
    pub fn enable(&mut self, queue: u32, limit: u64) {
        let queue = &mut self.queues[queue as usize];
        queue.limit = queue.limit.max(limit);
        self.prefetch();
    }

    /// Lets a receive queue take messages up to an index.
    pub fn enable_receives(&mut self, queue: u32, limit: u64) {
        let queue = &mut self.receives[queue as usize];
        queue.limit = queue.limit.max(limit);
    }

    /// Sends a message to a receive queue; it arrives when there is a receive request.
    pub fn send(&mut self, receive_queue: u32, data: Vec<u8>) {
        self.receives[receive_queue as usize].arrived.push_back(data);
    }

    /// Memory of the chain.
    ///
    /// # Panics
    ///
    /// If there is no such key.
    pub fn bytes(&self, key: u32) -> &[u8] {
        &self.memory.region(key).expect("a key of this world").bytes
    }

    /// Memory of the chain, as the program that owns it may change it.
    ///
    /// # Panics
    ///
    /// If there is no such key.
    pub fn bytes_mut(&mut self, key: u32) -> &mut [u8] {
        &mut self.memory.region_mut(key).expect("a key of this world").bytes
    }

    /// A store of the processor, of at most eight bytes in one aligned word. Stores come in order, as a step of their own or
    /// between two words of a request that reads.
    pub fn store_later(&mut self, key: u32, at: usize, bytes: &[u8]) {
        self.memory.store_later(key, at, bytes);
    }

    /// Stores that have not come yet.
    pub fn stores_left(&self) -> usize {
        self.memory.stores_left()
    }

    /// Puts a completion queue's count to where it would be after a long time.
    pub fn preset_cq(&mut self, cq: u32, produced: u64) {
        self.produced[cq as usize] = produced;
    }

    /// Puts a send queue, which has not begun, to where it would be after a long time.
    pub fn preset_queue(&mut self, queue: u32, next: u64) {
        let queue = &mut self.queues[queue as usize];
        (queue.next, queue.limit) = (next, next);
    }

    /// Puts a receive queue to where it would be after a long time.
    pub fn preset_receives(&mut self, queue: u32, next: u64) {
        let queue = &mut self.receives[queue as usize];
        (queue.next, queue.limit) = (next, next);
    }

    /// Memory of a client.
    ///
    /// # Panics
    ///
    /// If there is no such key.
    pub fn client_bytes(&self, client: u32, key: u32) -> &[u8] {
        &self.clients[client as usize].memory.region(key).expect("a key of this client").bytes
    }

    /// Takes the messages that a client received.
    pub fn take_messages(&mut self, client: u32) -> Vec<Message> {
        std::mem::take(&mut self.clients[client as usize].inbox)
    }

    /// Number of completions that a completion queue has had.
    pub fn produced(&self, cq: u32) -> u64 {
        self.produced[cq as usize]
    }

    /// The index of the next request that a send queue starts.
    pub fn position(&self, queue: u32) -> u64 {
        self.queues[queue as usize].next
    }

    /// Counts of requests executed so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The first error.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// From now on, notes every request that starts.
    pub fn record(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// The requests that started since [`Model::record`]: queue, index, operation.
    pub fn trace(&self) -> &[(u32, u64, ChainOp)] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// From now on, notes every change of memory and every slot that is fetched.
    pub fn keep_history(&mut self) {
        self.memory.watch();
        self.history.get_or_insert_default();
    }

    /// The steps noted since [`Model::keep_history`].
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// All steps that are possible now.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.fault.is_some() {
            return steps;
        }
        for (queue, q) in (0..).zip(&self.queues) {
            steps.extend(q.in_flight.front().filter(|f| f.result.is_some()).map(|_| Step::Finish { queue }));
            steps.extend(q.in_flight.iter().any(|f| f.result.is_none()).then_some(Step::Execute { queue }));
            steps.extend(self.can_start(q).then_some(Step::Start { queue }));
            steps.extend((self.fetch == Fetch::Between && q.can_fetch()).then_some(Step::Fetch { queue }));
        }
        let waiting = (0..).zip(&self.receives).filter(|(_, r)| r.next < r.limit && !r.arrived.is_empty());
        steps.extend(waiting.map(|(queue, _)| Step::Receive { queue }));
        steps.extend((self.memory.stores_left() > 0).then_some(Step::Store));
        steps
    }

    /// Takes one of the possible steps.
    pub fn step(&mut self, step: Step) {
        let writer = self.history.as_ref().map(|_| self.writer(step));
        match step {
            Step::Fetch { queue } => self.fetch(queue),
            Step::Start { queue } => self.start(queue),
            Step::Execute { queue } => self.execute(queue),
            Step::Finish { queue } => self.finish(queue),
            Step::Receive { queue } => self.receive(queue),
            Step::Store => self.memory.store(),
        }
        writer.into_iter().for_each(|writer| self.note_changes(writer));
        self.prefetch();
    }

    /// The writer of what a step writes.
    fn writer(&self, step: Step) -> Writer {
        let request = |queue: u32, index: Option<u64>| {
            let next = self.queues[queue as usize].next;
            Writer::Request { queue, index: index.unwrap_or(next) }
        };
        let oldest = |queue: u32, is_done: bool| {
            let in_flight = &self.queues[queue as usize].in_flight;
            in_flight.iter().find(|f| f.result.is_some() == is_done).map(|f| f.index)
        };
        match step {
            Step::Fetch { queue } | Step::Start { queue } => request(queue, None),
            Step::Execute { queue } => request(queue, oldest(queue, false)),
            Step::Finish { queue } => request(queue, oldest(queue, true)),
            Step::Receive { queue } => Writer::Message { queue, index: self.receives[queue as usize].next },
            Step::Store => Writer::Processor,
        }
    }

    fn note_changes(&mut self, writer: Writer) {
        for Touched { key, at, before, is_store } in self.memory.take_touched() {
            let after = self.bytes(key)[at..at + before.len()].to_vec();
            let by = if is_store { Writer::Processor } else { writer };
            self.history.iter_mut().for_each(|history| {
                history.add(Change { by, key, at, before: before.clone(), after: after.clone() });
            });
        }
    }

    /// Takes steps until none is possible, or so many were taken; returns whether none is possible.
    pub fn run(&mut self, schedule: Schedule, most: usize) -> bool {
        if let Schedule::Random(seed) = schedule {
            self.chance = seed ^ 0x9e37_79b9_7f4a_7c15;
        }
        for _ in 0..most {
            let steps = self.steps();
            let choice = match schedule {
                Schedule::First => 0,
                Schedule::Random(_) => next_chance(&mut self.chance) as usize % steps.len().max(1),
            };
            let Some(step) = steps.get(choice) else { return true };
            self.step(*step);
        }
        self.steps().is_empty()
    }

    fn can_start(&self, queue: &SendQueue) -> bool {
        let peeked;
        let request = match queue.fetched.front() {
            Some((_, request)) => request,
            None if !queue.can_fetch() => return false,
            // With `Fetch::Between` the fetch is a step of its own.
            None if self.fetch != Fetch::AtStart => return false,
            None => {
                peeked = Request::decode(queue.slot(self.bytes(queue.key), queue.next));
                &peeked
            }
        };
        let Ok(request) = request else { return true };
        let is_fenced = request.flags.contains(ChainFlags::FENCE);
        if is_fenced && queue.in_flight.iter().any(|f| f.request.control.op.returns_data()) {
            return false;
        }
        match (request.control.op, request.ordering()) {
            (ChainOp::Wait, Some(wait)) => {
                let produced = self.produced.get(wait.object as usize);
                produced.is_none_or(|produced| *produced >= wait.at(queue.next / queue.cycle))
            }
            _ => true,
        }
    }

    fn prefetch(&mut self) {
        if self.fetch == Fetch::Earliest {
            for queue in 0..self.queues.len() {
                while self.queues[queue].can_fetch() {
                    self.fetch(queue as u32);
                }
            }
        }
    }

    fn fetch(&mut self, queue: u32) {
        let q = &self.queues[queue as usize];
        let (index, key) = (q.next + q.fetched.len() as u64, q.key);
        let at = (index % q.cycle) as usize * q.stride;
        let slot = q.slot(self.bytes(key), index).to_vec();
        let request = Request::decode(&slot);
        if let Some(history) = &mut self.history {
            let op = request.as_ref().ok().map(|request| request.control.op);
            history.fetch(queue, index, op, key, at..at + slot.len());
        }
        self.queues[queue as usize].fetched.push_back((slot, request));
    }

    fn fail(&mut self, queue: u32, index: u64, status: WcStatus) {
        self.fault.get_or_insert(Fault { queue, is_receive: false, index, status });
    }

    fn receive(&mut self, queue: u32) {
        let recv = &mut self.receives[queue as usize];
        let Some(data) = recv.arrived.pop_front() else { return };
        let (index, cq, key) = (recv.next, recv.cq, recv.key);
        let start = (index % recv.cycle) as usize * recv.stride;
        let slot = start..start + recv.stride;
        recv.next += 1;
        let sges = recv_sges(&self.bytes(key)[slot]);
        let declared: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        // A short one would leave the last caller's arguments in place.
        let result = if declared == data.len() as u64 {
            self.memory.scatter(&sges, &data)
        } else {
            Err(WcStatus::RemoteInvalidRequest)
        };
        match result {
            Ok(()) => self.produced[cq as usize] += 1,
            Err(status) => {
                self.fault.get_or_insert(Fault { queue, is_receive: true, index, status });
            }
        }
    }
}

impl SendQueue {
    fn slot<'r>(&self, ring: &'r [u8], index: u64) -> &'r [u8] {
        let start = (index % self.cycle) as usize * self.stride;
        &ring[start..start + self.stride]
    }

    fn can_fetch(&self) -> bool {
        let is_held = self.fetched.iter().any(|(_, request)| request.as_ref().map_or(true, Request::is_local));
        let ahead = self.fetched.len() as u64;
        ahead < self.cycle && self.next + ahead < self.limit && !is_held
    }
}

fn next_chance(chance: &mut u64) -> u64 {
    *chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*chance ^ (*chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

fn recv_sges(slot: &[u8]) -> Vec<Sge> {
    let long = |at: usize| slot[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let word = |at: usize| slot[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let room = (slot.len() - offset::RECV_SGES) / offset::SGE_LEN;
    let count = (word(offset::RECV_NUM_SGE) as usize).min(room);
    let at = |i: usize| offset::RECV_SGES + i * offset::SGE_LEN;
    let sge = |at: usize| Sge {
        addr: long(at),
        length: word(at + offset::SGE_LENGTH),
        lkey: Key(word(at + offset::SGE_KEY)),
    };
    (0..count).map(|i| sge(at(i))).collect()
}

#[cfg(test)]
mod tests;
