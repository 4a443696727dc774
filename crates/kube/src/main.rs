//! `rdmesh-device-plugin`: endpoints as devices that pods of Kubernetes ask for.
//!
//! Each network that is offered is a resource, `rdmesh.dev/NETWORK`, of which a node has a number of devices. A container whose
//! limits name the resource gets an endpoint on that network, with nothing else to say.
//!
//! * [`options`]: the command line.
//! * [`slots`]: the devices of a network, and the endpoint behind each.
//! * [`offer`]: the plugin of a network: its server, its registration, the health of its devices.
//! * [`collector`]: removes endpoints of pods that have ended.
//! * [`cni`]: installs the CNI plugin on the node.

mod cni;
mod collector;
mod offer;
mod options;
mod slots;

use clap::Parser;
use cni::Cni;
use offer::Offer;
use options::Options;
use rdmesh_fabric::{Client, StateDir};
use rdmesh_kubelet::{Offered, pod_resources, registration};
use slots::Slots;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;
use tracing::warn;
use tracing_subscriber::filter::EnvFilter;

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = EnvFilter::try_from_env("RDMESH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(ansi).with_env_filter(filter).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdmesh-device-plugin: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Offers all networks until the process is to end.
async fn serve(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let state = StateDir::locate(options.state_dir.clone(), rustix::process::geteuid().as_raw())?;
    let mut tasks = JoinSet::new();
    for offered in options.networks.clone() {
        tasks.spawn(serve_network(options.clone(), state.clone(), offered));
    }
    if let Some(cni) = Cni::of(&options) {
        tasks.spawn(cni.run());
    }
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
        // None of them ends but by a fault of its own.
        Some(ended) = tasks.join_next() => ended?,
    }
    Ok(())
}

/// Offers a network, for ever.
async fn serve_network(options: Options, state: StateDir, offered: Offered) {
    let grace = Duration::from_secs(options.grace.into());
    let slots = Arc::new(find(state, offered, grace).await);
    let pods = pod_resources::socket(&options.kubelet_dir);
    let offer = Arc::new(Offer::new(Arc::clone(&slots), pods.clone(), options.accel));
    tokio::join!(offer.run(registration::folder(&options.kubelet_dir)), collector::run(slots, pods));
}

/// The slots of a network, when there is a router.
async fn find(state: StateDir, offered: Offered, grace: Duration) -> Slots {
    let mut is_told = false;
    loop {
        let (client, state, wanted) = (Client::new(state.api_socket()), state.clone(), offered.clone());
        match spawn_blocking(move || Slots::find(client, state, wanted, grace)).await.expect("no panic") {
            Ok(slots) => return slots,
            Err(error) if !is_told => {
                warn!("waiting for the router: {error}");
                is_told = true;
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// Time until the router is tried again.
const AGAIN: Duration = Duration::from_secs(1);
