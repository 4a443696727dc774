//! `rdmesh sockets`: accelerated programs' connections, the way that their bytes go, and why.
//!
//! Each accelerated program tells of its own connections, by a Unix socket in its network namespace. What it says is believed as
//! little as its name: it is read within limits, and shown without what a terminal would obey.

use crate::args::OutputOptions;
use crate::failure::Failure;
use crate::show::{self, print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::EndpointInfo;
use rdmesh_overlay::{NamespaceId, in_namespace};
use rdmesh_streams::message::{Message, VERSION};
use rdmesh_streams::report::{Connection, NAME_PREFIX, Path as Way, REPORT_SUFFIX, Reason, connections};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A connection as it is listed.
#[derive(Serialize)]
struct Row {
    pid: i32,
    command: String,
    /// `network/name`; none outside endpoints.
    endpoint: Option<String>,
    fd: u32,
    local: String,
    peer: String,
    out: &'static str,
    #[serde(rename = "in")]
    input: &'static str,
    ring_bytes_out: u64,
    ring_bytes_in: u64,
    rings: u32,
    reason: Option<&'static str>,
}

/// A process that has been asked, by a connected socket.
struct Asked {
    pid: i32,
    socket: OwnedFd,
    namespace: NamespaceId,
}

/// Lists the connections of accelerated programs: root those of all, others their own ones in this network namespace.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    // Without a router programs are accelerated too.
    let endpoints = client.endpoints().unwrap_or_default();
    let asked: Vec<Asked> = namespaces().into_iter().flat_map(|(id, file)| ask(id, &file)).collect();
    let deadline = Instant::now() + PATIENCE;
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for process in &asked {
        match answer(&process.socket, deadline) {
            Ok(report) => rows.extend(connections(&report).map(|connection| row(process, &connection, &endpoints))),
            // It has ended, or is another user's.
            Err(Errno::CONNRESET) => {}
            Err(error) => silent.push((process.pid, error)),
        }
    }
    rows.sort_by_key(|row| (row.pid, row.fd));
    for (pid, error) in silent {
        eprintln!("rdmesh: process {pid} does not tell of its connections: {error}");
    }
    if options.json {
        return print_json(&rows);
    }
    match (rows.is_empty(), asked.is_empty()) {
        (false, _) => print_line(table(&rows)),
        (true, false) => print_line("No accelerated program has a connection that could have rings."),
        (true, true) => {
            print_line("No accelerated program runs: `rdmesh accel -- COMMAND` or `rdmesh run --accel` starts one.")
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let header = ["PID", "COMMAND", "ENDPOINT", "FD", "LOCAL", "PEER", "PATH", "RINGS", "SENT", "RECEIVED", "WHY TCP"];
    let mut table = Table::new(&header);
    for row in rows {
        let path = if row.out == row.input { row.out.to_owned() } else { format!("{}, in: {}", row.out, row.input) };
        table.row([
            row.pid.to_string(),
            row.command.clone(),
            row.endpoint.clone().unwrap_or_else(|| "-".into()),
            row.fd.to_string(),
            row.local.clone(),
            row.peer.clone(),
            path,
            row.rings.to_string(),
            show::bytes(row.ring_bytes_out),
            show::bytes(row.ring_bytes_in),
            row.reason.unwrap_or_default().to_owned(),
        ]);
    }
    table
}

fn row(process: &Asked, connection: &Connection, endpoints: &[EndpointInfo]) -> Row {
    let command = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    let is_there =
        |endpoint: &&EndpointInfo| endpoint.namespace.as_deref().and_then(NamespaceId::of) == Some(process.namespace);
    // Endpoints of a pool share a namespace.
    let has_address = |endpoint: &&EndpointInfo| endpoint.endpoint.addresses.contains(&connection.local.ip());
    let there = || endpoints.iter().filter(is_there);
    let endpoint = there().find(has_address).or_else(|| there().next());
    let is_on_tcp = [connection.out, connection.input].contains(&Way::Tcp);
    let reason = match connection.reason {
        Reason::None => "rings come with further calls",
        reason => reason.text(),
    };
    Row {
        pid: process.pid,
        command: command.trim_end().to_owned(),
        endpoint: endpoint.map(|info| format!("{}/{}", info.endpoint.network, info.endpoint.name)),
        fd: connection.fd,
        local: connection.local.to_string(),
        peer: connection.peer.to_string(),
        out: connection.out.name(),
        input: connection.input.name(),
        ring_bytes_out: connection.sent,
        ring_bytes_in: connection.received,
        rings: connection.rings,
        reason: is_on_tcp.then_some(reason),
    }
}

/// Network namespaces of processes, each with a file that is it.
fn namespaces() -> Vec<(NamespaceId, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found = Vec::new();
    for pid in pids {
        let file = PathBuf::from(format!("/proc/{pid}/ns/net"));
        if let Some(id) = NamespaceId::of(&file).filter(|id| !found.iter().any(|(known, _)| known == id)) {
            found.push((id, file));
        }
    }
    found
}

/// Asks the accelerated processes in a network namespace.
fn ask(namespace: NamespaceId, file: &Path) -> Vec<Asked> {
    let Some(unix) = file.parent().and_then(Path::parent).map(|process| process.join("net/unix")) else {
        return Vec::new();
    };
    let names = names(&fs::read_to_string(unix).unwrap_or_default());
    if names.is_empty() {
        return Vec::new();
    }
    let connect_all = || Ok(names.iter().filter_map(|name| connect_to(name).ok()).collect::<Vec<_>>());
    // Only root enters another one.
    let is_own = NamespaceId::of(Path::new("/proc/self/ns/net")) == Some(namespace);
    let sockets = if is_own { connect_all() } else { in_namespace(file, connect_all) };
    let asked = sockets.unwrap_or_default().into_iter();
    asked.map(|(pid, socket)| Asked { pid, socket, namespace }).collect()
}

/// Names at which processes report, in what `/proc/PID/net/unix` says.
fn names(unix: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.split(' ').next_back()?.strip_prefix('@')?;
        (name.starts_with(NAME_PREFIX) && name.ends_with(REPORT_SUFFIX)).then(|| name.to_owned())
    };
    let names: BTreeMap<String, ()> = unix.lines().filter_map(name).map(|name| (name, ())).collect();
    names.into_keys().collect()
}

fn connect_to(name: &str) -> io::Result<(i32, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    // Not the one in its name: that is its own word, and its own namespace of numbers.
    let pid = sockopt::socket_peercred(&socket)?.pid;
    Ok((pid.as_raw_nonzero().get(), socket))
}

/// Report of a process that was asked; ECONNRESET where it refuses or has ended.
fn answer(socket: &OwnedFd, deadline: Instant) -> io::Result<Vec<u8>> {
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).map_err(|_| Errno::INVAL)?;
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    if poll(&mut fds, Some(&left))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut received = Message::receive(socket.as_fd())?.ok_or(Errno::CONNRESET)?;
    if received.message != (Message::Hello { version: VERSION }) {
        return Err(Errno::PROTONOSUPPORT);
    }
    read_sealed(&received.fds.pop().ok_or(Errno::PROTO)?)
}

/// Contents of a memfd that is sealed against changes, up to [`LONGEST`]. Any other file might block its reader.
fn read_sealed(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let needed = SealFlags::WRITE | SealFlags::SHRINK;
    if !fcntl_get_seals(file)?.contains(needed) {
        return Err(Errno::PROTO);
    }
    let len = usize::try_from(fstat(file)?.st_size).unwrap_or(0).min(LONGEST);
    let (mut bytes, mut done) = (vec![0; len], 0);
    while done < len {
        match io::pread(file, &mut bytes[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Time in which all processes have answered: their own thread for it waits for nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a report that are read: some 200,000 connections.
const LONGEST: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    #[test]
    fn names_of_reporters_are_found_among_all() {
        let unix = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 2 0 10000 5 01 1 @rdmesh-sockets/12/0badcafe\n0: 2 0 10000 5 01 2 @rdmesh-sockets/12/0badcafe/report\n\
                    0: 3 0 0 5 03 3 @rdmesh-sockets/12/0badcafe/report\n0: 2 0 10000 1 01 4 /run/x\n0: 2 0 0 2 01 5\n";
        assert_eq!(names(unix), ["rdmesh-sockets/12/0badcafe/report"]);
    }

    #[test]
    fn only_memory_that_stays_as_it_is_gets_read() {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        io::pwrite(&file, b"report", 0).unwrap();
        assert_eq!(read_sealed(&file), Err(Errno::PROTO));
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        assert_eq!(read_sealed(&file).unwrap(), b"report");
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(read_sealed(&pipe).is_err());
    }
}
