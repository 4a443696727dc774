//! `rdmesh-network-policies`: security groups that say of pods' endpoints what NetworkPolicies of Kubernetes say of pods.
//!
//! A cluster's network plugin holds pods to NetworkPolicies with filters that RDMA does not pass. This program watches the objects of
//! the API server and keeps security groups of rdmesh, which hold for RDMA and for accelerated sockets, as these objects are. It
//! decides nothing by itself and keeps no state: it may be ended and started again, and several may run.
//!
//! * [`objects`]: what groups are computed from; [`policies`]: the groups that policies mean.
//! * [`change`]: the way from the groups that there are to those.
//! * [`watch`]: the API server's objects as they are now.

mod change;
mod objects;
mod policies;
mod watch;

use change::{Step, steps};
use clap::Parser;
use objects::Objects;
use rdmesh_fabric::{Client, ClientError, SecurityGroup, StateDir};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use tracing_subscriber::filter::EnvFilter;
use watch::Watched;

/// Security groups for pods' endpoints from NetworkPolicies of Kubernetes
///
/// The API server is that of the pod's service account, or of KUBECONFIG.
///
/// Example: rdmesh-network-policies
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// State directory of the router [default: root's]
    #[arg(long, env = "RDMESH_STATE")]
    state_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = EnvFilter::try_from_env("RDMESH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(ansi).with_env_filter(filter).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdmesh-network-policies: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps the groups as the objects are until the process is to end.
async fn serve(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let state = StateDir::locate(options.state_dir, rustix::process::geteuid().as_raw())?;
    let router = Client::new(state.api_socket());
    // A process may have one only, and this is it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = kube::Client::try_default().await?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
        failed = keep(router, server) => failed?,
    }
    Ok(())
}

/// Keeps the groups as the objects are, for ever.
async fn keep(router: Client, server: kube::Client) -> Result<(), watch::WatchError> {
    let mut watched = Watched::start(server);
    watched.ready().await?;
    info!("watching pods, namespaces and NetworkPolicies");
    let mut last = String::new();
    loop {
        let (router, objects) = (router.clone(), watched.snapshot());
        let done = spawn_blocking(move || settle(&router, &objects)).await;
        let failure = match done {
            Ok(done) => done.err().unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        if failure != last && !failure.is_empty() {
            warn!("groups are not as policies are, will try again: {failure}");
        }
        last = failure;
        // Endpoints change without a word of the API server's.
        if let Ok(changed) = timeout(PERIOD, watched.changed()).await {
            changed?;
        }
        // What changes together is one change.
        sleep(PAUSE).await;
    }
}

/// Changes the router's groups to those that the objects mean.
fn settle(router: &Client, watched: &watch::Snapshot) -> Result<(), String> {
    let text = |error: ClientError| error.to_string();
    let present = router.groups().map_err(text)?;
    let has_own = present.iter().any(|group| group.name.as_str().starts_with(policies::PREFIX));
    if watched.policies.is_empty() && !has_own {
        return Ok(());
    }
    let mut endpoints = Vec::new();
    for network in router.networks().map_err(text)? {
        endpoints.extend(router.network_endpoints(&network.name).map_err(text)?);
    }
    let objects = Objects::new(&endpoints, &watched.pods, &watched.namespaces, watched.policies.clone());
    let mut failed = Ok(());
    for step in steps(&present, &policies::groups(&objects)) {
        let done = match &step {
            Step::Set(group) => set(router, group),
            Step::Remove { network, name } => router.remove_group(network, name),
        };
        match (done, step) {
            (Ok(()), Step::Set(group)) => {
                let members = group.members.len();
                info!(network = %group.network, group = %group.name, members, "group set");
            }
            (Ok(()), Step::Remove { network, name }) => info!(%network, group = %name, "group removed"),
            // Another one, or an operator, has removed it.
            (Err(ClientError::Refused { status: 404, .. }), Step::Remove { .. }) => {}
            (Err(error), Step::Set(SecurityGroup { network, name, .. })) => {
                failed = Err(format!("group `{name}` of network `{network}`: {error}"));
            }
            (Err(error), Step::Remove { .. }) => failed = Err(error.to_string()),
        }
    }
    failed
}

/// Sets a group. The members of one that the router refuses, as it does where there are too many rules, are closed and not open: the
/// group is set without rules.
fn set(router: &Client, group: &SecurityGroup) -> Result<(), ClientError> {
    let refusal = match router.set_group(group) {
        Err(refusal @ ClientError::Refused { .. }) => refusal,
        done => return done.map(drop),
    };
    router.set_group(&SecurityGroup { allow_from: Vec::new(), allow_to: Vec::new(), ..group.clone() })?;
    Err(refusal)
}

/// Time between two looks at the endpoints where the API server says nothing.
const PERIOD: Duration = Duration::from_secs(5);
/// Time for which changes are gathered.
const PAUSE: Duration = Duration::from_millis(50);
