//! `rdmesh run`: starts a program on an endpoint.

use crate::args::{PlaceOptions, RunOptions};
use crate::failure::Failure;
use crate::program;
use rdmesh_fabric::api::{AcquireEndpoints, CreateEndpoint, EndpointInfo, Lifetime};
use rdmesh_fabric::{Client, ENDPOINT_MOUNT, Isolation, Name, StateDir};
use rdmesh_overlay::Sandbox;
use rdmesh_router::endpoint::{LIBRARY_NAME, SOCKETS_LIBRARY_NAME};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Makes an endpoint that is removed with this process, and executes the program: its process id, its signals and its exit
/// status are this process's own.
pub(crate) fn run(options: RunOptions, client: &Client, state: &StateDir) -> Result<(), Failure> {
    let info = obtain(&options, client)?;
    let is_confined = info.cgroup.is_some();
    let directory = enter(info, client, state)?;
    if is_confined {
        give_up_network().map_err(|error| Failure::new(format!("giving up capabilities: {error}")))?;
    }
    let [program, arguments @ ..] = options.command.as_slice() else { return Ok(()) };
    let (search, library) = (std::env::var_os("PATH"), directory.join(LIBRARY_NAME));
    if let Some((obstacle, file)) = program::obstacle(program.as_ref(), search.as_deref(), &library) {
        eprintln!("rdmesh: {}", obstacle.warning(&file, "sees no RDMA device"));
    }
    raise_locked_memory();
    let mut command = Command::new(program);
    if let Some(term) = options.linger {
        command.env("RDMESH_LINGER", term.as_millis().to_string());
    }
    let libraries = libraries(options.accel);
    if options.accel {
        crate::accel::require_library(&directory)?;
    }
    let error = command
        .args(arguments)
        .env("ASAN_OPTIONS", sanitizer_options(std::env::var_os("ASAN_OPTIONS").as_deref()))
        .env("LD_PRELOAD", preload(&directory, libraries, std::env::var_os("LD_PRELOAD").as_deref()))
        .env("RDMESH_ENDPOINT", &directory)
        .exec();
    // As a shell does.
    let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    Err(Failure::with_code(format!("{}: {error}", Path::new(program).display()), code))
}

/// An endpoint for this process: one of a pool, or a new one.
fn obtain(options: &RunOptions, client: &Client) -> Result<EndpointInfo, Failure> {
    if let Some(pool) = &options.pool {
        let request = AcquireEndpoints { count: 1, lifetime: Lifetime::Caller, enters: true };
        let acquired = client.acquire_endpoints(&options.place.net, pool, &request)?.pop();
        return acquired.ok_or_else(|| Failure::new(format!("the router has given no endpoint of pool `{pool}`")));
    }
    let request = of_caller(options.name.as_ref(), options.place.clone(), options.linger)?;
    Ok(client.create_endpoint(&CreateEndpoint {
        take_over: options.take_over,
        isolation: if options.host_network { Isolation::None } else { Isolation::Namespace },
        ..request
    })?)
}

/// A request for an endpoint that goes with this process, in a namespace of its own.
pub(crate) fn of_caller(
    name: Option<&Name>,
    place: PlaceOptions,
    linger: Option<Duration>,
) -> Result<CreateEndpoint, Failure> {
    let name = match name {
        Some(name) => name.clone(),
        None => format!("run-{}", std::process::id()).parse::<Name>()?,
    };
    Ok(CreateEndpoint {
        vni: place.vni,
        addresses: place.ip,
        quota: place.quota.with_linger(linger),
        lifetime: Lifetime::Caller,
        ..CreateEndpoint::new(place.net, name)
    })
}

/// Moves this process into the endpoint; returns the endpoint's directory as it is seen there.
pub(crate) fn enter(info: EndpointInfo, client: &Client, state: &StateDir) -> Result<PathBuf, Failure> {
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

/// Gives up what would let a program use addresses of others in its network namespace, past all discipline: packet sockets, and
/// changes of the interface.
fn give_up_network() -> rustix::io::Result<()> {
    let given_up = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN;
    // What root executes has all capabilities of the bounding set.
    for capability in given_up.iter() {
        remove_capability_from_bounding_set(capability)?;
    }
    let sets = capabilities(None)?;
    let left = CapabilitySets {
        effective: sets.effective - given_up,
        permitted: sets.permitted - given_up,
        inheritable: sets.inheritable - given_up,
    };
    set_capabilities(None, left)
}

/// Registered memory is not locked, but some programs check the limit, and refuse to start where it is low.
fn raise_locked_memory() {
    let limit = getrlimit(Resource::Memlock);
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_err() {
        // Only root may raise the hard limit. Where not even this is allowed, all stays as it was.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
    }
}

/// The value of `ASAN_OPTIONS`: the runtime of AddressSanitizer may come behind the library. The library sets that too, but not
/// for programs that have defaults of their own.
fn sanitizer_options(existing: Option<&OsStr>) -> OsString {
    let mut value = OsString::from("verify_asan_link_order=0");
    if let Some(existing) = existing.filter(|e| !e.is_empty()) {
        // Later options override earlier ones.
        value.push(":");
        value.push(existing);
    }
    value
}

/// The libraries that programs load, in this order.
fn libraries(is_accelerated: bool) -> &'static [&'static str] {
    if is_accelerated { &[LIBRARY_NAME, SOCKETS_LIBRARY_NAME] } else { &[LIBRARY_NAME] }
}

/// The value of `LD_PRELOAD`: our libraries in `directory`, then the previous value.
fn preload(directory: &Path, libraries: &[&str], existing: Option<&OsStr>) -> OsString {
    let own = libraries.iter().map(|name| directory.join(name).into_os_string());
    let others = existing.filter(|existing| !existing.is_empty()).map(OsStr::to_owned);
    let all: Vec<OsString> = own.chain(others).collect();
    all.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_options_for_the_sanitizer_hold() {
        assert_eq!(sanitizer_options(None), "verify_asan_link_order=0");
        assert_eq!(sanitizer_options(Some(OsStr::new("a=1"))), "verify_asan_link_order=0:a=1");
    }

    #[test]
    fn other_preloads_stay() {
        let directory = Path::new("/e");
        assert_eq!(preload(directory, libraries(false), None), "/e/librdmesh.so");
        let (both, existing) = (preload(directory, libraries(true), None), Some(OsStr::new("/a.so /b.so")));
        assert_eq!(both, "/e/librdmesh.so:/e/librdmesh-sockets.so");
        assert_eq!(preload(directory, libraries(false), existing), "/e/librdmesh.so:/a.so /b.so");
    }
}
