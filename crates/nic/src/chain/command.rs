//! Vocabulary of the commands on managed queues and their groups.

use alloc::boxed::Box;
use alloc::vec::Vec;
use rdmesh_verbs::chain::{Counts, Request};
use rdmesh_verbs::{Sge, WcStatus};

/// Description of the managed queues of an existing queue pair, given before RTS.
pub struct Manage<M> {
    /// Group whose queues may enable each other, and end together: any number of the program's choice.
    pub group: u32,
    /// The send queue, if it is to be managed.
    pub send: Option<ManageSend<M>>,
    /// The receive queue, if it is to be managed.
    pub receive: Option<RingInit<M>>,
}

/// A send queue that is to be managed.
pub struct ManageSend<M> {
    /// Its ring.
    pub ring: RingInit<M>,
    /// Memory of the NIC's own for copies of inline data: [`INLINE_COPIES`](super::INLINE_COPIES) times the most inline
    /// bytes of a request.
    pub copies: M,
}

/// A queue's ring as memory.
pub struct RingInit<M> {
    /// The slots, without the indices before them.
    pub memory: M,
    /// Bytes of a slot.
    pub stride: u32,
    /// Slots that there are.
    pub slots: u32,
    /// Slots of a lap: the request behind the last of them is the first again.
    pub cycle: u32,
}

/// A group of managed queues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainEntry {
    /// Its number.
    pub group: u32,
    /// Handles of its queue pairs.
    pub qps: Vec<u32>,
    /// Its state.
    pub state: ChainState,
    /// The error that ended it.
    pub fault: Option<ChainFault>,
    /// Counts of executed requests.
    pub counts: Counts,
    /// Whether a queue of it goes on and on without a WAIT.
    pub is_spinning: bool,
    /// Laps that its queues have ended.
    pub laps: u64,
    /// Times that a queue stood still because the endpoint's budget of steps was spent.
    pub starved: u64,
    /// Nanoseconds for which queues have so stood still.
    pub starved_for: u64,
}

/// A managed queue of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainQueue {
    /// Handle of its queue pair.
    pub qp: u32,
    /// Whether it is the receive queue.
    pub is_receive: bool,
    /// The request that is started next, counted from the first.
    pub next: u64,
    /// Requests before this one may be executed.
    pub limit: u64,
    /// Slots of a lap.
    pub cycle: u64,
    /// The reason for which it does not run.
    pub waits_for: ChainWait,
}

/// The reason for which a managed queue stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainWait {
    /// None: it goes on, or waits for its turn or for an earlier request.
    Nothing,
    /// An ENABLE.
    Enable,
    /// The endpoint's budget of steps.
    Steps,
    /// A message, which is a receive queue's.
    Message,
    /// Completions.
    Completions {
        /// The completion queue, by handle.
        cq: u32,
        /// So many.
        count: u64,
        /// Those that there were.
        produced: u64,
    },
}

/// A slot of a managed queue as it would be fetched now.
#[derive(Clone, Debug)]
pub enum ChainSlot {
    /// A request of a send queue.
    Send(Box<Request>),
    /// A request of a receive queue.
    Receive(Vec<Sge>),
    /// None that is allowed there.
    Unfit,
}

/// State of a group of managed queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChainState {
    /// Requests are executed.
    #[default]
    Running,
    /// By command: no request is started, no message is received.
    Stopped,
    /// A queue of it has failed, or it was ended by command.
    Poisoned,
}

/// The error that has ended a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainFault {
    /// The queue pair, by handle.
    pub qp: u32,
    /// Whether its receive queue failed.
    pub is_receive: bool,
    /// The request, counted from the queue's first.
    pub index: u64,
    /// Its failure.
    pub status: WcStatus,
    /// The address that it named.
    pub addr: u64,
    /// The key that it named.
    pub key: u32,
}
