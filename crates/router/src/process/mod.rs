//! The router as a process: starts all parts, serves the API until it is told to stop, and removes everything.

mod scrape;

use crate::api;
use crate::daemon::{DaemonConfig, Host, HostError, Instance, InstanceError};
use crate::events::EventLog;
use rdmesh_fabric::StateDir;
use rdmesh_overlay::Errors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scrape::Scrape;
use sd_notify::NotifyState;
use std::future::IntoFuture;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Error of a router's start or end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The state directory.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Endpoints, workers, sessions.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The API socket.
    #[error("the API socket {}: {source}", .socket.display())]
    Api {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The TCP port of the metrics.
    #[error("the address of --metrics: {0}")]
    Metrics(io::Error),
    /// Of several operations that were all tried.
    #[error(transparent)]
    Several(#[from] Errors<Self>),
}

/// The event that has ended a router.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// A request.
    Request,
    /// A signal.
    Signal,
}

/// Runs a router until it is told to stop, by the API, SIGTERM or SIGINT. Everything it made is removed again, unless it is to keep
/// endpoints when a signal comes: then all is as if it had died, but for requests under way, and the process has to end at once.
pub fn run(config: DaemonConfig) -> Result<(), DaemonError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    raise_open_file_limit();
    let instance = Instance::acquire(&config)?;
    let scrape = config.metrics.map(Scrape::bind).transpose().map_err(DaemonError::Metrics)?;
    let (socket, events, keeps) = (config.state.api_socket(), config.events.clone(), config.keeps_endpoints);
    let host = match Host::start(config) {
        Ok(host) => Arc::new(host),
        Err(error) => {
            // A dead router's files stay until a router can start.
            let cleaned = if instance.has_predecessor() { Ok(()) } else { instance.clean() };
            return Err(Errors::join(error.into(), cleaned.map_err(DaemonError::from)));
        }
    };
    let api_failed = |source| DaemonError::Api { socket: socket.clone(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(api_failed)?;
    let served = thread::scope(|scope| {
        scope.spawn(|| host.endpoints().remove_orphans());
        let served = runtime.block_on(serve(&host, events, &socket, scrape)).map_err(api_failed);
        runtime.shutdown_timeout(REQUEST_TIMEOUT);
        host.endpoints().stop_watching();
        served
    });
    if keeps && matches!(served, Ok(End::Signal)) {
        tracing::info!("endpoints stay for the next router");
        // Nothing that they hold is given back.
        std::mem::forget((host, instance));
        return Ok(());
    }
    let cleared = host.endpoints().clear();
    drop(host);
    let cleaned = instance.clean();
    Errors::all([served.map(drop), cleared.map_err(DaemonError::from), cleaned.map_err(DaemonError::from)])
}

/// Removes what a router that has died left in `state`; whether there was something.
pub fn remove_leftovers(state: &StateDir) -> Result<bool, DaemonError> {
    if !state.store().exists() {
        return Ok(false);
    }
    // Only root's routers leave what only root can remove.
    let rootless = !rustix::process::geteuid().is_root();
    Ok(Instance::lock(state, rootless)?.clean().map(|()| true)?)
}

async fn serve(host: &Arc<Host>, events: EventLog, socket: &PathBuf, scrape: Option<Scrape>) -> io::Result<End> {
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = Arc::new(Notify::new());
    if let Some(scrape) = scrape {
        scrape.begin(api::metrics_page(Arc::clone(host)))?;
    }
    let app =
        api::router(Arc::clone(host), events, Arc::clone(&stop)).into_make_service_with_connect_info::<api::Caller>();
    tracing::info!(socket = %socket.display(), "serving");
    tell_manager(NotifyState::Ready);
    let asked = Arc::new(Notify::new());
    let graceful = Arc::clone(&asked);
    let server = axum::serve(listener, app).with_graceful_shutdown(async move { graceful.notified().await });
    let server = tokio::spawn(server.into_future());
    let (end, words) = tokio::select! {
        () = stop.notified() => (End::Request, "asked by the API"),
        _ = terminate.recv() => (End::Signal, "SIGTERM"),
        _ = interrupt.recv() => (End::Signal, "SIGINT"),
    };
    tracing::info!("stopping: {words}");
    tell_manager(NotifyState::Stopping);
    asked.notify_one();
    // Requests under way may finish; a client that merely stays connected does not hold the router.
    let _ = tokio::time::timeout(REQUEST_TIMEOUT, server).await;
    Ok(end)
}

/// Tells the service manager, if one waits for that (sd_notify(3)). One that cannot be reached is no reason not to serve.
fn tell_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot reach the service manager");
    }
}

/// Every context costs several descriptors, and the usual soft limit is small.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
