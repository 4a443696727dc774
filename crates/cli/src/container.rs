//! Endpoints for containers: `rdmesh container-args` and `rdmesh cdi`.

use crate::accel::require_library;
use crate::args::{CdiOptions, ContainerOptions, PlaceOptions, QuotaOptions};
use crate::endpoint::ensure;
use crate::failure::Failure;
use crate::show::print_line;
use rdmesh_fabric::api::EndpointInfo;
use rdmesh_fabric::{Client, ENDPOINT_MOUNT, Isolation, mounted_libraries};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Prints the arguments for `docker run`, or `podman run`.
pub(crate) fn arguments(options: ContainerOptions, client: &Client) -> Result<(), Failure> {
    let isolation = if options.podman { Isolation::Namespace } else { Isolation::None };
    let info = ensure(options.name, options.place, isolation, client)?;
    let network = if options.podman { network_of(&info)? } else { String::new() };
    let directory = info.directory.display().to_string();
    if directory.contains([' ', ':']) {
        return Err(Failure::new(format!(
            "{directory} cannot be mounted with `-v`: use a --state-dir without spaces and colons"
        )));
    }
    if options.accel {
        require_library(&info.directory)?;
    }
    // Some programs look at the limit although nothing is locked. An engine that may not raise it would start no container.
    let limit = if client.status()?.rootless || !can_raise_limits() { "" } else { " --ulimit memlock=-1" };
    print_line(format!("{network}-v {directory}:{ENDPOINT_MOUNT}:ro -e {}{limit}", preload(options.accel)))
}

/// The option by which a container joins the endpoint's network namespace.
fn network_of(info: &EndpointInfo) -> Result<String, Failure> {
    let Some(namespace) = &info.namespace else {
        let name = &info.endpoint.name;
        return Err(Failure::new(format!(
            "endpoint `{name}` has no network namespace of its own: remove it with `rdmesh endpoint rm {name} --net {}`, or \
             name another",
            info.endpoint.network
        )));
    };
    Ok(format!("--network ns:{} ", namespace.display()))
}

/// Writes a CDI file.
pub(crate) fn cdi(options: CdiOptions, client: &Client) -> Result<(), Failure> {
    let place = PlaceOptions { net: options.net, ip: Vec::new(), vni: None, quota: QuotaOptions::default() };
    let endpoints = if options.names.is_empty() {
        let persistent = |info: &EndpointInfo| info.endpoint.owner_pid.is_none();
        client.endpoints()?.into_iter().filter(persistent).collect()
    } else {
        let ensured = options.names.into_iter().map(|name| ensure(name, place.clone(), Isolation::None, client));
        ensured.collect::<Result<Vec<_>, _>>()?
    };
    if endpoints.is_empty() {
        return Err(Failure::new(
            "there are no persistent endpoints: name one, or make one with `rdmesh endpoint add NAME`",
        ));
    }
    if options.accel {
        endpoints.iter().try_for_each(|info| require_library(&info.directory))?;
    }
    let text = serde_json::to_string_pretty(&specification(&endpoints, options.accel))? + "\n";
    if options.output == Path::new("-") {
        return print_line(text.trim_end());
    }
    write(&options.output, &text)?;
    let example = endpoints.first().map(|info| info.endpoint.directory_name()).unwrap_or_default();
    print_line(format!(
        "Written to {}. Use it as: docker run --device {KIND}={example} IMAGE …",
        options.output.display()
    ))
}

fn specification(endpoints: &[EndpointInfo], is_accelerated: bool) -> Value {
    let devices: Vec<Value> = endpoints.iter().map(|info| device(info, is_accelerated)).collect();
    json!({ "cdiVersion": "0.6.0", "kind": KIND, "devices": devices })
}

fn device(info: &EndpointInfo, is_accelerated: bool) -> Value {
    let mount = json!({
        "hostPath": info.directory,
        "containerPath": ENDPOINT_MOUNT,
        "options": ["ro", "nosuid", "nodev", "bind"],
    });
    json!({
        "name": info.endpoint.directory_name(),
        "containerEdits": { "env": [preload(is_accelerated)], "mounts": [mount] },
    })
}

/// Engines may read the file at any time: it appears whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let temporary = path.with_extension("json.new");
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| fs::write(&temporary, text)).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| Failure::new(format!("{}: {e}; choose another --output", path.display())))
}

/// Whether this machine's daemons may raise limits: inside some sandboxes not even its first process has the capability.
fn can_raise_limits() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/1/status").unwrap_or_default();
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = bounding.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bounding.is_none_or(|bits| bits & CAP_SYS_RESOURCE != 0)
}

fn preload(is_accelerated: bool) -> String {
    format!("LD_PRELOAD={}", mounted_libraries(is_accelerated))
}

const KIND: &str = "rdmesh.dev/endpoint";
