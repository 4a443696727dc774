//! Parts of an archive: each is what could be found out, or the reason why nothing could.

use super::secrets;
use crate::doctor;
use rdmesh_fabric::{Client, StateDir};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;

/// A file of the archive, without secrets.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// All parts.
pub(crate) fn collect(client: &Client, state: &StateDir) -> Vec<Part> {
    let router = client.status().ok().map(|status| format!("/proc/{}", status.pid));
    let mut parts = vec![
        text("about.txt", about()),
        part("doctor.json", doctor::findings(client, state).map(|found| secrets::out_of_json(&found))),
        part("router.log", tail(&state.log()).map(|log| secrets::out_of_text(&log))),
        part("config.toml", fs::read_to_string("/etc/rdmesh/config.toml").map(|file| secrets::out_of_text(&file))),
        text("network.txt", programs(&[&["ip", "-s", "-d", "link"], &["ip", "address"], &["ip", "route"]])),
        text("processors.txt", programs(&[&["lscpu"]])),
        text("limits.txt", files(SETTINGS.iter().map(|name| format!("/proc/sys/{name}")))),
        part("memory.txt", fs::read_to_string("/proc/meminfo")),
    ];
    if let Some(process) = router {
        let line = fs::read(format!("{process}/cmdline")).map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        parts.push(part("router/command.txt", line.map(|line| secrets::out_of_text(&line))));
        let files = ["status", "limits", "cgroup", "wchan"].map(|name| format!("{process}/{name}"));
        parts.push(text("router/process.txt", self::files(files.into_iter())));
    }
    for path in API {
        let answer = client.read(&format!("/v1/{path}")).map(|answer| secrets::out_of_json(&answer));
        parts.push(part(&format!("api/{path}.json"), answer));
    }
    parts
}

/// A part, or the reason why it could not be had.
fn part<E: Display>(name: &str, found: Result<String, E>) -> Part {
    match found {
        Ok(found) => text(name, found),
        Err(error) => text(&format!("{name}.missing"), format!("{error}\n")),
    }
}

fn text(name: &str, text: String) -> Part {
    Part { name: name.to_owned(), text }
}

/// Versions of what runs here.
fn about() -> String {
    let system = rustix::system::uname();
    let [release, version, machine] =
        [system.release(), system.version(), system.machine()].map(|text| text.to_string_lossy().into_owned());
    let distribution = fs::read_to_string("/etc/os-release").unwrap_or_default();
    format!("rdmesh {}\nLinux {release} {version} {machine}\n\n{distribution}", env!("CARGO_PKG_VERSION"))
}

/// The end of a file that may be long.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LONGEST_LOG)))?;
    let mut text = Vec::new();
    file.take(LONGEST_LOG).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Output of programs, each after its command line.
fn programs(commands: &[&[&str]]) -> String {
    let output = |command: &&[&str]| {
        let [program, arguments @ ..] = command else { return String::new() };
        let said = match Command::new(program).args(arguments).output() {
            Ok(output) => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            Err(error) => format!("{error}\n"),
        };
        format!("$ {}\n{said}\n", command.join(" "))
    };
    commands.iter().map(output).collect()
}

/// Contents of files, each after its name.
fn files(names: impl Iterator<Item = String>) -> String {
    let show = |name: String| {
        let text = fs::read_to_string(&name).unwrap_or_else(|error| format!("{error}\n"));
        format!("{name}:\n{}\n\n", text.trim_end())
    };
    names.map(show).collect()
}

/// Paths of the API whose answers are parts.
const API: [&str; 16] = [
    "status",
    "networks",
    "tenants",
    "groups",
    "policies",
    "pools",
    "endpoints",
    "contexts",
    "connections",
    "chains",
    "failed-requests",
    "peers",
    "tunnel",
    "faults",
    "stats",
    "events",
];

/// Settings of the kernel that matter here.
const SETTINGS: [&str; 12] = [
    "kernel/osrelease",
    "kernel/pid_max",
    "kernel/yama/ptrace_scope",
    "vm/max_map_count",
    "vm/overcommit_memory",
    "vm/unprivileged_userfaultfd",
    "fs/file-nr",
    "fs/nr_open",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "net/ipv4/ip_forward",
];

/// Most bytes of the log.
const LONGEST_LOG: u64 = 2 << 20;
