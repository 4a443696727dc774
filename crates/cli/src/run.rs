//! `rdmesh run`.

use crate::args::RunOptions;
use crate::failure::Failure;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Lifetime};
use rdmesh_fabric::{Client, ENDPOINT_MOUNT, Isolation, Name, StateDir};
use rdmesh_overlay::Sandbox;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes an endpoint that goes with this process, and becomes the program: its process id, its signals and its exit
/// status are this process's own.
pub(crate) fn run(options: RunOptions, client: &Client, state: &StateDir) -> Result<(), Failure> {
    let name = match options.name {
        Some(name) => name,
        None => format!("run-{}", std::process::id()).parse::<Name>()?,
    };
    let isolation = if options.host_network { Isolation::None } else { Isolation::Namespace };
    let info = client.create_endpoint(&CreateEndpoint {
        name,
        network: options.place.net,
        vni: options.place.vni,
        addresses: options.place.ip,
        quota: options.place.quota.quota(),
        allowed_uid: None,
        lifetime: Lifetime::Caller,
        isolation,
    })?;
    let directory = enter(info, client, state)?;
    let [program, arguments @ ..] = options.command.as_slice() else { return Ok(()) };
    let error = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload(&directory, std::env::var_os("LD_PRELOAD").as_deref()))
        .env("RDMESH_ENDPOINT", &directory)
        .exec();
    // As a shell does.
    let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    Err(Failure::with_code(format!("{}: {error}", Path::new(program).display()), code))
}

/// Moves this process into the endpoint; returns the endpoint's directory as it is seen there.
fn enter(info: EndpointInfo, client: &Client, state: &StateDir) -> Result<PathBuf, Failure> {
    // A rootless router's files are its user's own, and so is the program. Root's are closed to all others, and the program
    // may drop its privileges: it finds its endpoint where it always is.
    if info.namespace.is_none() && client.status()?.rootless {
        return Ok(info.directory);
    }
    let mount_point = PathBuf::from(ENDPOINT_MOUNT);
    let sandbox = Sandbox {
        namespace: info.namespace,
        directory: info.directory,
        state: state.path().to_owned(),
        mount_point: mount_point.clone(),
    };
    sandbox.enter()?;
    Ok(mount_point)
}

/// The value of `LD_PRELOAD`: our library, then what was there.
fn preload(directory: &Path, existing: Option<&OsStr>) -> OsString {
    let mut value = directory.join("librdmesh.so").into_os_string();
    if let Some(existing) = existing.filter(|e| !e.is_empty()) {
        value.push(":");
        value.push(existing);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloads_stay() {
        let directory = Path::new("/e");
        assert_eq!(preload(directory, None), "/e/librdmesh.so");
        assert_eq!(preload(directory, Some(OsStr::new("/a.so /b.so"))), "/e/librdmesh.so:/a.so /b.so");
    }
}
