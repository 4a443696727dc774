//! vsock streams to the device process on the host.

use crate::wire::{HOST_CID, Hello, PORT, PRIVILEGED, Purpose};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, socket};
use rustix::net::{SendFlags, send};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use zerocopy::IntoBytes;

/// The agent's own stream, from a port that only a privileged process can have.
pub(super) fn connect_agent() -> io::Result<OwnedFd> {
    let stream = open()?;
    let is_free = |port: &u32| bind(stream.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, *port)).is_ok();
    let port = (1..PRIVILEGED).rev().find(is_free);
    port.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, "the agent must be root in the guest"))?;
    greet(stream, Purpose::Agent, [0; 16])
}

/// A stream for a connection of a program.
pub(super) fn connect_program(token: [u8; 16]) -> io::Result<OwnedFd> {
    greet(open()?, Purpose::Program, token)
}

/// Whether the host's device answers.
pub(super) fn probe() -> io::Result<()> {
    Ok(connect(open()?.as_raw_fd(), &VsockAddr::new(HOST_CID, PORT))?)
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

fn greet(stream: OwnedFd, purpose: Purpose, token: [u8; 16]) -> io::Result<OwnedFd> {
    connect(stream.as_raw_fd(), &VsockAddr::new(HOST_CID, PORT))?;
    write_all(&stream, Hello::new(purpose, token).as_bytes())?;
    Ok(stream)
}

/// Sends all bytes; waits for the host's room.
pub(super) fn write_all(stream: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let sent = rustix::io::retry_on_intr(|| send(stream, bytes, SendFlags::NOSIGNAL))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}
