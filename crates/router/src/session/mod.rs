//! Sessions: the control path between tenants and the engine.
//!
//! The session thread owns the sockets and the contexts, the thread of rdma_cm the channels. Neither waits for a tenant: what
//! a tenant controls is looked up on other threads, and what takes long to give back is given back there. They believe nothing
//! that a tenant says: a tenant's identity comes from the socket, handles are looked up in the context of the connection, and
//! everything that a context holds is reclaimed when its last connection is closed, unless it has a lease. A command runs on the context's worker; the
//! data path never comes here.
//!
//! * [`server`], [`executor`], [`commands`]: the session thread; [`accounts`], [`clients`], [`devices`]: its state.
//! * [`cm_server`], [`channels`], [`neighbours`], [`mads`]: the thread of rdma_cm.
//! * [`account`], [`holdings`], [`objects`]: what endpoints and contexts are charged.
//! * [`lease`]: terms for which contexts outlive their programs.
//! * [`lookups`], [`program`]: what a tenant controls, and who it is.

mod account;
mod accounts;
mod areas;
mod chain_orders;
mod channels;
mod clients;
mod cm_server;
mod cm_state;
mod commands;
mod completions;
mod connection;
mod context;
mod control;
mod device;
mod device_failures;
mod devices;
mod endpoint;
mod executor;
mod failed_requests;
mod failure_notes;
mod groups;
mod held_times;
mod holdings;
mod info;
mod label;
mod lease;
mod lookups;
mod mads;
mod managed;
mod neighbours;
mod netlink;
mod objects;
mod pace;
mod post;
mod program;
mod regions;
mod reply;
mod resources;
mod server;
mod serving;
mod shared;
mod spec;
#[cfg(test)]
mod tests;
mod token;
mod traffic;

pub use crate::cm::ConnectionRow;
pub use chain_orders::{ChainError, QueueRow, SlotRow, StepRow};
pub use devices::MoveError;
pub use failed_requests::{FailedChain, FailedRequest, FailedRequestInfo};
pub use held_times::HeldTimes;
pub use info::{
    BadIndices, ChainRow, CmTotals, ConnectionInfo, ContextInfo, HeldEndpoint, LeaseInfo, QpRow, SessionTotals,
};
pub use label::Label;
pub use objects::ObjectCounts;
pub use spec::EndpointSpec;

use crate::disposal::Reclaimer;
use crate::endpoint::EndpointId;
use crate::io::{ExternalPaths, probe};
use crate::worker::{Mode, ShardHandle};
use cm_server::CmServer;
use control::{CmControl, Control};
use post::Post;
use rdmesh_fabric::api::{ControlChain, TraceChain};
use rdmesh_nic::policy::Policy;
use rdmesh_verbs::DeviceLimits;
use rustix::io;
use server::Server;
use serving::Serving;
use shared::Shared;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

/// The session thread and the thread of rdma_cm. Dropping it closes every context and every channel.
pub struct SessionServer {
    sessions: Post<Control>,
    cm: Post<CmControl>,
    threads: Vec<JoinHandle<()>>,
}

impl SessionServer {
    /// Starts the threads, which wait as the workers do; contexts are spread over `shards`.
    pub fn start(shards: Vec<ShardHandle>, limits: DeviceLimits, mode: Mode) -> io::Result<Self> {
        if shards.is_empty() {
            return Err(io::Errno::INVAL);
        }
        let (sessions, control) = Post::new()?;
        let (cm, inbox) = Post::new()?;
        let external_paths = ExternalPaths::new(probe(), Serving(shards.clone()));
        let shared = Shared { shards, mode, external_paths, reclaimer: Reclaimer::new() };
        let cm_server = CmServer::new(cm.clone(), inbox, sessions.clone(), shared.clone())?;
        let server = Server::new(sessions.wake(), control, cm.clone(), limits, shared)?;
        let mut started = Self { sessions, cm, threads: Vec::new() };
        started.spawn("rdmesh-cm", || cm_server.run())?;
        started.spawn("rdmesh-session", || server.run())?;
        Ok(started)
    }

    /// Opens an endpoint: programs that connect to `listener` get a device there.
    pub fn add_endpoint(&self, spec: EndpointSpec, listener: OwnedFd) {
        self.sessions.tell(Control::Add(Box::new(spec), listener));
    }

    /// Closes an endpoint: its listener, every context and every channel. Returns when nothing of it is left.
    pub fn remove_endpoint(&self, id: EndpointId) {
        self.sessions.ask(|done| Control::Remove(id, done));
        // After the session thread, which hands connections over.
        self.cm.ask(|done| CmControl::Remove(id, done));
    }

    /// Moves the devices of an endpoint, or only those of process `pid`, to a worker, while programs go on. Returns how many there
    /// are.
    pub fn move_devices(&self, id: EndpointId, pid: Option<i32>, worker: usize) -> Result<usize, MoveError> {
        self.sessions.ask(|answer| Control::Move(id, pid, worker, answer)).unwrap_or(Err(MoveError::Ending))
    }

    /// Stops, resumes or ends a group of managed queues.
    pub fn control_chain(&self, id: EndpointId, order: ControlChain) -> Result<(), ChainError> {
        self.sessions.ask(|answer| Control::Chain(id, order, answer)).unwrap_or(Err(ChainError::Ending))
    }

    /// Ends the contexts of an endpoint that linger, or only the one with this number. Returns how many there were.
    pub fn end_lingering(&self, id: EndpointId, device: Option<u32>) -> usize {
        self.sessions.ask(|answer| Control::EndLingering(id, device, answer)).unwrap_or(0)
    }

    /// Time until the last context of an endpoint that outlives its program may end; none where there is none.
    pub fn lingers_for(&self, id: EndpointId) -> Option<Duration> {
        self.sessions.ask(|answer| Control::LingersFor(id, answer)).flatten()
    }

    /// The queues of a group of managed queues, with their slots.
    pub fn inspect_chain(&self, id: EndpointId, device: u32, group: u32) -> Result<Vec<QueueRow>, ChainError> {
        let inspect = |answer| Control::InspectChain(id, (device, group), answer);
        self.sessions.ask(inspect).unwrap_or(Err(ChainError::Ending))
    }

    /// Records the requests that a group of managed queues executes, and returns those that were recorded.
    pub fn trace_chain(&self, id: EndpointId, trace: TraceChain) -> Result<Vec<StepRow>, ChainError> {
        self.sessions.ask(|answer| Control::TraceChain(id, trace, answer)).unwrap_or(Err(ChainError::Ending))
    }

    /// Sets the rates, the priority and the weight of an endpoint's queue pairs, on devices that are open too.
    pub fn set_policy(&self, id: EndpointId, policy: Policy) {
        self.sessions.tell(Control::Policy(id, Box::new(policy)));
    }

    /// Sets the budget of an endpoint's chains, on devices that are open too: so many steps in a second.
    pub fn set_chain_steps(&self, id: EndpointId, per_second: u64) {
        self.sessions.tell(Control::ChainSteps(id, per_second));
    }

    /// Every open context and its objects.
    pub fn snapshot(&self) -> Vec<ContextInfo> {
        self.sessions.ask(Control::Snapshot).unwrap_or_default()
    }

    /// Counters since the start.
    pub fn totals(&self) -> SessionTotals {
        let sessions = self.sessions.ask(Control::Totals).unwrap_or_default();
        let (_, of_cm) = self.cm.ask(CmControl::Totals).unwrap_or_default();
        sessions.with_commands_of(&of_cm)
    }

    /// Every `rdma_cm_id`.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.cm.ask(CmControl::Connections).unwrap_or_default()
    }

    /// Recent failed requests of programs.
    pub fn failed_requests(&self) -> Vec<FailedRequestInfo> {
        self.sessions.ask(Control::FailedRequests).unwrap_or_default()
    }

    /// Indices beyond the ends of their queues, for each endpoint.
    pub fn bad_indices(&self) -> Vec<BadIndices> {
        self.sessions.ask(Control::BadIndices).unwrap_or_default()
    }

    /// Time for which rates have held queue pairs, for each endpoint.
    pub fn held_by_rates(&self) -> Vec<HeldEndpoint> {
        self.sessions.ask(Control::Held).unwrap_or_default()
    }

    /// Counts and counters of rdma_cm.
    pub fn cm_totals(&self) -> CmTotals {
        self.cm.ask(CmControl::Totals).unwrap_or_default().0
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        self.threads.push(thread.map_err(|e| io::Errno::from_io_error(&e).unwrap_or(io::Errno::AGAIN))?);
        Ok(())
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.sessions.tell(Control::Stop);
        self.cm.tell(CmControl::Stop);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
