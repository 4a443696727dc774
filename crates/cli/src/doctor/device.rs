//! Device check: a temporary endpoint shows whether programs find the device.

use super::Finding;
use super::packages::Packages;
use crate::program::loads_with_musl;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Lifetime, Status};
use rdmesh_fabric::{Client, DEFAULT_NETWORK, Isolation};
use rdmesh_router::endpoint::{DEVICE_NAME, LIBRARY_NAME};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

pub(super) fn check(status: Option<&Status>, client: &Client) -> Vec<Finding> {
    if status.is_none() {
        return Vec::new();
    }
    match endpoint(client) {
        Ok(info) => {
            let mut findings = vec![sysfs(&info), device(&info), netlink(&info)];
            findings.extend(musl(&info.directory.join(LIBRARY_NAME)));
            // It goes with this process in any case.
            let _ = client.remove_endpoint(&info.endpoint.network, &info.endpoint.name);
            findings
        }
        Err(error) => vec![Finding::fail(
            "endpoint",
            format!("none can be made: {error}"),
            "see router.log in the state directory",
        )],
    }
}

fn endpoint(client: &Client) -> Result<EndpointInfo, Box<dyn std::error::Error>> {
    Ok(client.create_endpoint(&CreateEndpoint {
        lifetime: Lifetime::Caller,
        isolation: Isolation::None,
        ..CreateEndpoint::new(DEFAULT_NETWORK.parse()?, format!("doctor-{}", std::process::id()).parse()?)
    })?)
}

fn sysfs(info: &EndpointInfo) -> Finding {
    let state = info.directory.join("sys/class/infiniband").join(DEVICE_NAME).join("ports/1/state");
    match std::fs::read_to_string(&state) {
        Ok(text) if text.contains("ACTIVE") => Finding::ok("sysfs tree", format!("port is {}", text.trim())),
        Ok(text) => Finding::fail("sysfs tree", format!("{}: {}", state.display(), text.trim()), RESTART),
        Err(error) => Finding::fail("sysfs tree", format!("{}: {error}", state.display()), RESTART),
    }
}

/// A library that needs what musl has not: it was built by `cargo build` alone.
fn musl(path: &Path) -> Option<Finding> {
    let warning = || {
        Finding::warn(
            "musl",
            format!("{LIBRARY_NAME} loads with glibc alone: programs that are linked with musl (Alpine) see no device"),
            "install one that scripts/build-shim.sh has built, and start the router again",
        )
    };
    (!loads_with_musl(path)).then(warning)
}

/// `program`, to be run in the endpoint.
fn command(info: &EndpointInfo, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", info.directory.join(LIBRARY_NAME)).env("RDMESH_ENDPOINT", &info.directory);
    command
}

fn device(info: &EndpointInfo) -> Finding {
    match command(info, "ibv_devinfo").args(["-d", DEVICE_NAME]).output() {
        Ok(output) if output.status.success() && String::from_utf8_lossy(&output.stdout).contains("PORT_ACTIVE") => {
            Finding::ok("device", "ibv_devinfo opens it, and its port is active")
        }
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).trim().replace('\n', "\n        ");
            Finding::fail(
                "device",
                format!("ibv_devinfo does not open it:\n        {text}"),
                "the findings above, first of all",
            )
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let packages = Packages::here();
            let fix = packages.install(packages.utilities);
            Finding::warn("device", "not tried: ibv_devinfo is not installed", fix)
        }
        Err(error) => {
            Finding::warn("device", format!("not tried: ibv_devinfo: {error}"), "make ibv_devinfo executable")
        }
    }
}

/// Whether `rdma` of iproute2 shows the device, as some programs and test suites expect.
fn netlink(info: &EndpointInfo) -> Finding {
    const SUBJECT: &str = "netlink";
    match command(info, "rdma").args(["link", "show"]).output() {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains(DEVICE_NAME) => {
            Finding::ok(SUBJECT, "`rdma link` shows the device")
        }
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = format!("`rdma link` does not show the device: {}", String::from_utf8_lossy(&text).trim());
            Finding::warn(SUBJECT, text, RESTART)
        }
        Err(_) => Finding::ok(SUBJECT, "not tried: `rdma` of iproute2 is not installed; few programs need it"),
    }
}

const RESTART: &str = "rdmesh down && rdmesh up";
