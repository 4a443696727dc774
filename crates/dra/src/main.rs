//! `rdmesh-dra-driver`: endpoints that pods of Kubernetes claim, by dynamic resource allocation (`resource.k8s.io/v1`).
//!
//! Each network that is offered is a pool of devices of this node, which the scheduler allocates to claims. Before a pod with such a
//! claim starts, the kubelet has the claim prepared: its endpoints are made, and its containers mount them by CDI.
//!
//! * [`options`]: the command line.
//! * [`slices`]: the pools, as the API server has them.
//! * [`claim`]: a claim's allocation; [`driver`]: its preparation; [`cdi`]: the files that record that.

mod cdi;
mod claim;
mod driver;
mod options;
mod slices;

use clap::Parser;
use driver::Driver;
use options::Options;
use rdmesh_fabric::{Client, StateDir, short_hash};
use rdmesh_kubelet::{DRIVER, dra};
use slices::Publisher;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::EnvFilter;

/// Text of an error of the API server's, in its words.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
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
            eprintln!("rdmesh-dra-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the kubelet and publishes the pools until the process is to end.
async fn serve(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let state = StateDir::locate(options.state_dir.clone(), rustix::process::geteuid().as_raw())?;
    let router = Client::new(state.api_socket());
    let node = options.node();
    // Names of endpoints are the network's, and those of other nodes are others.
    let prefix = format!("claim-{}-", short_hash(&[&node]));
    // A process may have one only, and this is it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = kube::Client::try_default().await?;
    let driver = Arc::new(Driver::new(&options, &node, &prefix, router.clone(), server.clone()));
    let served = dra::serve(driver, DRIVER, &options.kubelet_dir)
        .map_err(|error| format!("{}: {error}", options.kubelet_dir.display()))?;
    let publisher = Publisher::new(&node, &prefix, &options.networks, server);
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
        ended = served => ended?,
        () = publisher.run(router) => {}
    }
    Ok(())
}
