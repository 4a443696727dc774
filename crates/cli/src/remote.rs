//! Routers of other machines, behind their gateways.

use crate::args::{Command, PeerCommand, Router};
use crate::failure::Failure;
use rdmesh_fabric::{Client, StateDir};
use rdmesh_gateway::Remote;
use std::env;
use std::path::PathBuf;

/// A client of the router that is to do `command`.
pub(crate) fn client(router: &Router, command: &Command, state: &StateDir) -> Result<Client, Failure> {
    let url = router.gateway.clone().or_else(|| env::var("RDMESH_GATEWAY").ok().filter(|url| !url.is_empty()));
    // The others ask no router.
    let asks = !matches!(command, Command::Completion { .. } | Command::Peer(PeerCommand::Key));
    let Some(url) = url.filter(|_| asks) else { return Ok(Client::new(state.api_socket())) };
    if command.is_for_own_host() {
        return Err(Failure::new(format!(
            "this command works on a router's own host: run it there, without --gateway and without RDMESH_GATEWAY ({url})"
        )));
    }
    let folder = router.credentials.clone().or_else(default_folder).ok_or_else(|| {
        Failure::new("name the directory of cert.pem, key.pem and ca.pem with --credentials: there is no HOME")
    })?;
    Ok(Client::by(Remote::new(&url, &folder)?))
}

/// The directory of certificates where none is named.
fn default_folder() -> Option<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("RDMESH_CREDENTIALS")
        .or_else(|| Some(var("XDG_CONFIG_HOME")?.join("rdmesh")))
        .or_else(|| Some(var("HOME")?.join(".config/rdmesh")))
}
