//! Queries of `/proc`.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where control groups of version 2 are mounted, if they are.
pub fn cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| line.contains(" cgroup2 ").then(|| line.split(' ').nth(1))?.map(PathBuf::from))
}

/// `pid` and all its descendants.
pub fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|c| c.parse::<u32>().ok()));
        }
    }
    all
}

/// Processes that were started with `variable` set to `value`.
pub fn with_variable(variable: &str, value: &str) -> Vec<u32> {
    let entry = format!("{variable}={value}");
    let has_entry = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| all.split(|b| *b == 0).any(|e| e == entry.as_bytes()))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_entry).collect()
}

/// Command line of `pid`, its arguments separated by spaces; empty when there is no such process.
pub fn command_line(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned()
}

/// Whether a TCP socket listens on `port` in the network namespace of `pid`.
pub fn listens(pid: u32, port: u16) -> bool {
    has_socket(pid, ["tcp", "tcp6"], port, "0A")
}

/// Whether a UDP socket receives from any sender on `port` in the network namespace of `pid`.
pub fn receives(pid: u32, port: u16) -> bool {
    has_socket(pid, ["udp", "udp6"], port, "07")
}

fn has_socket(pid: u32, tables: [&str; 2], port: u16, state: &str) -> bool {
    tables.iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some(state)
        })
    })
}

/// Kills one process.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Asks one process to end.
pub fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

/// Lets one process stand still.
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// The process under `pid` (or itself) whose program is called `name`.
pub fn find(pid: u32, name: &str) -> Option<u32> {
    let short: String = name.chars().take(15).collect();
    family(pid).into_iter().find(|p| fs::read_to_string(format!("/proc/{p}/comm")).is_ok_and(|c| c.trim() == short))
}

/// Processor time that the threads of `pid` have used, in seconds.
pub fn cpu_seconds(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds: u64 = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    nanoseconds as f64 / 1e9
}

/// Huge pages for the time of a test, where the machine lets us have them.
pub struct HugePages {
    before: String,
}

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// Asks for `count` pages.
    pub fn reserve(count: u32) -> Option<Self> {
        let before = fs::read_to_string(NR_HUGEPAGES).ok()?;
        fs::write(NR_HUGEPAGES, count.to_string()).ok()?;
        Some(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, &self.before);
    }
}
