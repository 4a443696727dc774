//! Answers to who asks for the connections of this process.

use super::Process;
use crate::table::for_each_stream;
use rdmesh_streams::message::{Message, VERSION};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{self, Errno};
use rustix::net::{SocketFlags, accept_with, sockopt};

/// Answers all who have connected: the process's own user, and root.
pub(super) fn answer(process: &Process) {
    while let Ok(socket) = accept_with(&process.reporter, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        let own = rustix::process::geteuid();
        let may_know = sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
        // Who is refused, or has gone, sees the end of the socket.
        if may_know && let Ok(report) = make() {
            let _ = Message::Hello { version: VERSION }.send(socket.as_fd(), &[report.as_fd()]);
        }
    }
}

/// A report that changes no more. It is memory, so that nobody has to wait for who reads it.
fn make() -> Result<OwnedFd, Errno> {
    let mut bytes = Vec::new();
    for_each_stream(|fd, stream| {
        if let Some(connection) = stream.report(fd) {
            bytes.extend(connection.to_bytes());
        }
    });
    let report = memfd_create("rdmesh-report", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut left = &bytes[..];
    while !left.is_empty() {
        let written = io::pwrite(&report, left, (bytes.len() - left.len()) as u64)?;
        left = &left[written..];
    }
    fcntl_add_seals(&report, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(report)
}
