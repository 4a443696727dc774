//! Limits of this shell, which programs inherit, and what the router has used up of its own.

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
        findings.extend(usage("mappings", mappings(status.pid), "sysctl vm.max_map_count=1048576"));
    }
    findings
}

/// Registered memory becomes a file in memory, in which a page lies at its own address.
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
    // Whoever comes next may need as many as all before.
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
