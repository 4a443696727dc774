//! State of the API's handlers, and the calling process.

use super::refusal::Refusal;
use crate::daemon::Host;
use crate::events::EventLog;
use axum::extract::connect_info::Connected;
use axum::http::StatusCode;
use axum::serve::IncomingStream;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

/// The process at the other end of an API connection, as the kernel names it.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its process id; none if it is in a pid namespace that this process cannot see.
    pub pid: Option<i32>,
    /// Its user; none if the kernel does not say.
    pub uid: Option<u32>,
}

impl Caller {
    /// Name of its program; none if it has ended.
    pub(super) fn command(self) -> Option<String> {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.pid?)).ok()?;
        Some(name.trim_end().to_owned())
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        let pid = credentials.and_then(|credentials| credentials.pid());
        Self { pid: pid.filter(|&pid| pid > 0), uid: credentials.map(|credentials| credentials.uid()) }
    }
}

/// State shared by the handlers.
#[derive(Clone)]
pub(super) struct Api {
    host: Arc<Host>,
    events: EventLog,
    stop: Arc<Notify>,
}

impl Api {
    /// The state for the API of `host` with its `events`; `stop` is notified when a caller wants the router to end.
    pub(super) fn new(host: Arc<Host>, events: EventLog, stop: Arc<Notify>) -> Self {
        Self { host, events, stop }
    }

    /// The event log that `/v1/events` reads.
    pub(super) fn events(&self) -> &EventLog {
        &self.events
    }

    /// Tells the router to end.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }

    /// Runs `work`, which may wait for the kernel or for other threads, on a thread for blocking work.
    pub(super) async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let host = Arc::clone(&self.host);
        spawn_blocking(move || work(&host)).await.map_err(|e| Refusal(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))
    }
}
