//! `rdmesh vm`: runs a virtual machine on an endpoint.

use crate::args::VmOptions;
use crate::failure::Failure;
use crate::run;
use rdmesh_fabric::{Client, StateDir};
use rdmesh_overlay::GuestNetwork;
use rdmesh_vm::host::{Device, spawn_bound};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// Makes an endpoint that is removed with this process, runs the machine monitor in it, and is the virtual machine's device until it
/// ends. The exit status is the monitor's.
pub(crate) fn vm(options: VmOptions, client: &Client, state: &StateDir) -> Result<ExitCode, Failure> {
    // Without a namespace of the endpoint's the addresses would be the host's own.
    if client.status()?.rootless {
        return Err(Failure::new(
            "this router runs without root and makes no network namespaces: start one as root for virtual machines",
        ));
    }
    let info = client.create_endpoint(&run::of_caller(options.name.as_ref(), options.place.clone(), None)?)?;
    let address = info.endpoint.addresses.first().copied();
    let name = info.endpoint.name.clone();
    let directory = run::enter(info, client, state)?;
    let address = address.ok_or_else(|| Failure::new("the endpoint has no address"))?;
    let network = GuestNetwork::take(address).map_err(|error| {
        Failure::new(format!("the endpoint's addresses cannot be given to the virtual machine: {error}"))
    })?;
    let socket = directory.with_file_name(SOCKET);
    let device = Device::bind(&socket, options.cid, &directory)?;
    let addresses: Vec<String> = network.addresses.iter().map(ToString::to_string).collect();
    eprintln!(
        "rdmesh: endpoint `{name}`: the guest's interface {} must have {}, MTU {}",
        network.mac,
        addresses.join(" and "),
        network.mtu
    );
    let mut child = spawn(&options, &network, &socket)?;
    std::thread::Builder::new().name("device".into()).spawn(move || {
        if let Err(error) = device.serve() {
            eprintln!("rdmesh: {error}");
        }
    })?;
    connect(&mut child, &network)?;
    let status = child.wait()?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, signal) => ExitCode::from(128 + signal.unwrap_or(0) as u8),
    })
}

fn spawn(options: &VmOptions, network: &GuestNetwork, socket: &Path) -> Result<Child, Failure> {
    let [program, arguments @ ..] = options.command.as_slice() else {
        return Err(Failure::new("no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if is_qemu(program) {
        command.args(qemu_arguments(options, network, socket));
    }
    command
        .env("RDMESH_VM_SOCKET", socket)
        .env("RDMESH_VM_INTERFACE", INTERFACE)
        .env("RDMESH_VM_MAC", network.mac.to_string());
    spawn_bound(&mut command)
        .map_err(|error| Failure::with_code(format!("{}: {error}", Path::new(program).display()), 127))
}

fn is_qemu(program: &OsString) -> bool {
    let name = PathBuf::from(program);
    name.file_name().is_some_and(|name| name.to_string_lossy().starts_with("qemu"))
}

fn qemu_arguments(options: &VmOptions, network: &GuestNetwork, socket: &Path) -> Vec<String> {
    let VmOptions { memory, .. } = options;
    let (socket, mac, mtu) = (socket.display(), network.mac, network.mtu);
    [
        ("-m", memory.clone()),
        ("-object", format!("memory-backend-memfd,id=rdmesh-memory,size={memory},share=on")),
        ("-machine", "memory-backend=rdmesh-memory".into()),
        ("-chardev", format!("socket,id=rdmesh-vsock,path={socket}")),
        ("-device", "vhost-user-vsock-pci,chardev=rdmesh-vsock".into()),
        ("-netdev", format!("tap,id=rdmesh-net,ifname={INTERFACE},script=no,downscript=no")),
        ("-device", format!("virtio-net-pci,netdev=rdmesh-net,mac={mac},host_mtu={mtu},romfile=")),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect()
}

/// Joins the monitor's interface to the endpoint's network, once the monitor has made it.
fn connect(child: &mut Child, network: &GuestNetwork) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    while !network.join(INTERFACE)? {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        if Instant::now() > deadline {
            eprintln!("rdmesh: the monitor has made no interface `{INTERFACE}`: the virtual machine has no network");
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Name of the vhost-user socket, beside the endpoint's directory, where only this virtual machine sees it.
const SOCKET: &str = "vsock.sock";
/// Name of the monitor's interface.
const INTERFACE: &str = "rdmesh-tap";
const PATIENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(5);
