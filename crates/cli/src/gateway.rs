//! `rdmesh gateway`: the router's API for other machines.

use crate::args::GatewayOptions;
use crate::failure::Failure;
use crate::show::print_line;
use crate::up::log_filter;
use rdmesh_fabric::Client;
use rdmesh_gateway::{Credentials, Gateway};
use std::io::IsTerminal;

/// Serves the API until the process is ended.
pub(crate) fn gateway(options: &GatewayOptions, client: Client) -> Result<(), Failure> {
    // A router that is not there is better said here than to callers.
    client.status()?;
    let GatewayOptions { listen, cert, key, client_ca, revoked } = options.clone();
    let credentials = Credentials { certificate: cert, key, client_ca, revoked };
    begin_log();
    let gateway = Gateway::bind(listen, credentials, client)?;
    print_line(gateway.url()?)?;
    match gateway.serve()? {}
}

/// Refusals and orders go to the standard error.
fn begin_log() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(log_filter())
        .init();
}
