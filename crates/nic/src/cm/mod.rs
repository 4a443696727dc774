//! The connection manager: IBA volume 1 chapter 12 over GSI datagrams, wire compatible with Linux's ib_cm.
//!
//! One [`Cm`] serves every endpoint of a host. Its owner requests connections and answers service requests, hands it the
//! datagrams that arrive for QP 1 and sends those that it returns. Where IBA leaves a choice it follows Linux, so that a kernel
//! can be the other end.
//!
//! ```text
//!   connect, accept, disconnect … ──►┌────┐──► poll_event
//!   handle_mad                    ──►│ Cm │──► poll_mad
//!   handle_timeout(now)           ──►└────┘──► poll_timeout
//! ```
//!
//! Received messages are untrusted. A message counts for a connection only where tenant network and both GIDs are the
//! connection's; every datagram is answered by at most one to its sender; the number of events that wait for the owner, and of
//! connections in time-wait, is bounded.

mod active;
mod connection;
mod ending;
mod mad;
mod messages;
mod passive;
mod receive;
mod repeat;
mod service;
mod table;
mod types;

#[cfg(test)]
mod tests;

pub use mad::Kind;
pub use messages::{PathRecord, Rep, Req, SidrRep, SidrReq};
pub use types::{
    CmCounters, CmError, CmPath, CmState, CommId, ConnectionInfo, Event, MAD_LEN, Mad, RejectReason, RepParams,
    ReqParams, SidrAnswer, SidrParams,
};

use crate::time::Time;
use alloc::collections::VecDeque;
use arrayvec::ArrayVec;
use connection::CmConnection;
use mad::Bytes;
use table::Table;

/// The connection manager of a host.
pub struct Cm {
    table: Table,
    mads: VecDeque<Mad>,
    events: VecDeque<(CommId, Event)>,
    counters: CmCounters,
    /// The high half of all transaction IDs.
    transaction: u64,
}

impl Cm {
    /// A manager without connections. The seed determines its communication IDs.
    pub fn new(seed: u64) -> Self {
        Self {
            table: Table::new(seed),
            mads: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            transaction: table::mix(seed) << 32,
        }
    }

    /// QP attributes of a connection, while the owner has it.
    pub fn info(&self, id: CommId) -> Option<ConnectionInfo> {
        self.table.get(id.0).filter(|c| c.is_owned).map(CmConnection::info)
    }

    /// The next datagram to be sent.
    pub fn poll_mad(&mut self) -> Option<Mad> {
        self.mads.pop_front()
    }

    /// The next event. Connections that the owner has destroyed have none.
    pub fn poll_event(&mut self) -> Option<(CommId, Event)> {
        while let Some((id, event)) = self.events.pop_front() {
            if self.table.get(id.0).is_some_and(|c| c.is_owned) {
                return Some((id, event));
            }
        }
        None
    }

    /// Time at which [`Cm::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.table.next_deadline()
    }

    /// The counters.
    pub fn counters(&self) -> CmCounters {
        CmCounters { live: self.table.len(), time_wait: self.table.time_waits(), ..self.counters }
    }

    fn tid(&self, id: u32) -> u64 {
        self.transaction | u64::from(id)
    }

    fn send(&mut self, path: CmPath, kind: Kind, bytes: Bytes) {
        self.counters.sent[kind.index()] += 1;
        self.mads.push_back(Mad { path, bytes });
    }

    fn tell(&mut self, id: u32, event: Event) {
        if self.table.get(id).is_some_and(|c| c.is_owned) {
            self.events.push_back((CommId(id), event));
        }
    }

    /// The owner's connection.
    fn owned(&self, id: CommId) -> Result<&CmConnection, CmError> {
        self.table.get(id.0).filter(|c| c.is_owned).ok_or(CmError::Unknown)
    }
}

/// The owner's bytes for a message.
fn private<const N: usize>(bytes: &[u8]) -> Result<ArrayVec<u8, N>, CmError> {
    ArrayVec::try_from(bytes).map_err(|_| CmError::TooLong)
}
