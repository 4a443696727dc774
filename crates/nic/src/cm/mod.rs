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
mod exchange;
mod farewell;
mod mad;
mod messages;
mod passive;
mod receive;
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

use crate::timer::Time;
use arrayvec::ArrayVec;
use connection::CmConnection;
use exchange::Exchange;

/// The connection manager of a host.
pub struct Cm {
    exchange: Exchange,
    /// Those of what was received.
    counters: CmCounters,
}

impl Cm {
    /// A manager without connections. The seed determines its communication IDs.
    pub fn new(seed: u64) -> Self {
        Self { exchange: Exchange::new(seed), counters: CmCounters::default() }
    }

    /// QP attributes of a connection, while the owner has it.
    pub fn info(&self, id: CommId) -> Option<ConnectionInfo> {
        self.owned(id).ok().map(CmConnection::info)
    }

    /// The next datagram to be sent.
    pub fn poll_mad(&mut self) -> Option<Mad> {
        self.exchange.poll_mad()
    }

    /// The next event. Connections that the owner has destroyed have none.
    pub fn poll_event(&mut self) -> Option<(CommId, Event)> {
        self.exchange.poll_event()
    }

    /// Time at which [`Cm::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.exchange.table().next_deadline()
    }

    /// Handles expired deadlines: repetitions and time-outs happen only here.
    pub fn handle_timeout(&mut self, now: Time) {
        self.exchange.handle_timeout(now);
    }

    /// The counters.
    pub fn counters(&self) -> CmCounters {
        self.exchange.counters(self.counters)
    }

    /// The owner's connection.
    fn owned(&self, id: CommId) -> Result<&CmConnection, CmError> {
        self.exchange.table().get(id.0).filter(|c| c.is_owned).ok_or(CmError::Unknown)
    }

    /// A message came that had come before. Where this end has answered it, the answer was lost.
    fn on_duplicate(&mut self, kind: Kind, id: u32, is_answered: bool) {
        self.counters.duplicate[kind.index()] += 1;
        if is_answered {
            self.exchange.send_again(id);
        }
    }
}

/// The owner's bytes for a message.
fn private<const N: usize>(bytes: &[u8]) -> Result<ArrayVec<u8, N>, CmError> {
    ArrayVec::try_from(bytes).map_err(|_| CmError::TooLong)
}
