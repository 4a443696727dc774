//! Resource limits: those of this shell, which programs inherit, and how much of its budget the router has used.

use super::{Finding, Level};
use rdmesh_fabric::api::Status;
use rustix::process::{Resource, getrlimit};
use std::fs;

pub(super) fn check(status: Option<&Status>) -> Vec<Finding> {
    let mut findings = vec![files(getrlimit(Resource::Fsize).current)];
    if let Some(status) = status {
        findings.extend(usage(
            "descriptors",
            open_descriptors(status.pid),
            "start the router with a higher `ulimit -n`",
        ));
        findings.extend(usage("mappings", mappings(status.pid), RAISE_MAPPINGS));
        findings.extend(page_guard(status.pid));
    }
    findings
}

/// Registered memory becomes a sparse file in memory, as long as the address space that it covers.
fn files(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::ok("file size", "unlimited"),
        Some(bytes) => Finding::fail(
            "file size",
            format!("limited to {} KiB: programs cannot register memory, which becomes a (sparse) file", bytes >> 10),
            "ulimit -f unlimited",
        ),
    }
}

fn usage(subject: &'static str, used: Option<(u64, u64)>, fix: &str) -> Option<Finding> {
    let (used, limit) = used?;
    let message = format!("the router uses {used} of {limit}");
    // The next endpoint may need as many as all before.
    let level = if used > limit / 2 { Level::Warn } else { Level::Ok };
    let fix = (level == Level::Warn).then(|| fix.to_owned());
    Some(Finding { level, subject, message, fix })
}

fn open_descriptors(router: u32) -> Option<(u64, u64)> {
    let open = fs::read_dir(format!("/proc/{router}/fd")).ok()?.count() as u64;
    let limits = fs::read_to_string(format!("/proc/{router}/limits")).ok()?;
    let limit =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    Some((open, limit?))
}

fn mappings(router: u32) -> Option<(u64, u64)> {
    let used = fs::read_to_string(format!("/proc/{router}/maps")).ok()?.lines().count() as u64;
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    Some((used, limit))
}

/// Whether the router finds missing pages of programs before it makes them.
fn page_guard(router: u32) -> Option<Finding> {
    let fds = fs::read_dir(format!("/proc/{router}/fd")).ok()?;
    let is_guard = |link: std::path::PathBuf| link.to_string_lossy() == "anon_inode:[userfaultfd]";
    let is_there = fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(is_guard));
    Some(guard_finding(is_there))
}

fn guard_finding(is_there: bool) -> Finding {
    if is_there {
        return Finding::ok("memory", "programs pay for their own");
    }
    Finding {
        level: Level::Warn,
        subject: "memory",
        message: "the router has no userfaultfd: pages that a hostile program takes away are charged to the router"
            .into(),
        fix: Some("allow the router the system call userfaultfd (seccomp), on a kernel with CONFIG_USERFAULTFD".into()),
    }
}

const RAISE_MAPPINGS: &str =
    "sysctl vm.max_map_count=1048576 (or packaging/sysctl.d/60-rdmesh.conf), then restart the router";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_limit_is_worth_a_word() {
        let of = |used| usage("mappings", Some((used, 100)), "more").map(|finding| finding.fix);
        assert_eq!((of(50), of(51)), (Some(None), Some(Some("more".to_owned()))));
        assert!(usage("mappings", None, "more").is_none());
    }

    #[test]
    fn a_router_without_userfaultfd_is_worth_a_word() {
        assert_eq!((guard_finding(true).level, guard_finding(false).level), (Level::Ok, Level::Warn));
        let here = page_guard(std::process::id()).map(|finding| finding.level);
        assert_eq!(here, Some(Level::Warn), "this process has none");
    }

    #[test]
    fn limits_of_this_process_can_be_read() {
        let me = std::process::id();
        assert!(open_descriptors(me).is_some_and(|(open, limit)| open > 0 && open < limit));
        assert!(mappings(me).is_some_and(|(used, limit)| used > 0 && used < limit));
    }

    #[test]
    fn a_limit_on_files_is_a_failure() {
        assert_eq!(files(Some(1 << 30)).level, Level::Fail);
        assert_eq!(files(None).level, Level::Ok);
    }
}
