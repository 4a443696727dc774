//! `rdmesh endpoint`: commands on endpoints.

use crate::args::{AddOptions, EndpointCommand, MoveOptions, OutputOptions, PlaceOptions, RemoveOptions};
use crate::failure::Failure;
use crate::pool;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, MoveDevices, Netns};
use rdmesh_fabric::{Client, ClientError, Isolation, Labels, Name};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Executes a command on endpoints.
pub(crate) fn execute(command: EndpointCommand, client: &Client) -> Result<(), Failure> {
    match command {
        EndpointCommand::Add(options) => add(options, client),
        EndpointCommand::Rm(options) => remove(&options, client),
        EndpointCommand::Move(options) => move_devices(&options, client),
        EndpointCommand::Acquire(options) => pool::acquire(&options, client),
        EndpointCommand::Confine(options) => pool::confine(options, client),
        EndpointCommand::Release(options) => pool::release(&options, client),
        EndpointCommand::Ls(options) => list(&options, client),
    }
}

/// Makes a persistent endpoint.
fn add(options: AddOptions, client: &Client) -> Result<(), Failure> {
    let isolation = match (options.namespace, &options.netns) {
        (_, Some(_)) => Isolation::Given,
        (true, None) => Isolation::Namespace,
        (false, None) => Isolation::None,
    };
    if options.interface.is_some() && isolation == Isolation::None {
        return Err(Failure::new(
            "--interface names an interface in a network namespace: add --netns FILE or --namespace",
        ));
    }
    // The router takes it from this process: a path may lead elsewhere there.
    let netns = options.netns.as_deref().map(open).transpose()?;
    let request = CreateEndpoint {
        netns: netns.as_ref().map(|netns| Netns::Descriptor(netns.as_raw_fd().unsigned_abs())),
        interface: options.interface,
        labels: Labels::parse(options.labels.iter().map(String::as_str))?,
        ..request(options.name, options.place, options.uid, isolation)
    };
    let info = client.create_endpoint(&request)?;
    if options.output.json {
        return print_json(&info);
    }
    let addresses = addresses(&info);
    print_line(format!("Endpoint `{}` is {addresses} on network `{}`.", info.endpoint.name, info.endpoint.network))
}

/// Removes an endpoint.
fn remove(options: &RemoveOptions, client: &Client) -> Result<(), Failure> {
    client.remove_endpoint(&options.net, &options.name)?;
    Ok(())
}

/// Moves the devices of an endpoint to another worker.
fn move_devices(options: &MoveOptions, client: &Client) -> Result<(), Failure> {
    let to = MoveDevices { worker: options.worker, pid: options.pid };
    let devices = client.move_devices(&options.net, &options.name, &to)?.devices;
    let plural = if devices == 1 { "device is" } else { "devices are" };
    print_line(format!("{devices} {plural} served by worker {} now.", options.worker))
}

/// Lists endpoints.
fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let endpoints = client.endpoints()?;
    if options.json {
        return print_json(&endpoints);
    }
    if endpoints.is_empty() {
        return print_line("No endpoints: `rdmesh run -- COMMAND` or `rdmesh endpoint add NAME` makes one.");
    }
    print_line(table(&endpoints))
}

/// The persistent endpoint `name`; made, with this isolation, if there is none.
pub(crate) fn ensure(
    name: Name,
    place: PlaceOptions,
    isolation: Isolation,
    client: &Client,
) -> Result<EndpointInfo, Failure> {
    match client.endpoint(&place.net, &name) {
        Ok(info) => Ok(info),
        Err(ClientError::Refused { status: 404, .. }) => {
            Ok(client.create_endpoint(&request(name, place, None, isolation))?)
        }
        Err(error) => Err(error.into()),
    }
}

/// A table of endpoints.
pub(crate) fn table(endpoints: &[EndpointInfo]) -> Table {
    let has_labels = endpoints.iter().any(|info| !info.endpoint.labels.is_empty());
    let labels = has_labels.then_some("LABELS");
    let header: Vec<&str> =
        ["NETWORK", "ENDPOINT", "ADDRESS", "OWNER"].into_iter().chain(labels).chain(["DIRECTORY"]).collect();
    let mut table = Table::new(&header);
    for info in endpoints {
        let endpoint = &info.endpoint;
        let mut row = vec![
            endpoint.network.to_string(),
            endpoint.name.to_string(),
            addresses(info),
            endpoint.owner_pid.map_or("-".to_owned(), |pid| format!("pid {pid}")),
        ];
        if has_labels {
            row.push(if endpoint.labels.is_empty() { "-".to_owned() } else { endpoint.labels.to_string() });
        }
        row.push(info.directory.display().to_string());
        table.row(row);
    }
    table
}

/// Opens a namespace's file without reading from it.
fn open(path: &Path) -> Result<OwnedFd, Failure> {
    let opened = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

fn addresses(info: &EndpointInfo) -> String {
    let addresses: Vec<String> = info.endpoint.addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

fn request(name: Name, place: PlaceOptions, allowed_uid: Option<u32>, isolation: Isolation) -> CreateEndpoint {
    CreateEndpoint {
        vni: place.vni,
        addresses: place.ip,
        quota: place.quota.quota(),
        allowed_uid,
        isolation,
        ..CreateEndpoint::new(place.net, name)
    }
}
