//! Checks of the kernel's and this process's settings.

use super::Finding;
use rdmesh_fabric::StateDir;
use rdmesh_fabric::api::Status;
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, geteuid, getrlimit};
use std::fs;
use std::path::Path;

pub(super) fn check(status: Option<&Status>, state: &StateDir) -> Vec<Finding> {
    let rootless = status.map_or(!geteuid().is_root(), |status| status.rootless);
    let mut findings =
        vec![locked_memory(), shared_memory(), userfaultfd(), tracing_of_processes(rootless), plain_rocev2()];
    if rootless {
        findings.push(user_namespaces());
    } else {
        findings.push(network_namespaces(state));
    }
    findings
}

/// Our memory is shared, not locked, so this limit does not bind us; but programs look at it.
fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::Memlock);
    locked_memory_within(if geteuid().is_root() { None } else { limit.maximum }, limit.current)
}

/// `reachable` is the limit to which `rdmesh run` can raise it.
fn locked_memory_within(reachable: Option<u64>, limit: Option<u64>) -> Finding {
    const SUBJECT: &str = "locked memory";
    match (reachable, limit) {
        (Some(reachable), Some(_)) if reachable < ENOUGH_LOCKED => Finding::warn(
            SUBJECT,
            format!(
                "the limit is {} KiB: rdmesh needs none, its memory is shared, not locked, and programs with libibverbs are \
                 told that there is none; what looks at it otherwise (a launcher, a script) may refuse",
                reachable >> 10
            ),
            "`memlock` in /etc/security/limits.conf, or LimitMEMLOCK=infinity in the unit that starts it",
        ),
        (_, Some(limit)) => Finding::ok(
            SUBJECT,
            format!(
                "limit {} KiB here, raised by `rdmesh run`; rdmesh needs none: memory is shared, not locked",
                limit >> 10
            ),
        ),
        (_, None) => Finding::ok(SUBJECT, "no limit"),
    }
}

/// Registered memory is memfd memory, which the kernel accounts like /dev/shm; programs' own use is of /dev/shm itself.
fn shared_memory() -> Finding {
    const PATH: &str = "/dev/shm";
    let fix = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm";
    if access(PATH, Access::WRITE_OK).is_err() {
        return Finding::warn("shared memory", "/dev/shm cannot be written: MPI and pyverbs tests need it", fix);
    }
    match statvfs(PATH) {
        Ok(fs) if fs.f_blocks * fs.f_frsize < 64 << 20 => Finding::warn(
            "shared memory",
            format!("/dev/shm has only {} MiB", (fs.f_blocks * fs.f_frsize) >> 20),
            "mount -o remount,size=1g /dev/shm, or `docker run --shm-size 1g`",
        ),
        Ok(fs) => Finding::ok("shared memory", format!("/dev/shm has {} MiB", (fs.f_blocks * fs.f_frsize) >> 20)),
        Err(error) => Finding::warn("shared memory", format!("/dev/shm: {error}"), fix),
    }
}

/// It holds off the other threads of a program while memory is registered. Where it cannot be had they are stopped by a
/// signal for that moment, which costs time only.
fn userfaultfd() -> Finding {
    match read("/proc/sys/vm/unprivileged_userfaultfd").as_deref() {
        None => Finding::ok("userfaultfd", "not in this kernel; threads are stopped while memory is registered"),
        Some("0") => Finding::ok(
            "userfaultfd",
            "for privileged programs; threads of others are stopped while memory is registered \
             (`sysctl vm.unprivileged_userfaultfd=1` makes that unnecessary)",
        ),
        Some(_) => Finding::ok("userfaultfd", "available"),
    }
}

/// Memory that cannot be shared is reached through /proc/PID/mem, which this guards. The preload library lets its
/// router in, which is enough for scope 1.
fn tracing_of_processes(rootless: bool) -> Finding {
    let consequence = "memory that cannot be shared (such as mapped files) cannot be registered";
    match read("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Some("3") => Finding::warn(
            "yama",
            format!("kernel.yama.ptrace_scope is 3: {consequence}"),
            "boot with kernel.yama.ptrace_scope=1 in /etc/sysctl.d (3 cannot be lowered while running)",
        ),
        Some("2") if rootless => Finding::warn(
            "yama",
            format!("kernel.yama.ptrace_scope is 2 and the router does not run as root: {consequence}"),
            "sysctl kernel.yama.ptrace_scope=1, or a router that runs as root",
        ),
        Some(scope) => Finding::ok("yama", format!("kernel.yama.ptrace_scope is {scope}")),
        None => Finding::ok("yama", "not in this kernel"),
    }
}

/// Other routers are reached in any case; external peers check the identification that the kernel writes into IPv4 headers.
fn plain_rocev2() -> Finding {
    match rdmesh_router::io::probe() {
        Ok(()) => Finding::ok("plain RoCEv2", "the kernel numbers segmented datagrams from zero"),
        Err(error) => Finding::warn(
            "plain RoCEv2",
            format!("machines outside rdmesh cannot be reached: {error}"),
            "Linux 4.18 or later, with UDP on the loopback interface",
        ),
    }
}

fn user_namespaces() -> Finding {
    let max = read("/proc/sys/user/max_user_namespaces").and_then(|text| text.parse::<u64>().ok());
    let disabled = read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0");
    if disabled || max == Some(0) {
        return Finding::ok("user namespaces", "not available; `rdmesh run --host-network` does not need them");
    }
    Finding::ok("user namespaces", "available")
}

fn network_namespaces(state: &StateDir) -> Finding {
    if !Path::new("/proc/self/ns/net").exists() {
        return Finding::fail("network namespaces", "not in this kernel", "use `rdmesh run --host-network`");
    }
    let bound = fs::read_dir(state.namespaces()).map_or(0, Iterator::count);
    Finding::ok("network namespaces", format!("available, {bound} in use"))
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Programs that look at the limit want more than the usual 8 MiB.
const ENOUGH_LOCKED: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_limit_on_locked_memory_that_cannot_be_raised_is_worth_a_word() {
        const USUAL: Option<u64> = Some(8 << 20);
        assert_eq!(locked_memory_within(USUAL, Some(65_536)).level, Level::Warn);
        assert!(locked_memory_within(USUAL, Some(65_536)).message.contains("8192 KiB"));
        assert_eq!(locked_memory_within(None, USUAL).level, Level::Ok);
        assert_eq!(locked_memory_within(Some(1 << 40), USUAL).level, Level::Ok);
        assert_eq!(locked_memory_within(None, None).message, "no limit");
    }
}
