//! Requests to the session thread and to the thread of rdma_cm.

use super::account::Account;
use super::chain_orders::{ChainError, QueueRow, StepRow};
use super::connection::SessionConnection;
use super::device::OpenDevice;
use super::devices::MoveError;
use super::failed_requests::FailedRequestInfo;
use super::info::{BadIndices, CmTotals, ConnectionInfo, ContextInfo, HeldEndpoint, SessionTotals};
use super::program::Process;
use super::spec::EndpointSpec;
use crate::endpoint::EndpointId;
use crate::memory::Evicted;
use crate::netlink::CmId;
use rdmesh_fabric::api::{ControlChain, TraceChain};
use rdmesh_nic::policy::Policy;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Request of another part of the router to the session thread.
pub(super) enum Control {
    Add(Box<EndpointSpec>, OwnedFd),
    Remove(EndpointId, Sender<()>),
    Snapshot(Sender<Vec<ContextInfo>>),
    /// The devices of an endpoint, or of one process there, are to move to a worker.
    Move(EndpointId, Option<i32>, usize, Sender<Result<usize, MoveError>>),
    /// A group of managed queues of an endpoint is to stop, to go on or to end.
    Chain(EndpointId, ControlChain, Sender<Result<(), ChainError>>),
    /// The contexts of an endpoint that linger, or the one with this number, are to end.
    EndLingering(EndpointId, Option<u32>, Sender<usize>),
    /// Time until the last context of an endpoint that outlives its program may end.
    LingersFor(EndpointId, Sender<Option<Duration>>),
    /// The queues of a group of a device of an endpoint.
    InspectChain(EndpointId, (u32, u32), Sender<Result<Vec<QueueRow>, ChainError>>),
    /// The requests that a group of an endpoint executes are to be recorded.
    TraceChain(EndpointId, TraceChain, Sender<Result<Vec<StepRow>, ChainError>>),
    /// The queue pairs of an endpoint have other rates, or another priority.
    Policy(EndpointId, Box<Policy>),
    /// The chains of an endpoint may execute so many steps in a second.
    ChainSteps(EndpointId, u64),
    Totals(Sender<SessionTotals>),
    FailedRequests(Sender<Vec<FailedRequestInfo>>),
    BadIndices(Sender<Vec<BadIndices>>),
    /// Tells for how long rates have held queue pairs.
    Held(Sender<Vec<HeldEndpoint>>),
    /// The thread of rdma_cm needs room for the command of one of its connections.
    Evict(u64),
    /// The account of an endpoint.
    #[cfg(test)]
    Account(EndpointId, Sender<Account>),
    Stop,
}

/// Request to the thread of rdma_cm.
pub(super) enum CmControl {
    /// An endpoint was opened.
    Add(Account),
    /// An endpoint is gone, its connections on the session thread too.
    Remove(EndpointId, Sender<()>),
    /// A connection that opens a channel, with the message that says so.
    Take(Box<SessionConnection>, Vec<u8>),
    /// A device was opened.
    Opened(EndpointId, OpenDevice),
    /// A device is about to be closed.
    Closed(EndpointId, OpenDevice),
    /// These mappings make room for a connection's command.
    Evicted(u64, Evicted),
    Connections(Sender<Vec<ConnectionInfo>>),
    Totals(Sender<(CmTotals, SessionTotals)>),
    /// At most so many identifiers of an endpoint, from a number on, with the processes that opened their channels.
    List(EndpointId, u32, usize, Sender<Vec<(Option<Arc<Process>>, CmId)>>),
    /// The number of an endpoint's identifiers.
    Count(EndpointId, Sender<u64>),
    Stop,
}
