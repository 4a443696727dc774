//! Checks of the router, its state directory and the preload library.

use super::Finding;
use rdmesh_fabric::api::{Mode, Status};
use rdmesh_fabric::{ClientError, StateDir};
use rdmesh_overlay::Underlay;
use rdmesh_router::endpoint::Library;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::process::Command;
use std::thread::available_parallelism;

pub(super) fn check(status: &Result<Status, ClientError>, state: &StateDir) -> Vec<Finding> {
    let mut findings = vec![router(status), library(status.as_ref().ok()), executable(state)];
    if let Ok(status) = status {
        findings.push(cores(status));
        findings.extend(other_hosts(status));
    }
    findings
}

fn router(status: &Result<Status, ClientError>) -> Finding {
    match status {
        Ok(status) if status.version != env!("CARGO_PKG_VERSION") => Finding::warn(
            "router",
            format!("version {} runs, but this is version {}", status.version, env!("CARGO_PKG_VERSION")),
            "rdmesh down && rdmesh up",
        ),
        Ok(status) => Finding::ok("router", format!("running, pid {}, version {}", status.pid, status.version)),
        Err(error) => Finding::fail("router", error.to_string(), "rdmesh up (as root), or rdmesh up --rootless"),
    }
}

/// Whether the dynamic loader accepts the library: if not, it reports that on stderr, and goes on without.
fn library(status: Option<&Status>) -> Finding {
    let path = match status.map_or_else(Library::find, |status| Ok(status.library.clone())) {
        Ok(path) => path,
        Err(error) => {
            return Finding::fail("library", error.to_string(), "install rdmesh as a whole: program and library");
        }
    };
    let loaded = Command::new("/bin/true").env("LD_PRELOAD", &path).output();
    let complaint = match loaded {
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    if complaint.is_empty() {
        return Finding::ok("library", path.display().to_string());
    }
    Finding::fail("library", complaint, "use the library that belongs to this program and this machine's C library")
}

/// The way to other hosts, where the router has one.
fn other_hosts(status: &Status) -> Option<Finding> {
    let address = status.underlay?;
    Some(match Underlay::find(address) {
        Ok(underlay) => Finding::ok(
            "other hosts",
            format!("this is `{}` at {address}, with room for packets of {} bytes", status.host, underlay.tenant_mtu()),
        ),
        Err(error) => Finding::fail(
            "other hosts",
            error.to_string(),
            "rdmesh down, and rdmesh up --underlay ADDRESS with another one",
        ),
    })
}

/// Programs map the library from the state directory.
fn executable(state: &StateDir) -> Finding {
    let place =
        [state.endpoints(), state.path().to_owned()].into_iter().find_map(|path| Some((statvfs(&path).ok()?, path)));
    match place {
        None => Finding::ok("state directory", format!("{} (not made yet)", state.path().display())),
        Some((fs, path)) if fs.f_flag.contains(StatVfsMountFlags::NOEXEC) => Finding::fail(
            "state directory",
            format!("{} is mounted `noexec`: programs cannot load the library from it", path.display()),
            "use another --state-dir, or `mount -o remount,exec`",
        ),
        Some(_) => Finding::ok("state directory", state.path().display().to_string()),
    }
}

fn cores(status: &Status) -> Finding {
    let cores = available_parallelism().map_or(1, usize::from);
    let workers = status.workers;
    let plural = if workers == 1 { "" } else { "s" };
    let message = format!("{workers} worker{plural} on {cores} cores");
    match status.mode {
        Mode::Spin if workers >= cores => Finding::warn(
            "cores",
            format!("{message}, all spinning: nothing is left for the programs"),
            "rdmesh down && rdmesh up --mode adaptive, or fewer --workers",
        ),
        Mode::Spin if cores < 4 => {
            Finding::warn("cores", format!("{message}, spinning"), "rdmesh down && rdmesh up --mode adaptive")
        }
        _ => Finding::ok("cores", message),
    }
}
