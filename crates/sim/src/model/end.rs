//! Model of a queue pair, from its program's side.

use crate::plan::PairPlan;
use crate::platform::Sends;
use rdmesh_nic::Time;
use rdmesh_verbs::{Key, QpType, Qpn, WcStatus};
use std::collections::VecDeque;

/// A queue pair.
pub struct End {
    /// Index of its host.
    pub host: usize,
    /// Index of its program's memory.
    pub space: usize,
    /// Its slot there.
    pub slot: usize,
    /// Handle in its context.
    pub handle: u32,
    /// Number.
    pub qpn: Qpn,
    /// Transport.
    pub qp_type: QpType,
    /// Index of its peer.
    pub peer: usize,
    /// Its pair and side.
    pub pair: (usize, usize),
    /// Its configuration.
    pub plan: PairPlan,
    /// Time at which it was made.
    pub born: Time,
    /// It exists.
    pub alive: bool,
    /// It may be in error without anything wrong in its own requests.
    pub excused: bool,
    /// Its send ring.
    pub sends: Sends,
    /// Its receive queue.
    pub queue: usize,
    /// Its requests.
    pub flow: Flow,
    /// Memory windows that it has bound for its peer.
    pub windows: Vec<Window>,
    /// Address handle, for datagrams.
    pub ah: u32,
    /// Requests still to be posted.
    pub left: u32,
    /// Pieces of [`crate::layout::DATA`] in use: request, start, length.
    pub used: VecDeque<(usize, u64, u64)>,
    /// Start of the next piece.
    pub next_data: u64,
}

/// Requests of one queue pair to another.
#[derive(Default)]
pub struct Flow {
    /// Every request, in order.
    pub ops: Vec<Op>,
    /// Number of completed requests.
    pub completed: usize,
    /// Number of requests that the responder has executed, where it executes them in order.
    pub executed: usize,
    /// One has failed.
    pub failed: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its operation.
    pub kind: Kind,
    /// Bytes that it moves.
    pub len: u64,
    /// Slot of its data.
    pub local: u64,
    /// Its payload.
    pub data: Vec<u8>,
    /// Its error, if any.
    pub fault: Option<Fault>,
    /// It completes with an entry.
    pub signaled: bool,
    /// Time at which it was posted.
    pub posted: Time,
    /// The step from which on a READ may see memory: everything before it was executed.
    pub lower: Option<u64>,
    /// Bytes that have been written.
    pub done: u64,
    /// The original value of an atomic.
    pub result: Option<u64>,
    /// Number of deliveries, on unreliable transports.
    pub delivered: u32,
}

/// Operation of a request. Places are offsets in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Send { imm: Option<u32>, invalidate: Option<Key> },
    Write { target: u64, imm: Option<u32> },
    Read { target: u64 },
    Add { cell: u64, add: u64 },
    Swap { cell: u64, compare: u64, swap: u64 },
    Put { cell: u64, value: u64 },
    Flush,
    Bind { window: usize },
    Datagram { imm: Option<u32> },
}

/// Error of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Fault {
    RemoteKey,
    OutOfBounds,
    AfterInvalidate,
    LocalKey,
    TooLong,
    Misaligned,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Handle.
    pub handle: u32,
    /// Its present key.
    pub key: Key,
    /// Its state.
    pub state: WindowState,
}

/// State of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowState {
    /// Not bound yet.
    Binding,
    /// Bound.
    Ready,
    /// The peer has asked for its end.
    Spent,
}

impl Fault {
    /// Completion status of a request with this error.
    pub fn status(self) -> WcStatus {
        match self {
            Self::RemoteKey | Self::OutOfBounds | Self::AfterInvalidate => WcStatus::RemoteAccessError,
            Self::LocalKey => WcStatus::LocalProtectionError,
            Self::TooLong | Self::Misaligned => WcStatus::RemoteInvalidRequest,
        }
    }
}

impl Op {
    /// Whether the responder passes it without an effect that the model would see.
    pub fn passes(&self) -> bool {
        match self.kind {
            // A READ whose result has no place is executed all the same, and so is what follows it.
            Kind::Read { .. } => matches!(self.fault, None | Some(Fault::LocalKey)),
            _ if self.fault.is_some() => false,
            Kind::Flush | Kind::Bind { .. } => true,
            Kind::Write { imm, .. } => imm.is_none() && self.done == self.len,
            _ => false,
        }
    }

    /// Whether it takes a receive request.
    pub fn takes_receive(&self) -> bool {
        matches!(self.kind, Kind::Send { .. } | Kind::Write { imm: Some(_), .. })
    }
}

impl End {
    /// The request with this identifier.
    pub fn op_index(wr_id: u64) -> usize {
        (wr_id & 0xff_ffff) as usize
    }

    /// The identifier of a request of end number `end`.
    pub fn wr_id(end: usize, op: usize) -> u64 {
        (end as u64) << 24 | op as u64
    }

    /// Whether everything that was posted has ended, and everything that is to be posted was.
    pub fn is_done(&self) -> bool {
        self.flow.completed == self.flow.ops.len() && (self.left == 0 || self.flow.failed || self.excused)
    }

    /// Finds room for `len` bytes of data.
    pub fn room(&self, len: u64) -> Option<u64> {
        let area = crate::layout::DATA;
        let start = if self.next_data + len > area.end { area.start } else { self.next_data };
        let free = self.used.iter().all(|&(_, at, n)| start + len <= at || at + n <= start);
        (free && start + len <= area.end).then_some(start)
    }
}
