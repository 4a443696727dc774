//! Sessions: the control path between tenants and the engine.
//!
//! One thread owns every socket, every context and every account, so nothing here is locked. It believes nothing that a tenant
//! says: a tenant's identity comes from the socket, handles are looked up in the context of the connection, and everything that
//! a context holds is reclaimed when its last connection is closed. A command runs on the context's worker; the data path never
//! comes here.

mod account;
mod accounts;
mod channels;
mod clients;
mod commands;
mod complaints;
mod connection;
mod context;
mod counters;
mod devices;
mod endpoint;
mod holdings;
mod info;
mod lookups;
mod mads;
mod messages;
mod mistakes;
mod neighbours;
mod netlink;
mod objects;
mod peer;
mod regions;
mod reply;
mod resources;
mod server;
mod spec;
#[cfg(test)]
mod tests;
mod traffic;

pub use crate::cm::ConnectionRow;
pub use info::{CmTotals, ConnectionInfo, ContextInfo, QpRow, SessionTotals};
pub use mistakes::{Mistake, MistakeInfo};
pub use objects::ObjectCounts;
pub use spec::EndpointSpec;

use crate::endpoint::EndpointId;
use crate::worker::{Mode, ShardHandle};
use rdmesh_verbs::DeviceLimits;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use server::{Control, Server};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The session thread. Dropping it closes every context.
pub struct SessionServer {
    control: Sender<Control>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SessionServer {
    /// Starts the thread, which waits as the workers do; contexts are spread over `shards`.
    pub fn start(shards: Vec<ShardHandle>, limits: DeviceLimits, mode: Mode) -> io::Result<Self> {
        if shards.is_empty() {
            return Err(io::Errno::INVAL);
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (control, receiver) = channel();
        let mads = mads::subscribe(&shards, &wake);
        let server = Server::new(shards, limits, mode, wake.clone(), receiver, mads)?;
        let thread = std::thread::Builder::new()
            .name("rdmesh-session".into())
            .spawn(move || server.run())
            .map_err(|e| io::Errno::from_io_error(&e).unwrap_or(io::Errno::AGAIN))?;
        Ok(Self { control, wake, thread: Some(thread) })
    }

    /// Opens an endpoint: programs that connect to `listener` get a device there.
    pub fn add_endpoint(&self, spec: EndpointSpec, listener: OwnedFd) {
        self.tell(Control::Add(Box::new(spec), listener));
    }

    /// Closes an endpoint: its listener, and every context. Returns when nothing of it is left.
    pub fn remove_endpoint(&self, id: EndpointId) {
        self.ask(|done| Control::Remove(id, done));
    }

    /// Every open context and its objects.
    pub fn snapshot(&self) -> Vec<ContextInfo> {
        self.ask(Control::Snapshot).unwrap_or_default()
    }

    /// Counters since the start.
    pub fn totals(&self) -> SessionTotals {
        self.ask(Control::Totals).unwrap_or_default()
    }

    /// Every `rdma_cm_id`.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.ask(Control::Connections).unwrap_or_default()
    }

    /// Recent failed requests of programs.
    pub fn mistakes(&self) -> Vec<MistakeInfo> {
        self.ask(Control::Mistakes).unwrap_or_default()
    }

    /// Counts and counters of rdma_cm.
    pub fn cm_totals(&self) -> CmTotals {
        self.ask(Control::CmTotals).unwrap_or_default()
    }

    fn ask<R>(&self, control: impl FnOnce(Sender<R>) -> Control) -> Option<R> {
        let (answer, receiver) = channel();
        self.tell(control(answer));
        receiver.recv().ok()
    }

    fn tell(&self, control: Control) {
        // An error means that the thread is gone, and with it everything that the request could be about.
        if self.control.send(control).is_ok() {
            let _ = io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.tell(Control::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
