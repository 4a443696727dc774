//! Agent in a guest: to its programs, the router.
//!
//! It runs as root. A program's library connects to the agent's socket as it would to a router's; each connection is served by a thread
//! of its own, over a vsock stream of its own. Memory that a program shares stays pinned until the host has said that it no
//! longer touches it, also when the program is killed: the agent has it mapped and pinned itself.
//!
//! Connections of accelerated programs to other endpoints are carried by a relay, as a router has one for each endpoint. Here it is
//! a thread of the agent, and a program like any other to the agent: its device comes by the agent's own socket.

mod context;
pub mod doctor;
mod events;
mod objects;
mod pin;
mod queues;
mod session;
mod stream;
mod tree;

use context::Contexts;
use rdmesh_relay::{Relay, Relays};
use rdmesh_streams::RELAY_NAME;
use rdmesh_uverbs::page::WORKERS_LEN;
use rdmesh_uverbs::session::{GUEST_NAME, SOCKET_NAME};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fs::{Mode, chmod};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of the endpoint in a guest.
pub const DIRECTORY: &str = "/run/rdmesh/endpoint";

/// An agent that has the endpoint's directory, and serves its programs.
pub struct Agent {
    directory: PathBuf,
    /// The stream that tells that the host is there.
    control: OwnedFd,
    listener: OwnedFd,
    shared: Arc<Shared>,
    /// Serves accelerated programs until it is dropped, before the thread that starts it.
    _relay: Relay,
    _relays: Relays,
}

/// State of all sessions.
struct Shared {
    token: [u8; 16],
    contexts: Contexts,
    /// The workers' pages that programs get: all workers are awake, as long as a context is not dormant.
    workers: OwnedFd,
}

/// The agent cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No device process.
    #[error(
        "no rdmesh device: {0} (is the virtual machine started by `rdmesh vm`, and the module vmw_vsock_virtio_transport loaded?)"
    )]
    NoHost(io::Error),
    /// It has closed the connection.
    #[error("the host has closed the connection; `rdmesh vm` says why")]
    Refused,
    /// It speaks another protocol.
    #[error("the host: {0}")]
    Protocol(String),
    /// The directory cannot be made.
    #[error("{}: {source}", .path.display())]
    #[allow(missing_docs, reason = "the text says what each is")]
    Directory { path: PathBuf, source: io::Error },
}

impl Agent {
    /// Connects to the host, and makes `directory` as it is there.
    pub fn join(directory: &Path) -> Result<Self, AgentError> {
        let control = stream::connect_agent().map_err(AgentError::NoHost)?;
        let failed = |source| AgentError::Directory { path: directory.to_owned(), source };
        let staging = tree::Staging::new(directory).map_err(failed)?;
        let token = staging.receive(&control)?;
        let (_, workers) =
            SharedMemory::create_published("rdmesh-workers", WORKERS_LEN).map_err(|errno| failed(errno.into()))?;
        std::fs::write(staging.path().join(GUEST_NAME), "").map_err(failed)?;
        let listen = |name, flags| listen_at(&staging.path().join(name), flags).map_err(failed);
        let listener = listen(SOCKET_NAME, SocketFlags::CLOEXEC)?;
        let streams = listen(RELAY_NAME, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        staging.publish().map_err(failed)?;
        let relays = Relays::start().map_err(|errno| failed(errno.into()))?;
        let relay = relays.add(&directory.join(SOCKET_NAME), streams).map_err(|errno| failed(errno.into()))?;
        let shared = Arc::new(Shared { token, contexts: Contexts::default(), workers });
        Ok(Self { directory: directory.to_owned(), control, listener, shared, _relay: relay, _relays: relays })
    }

    /// The endpoint's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Serves programs until the host is gone.
    pub fn serve(self) -> io::Result<()> {
        let (listener, shared) = (self.listener, self.shared);
        std::thread::Builder::new().name("programs".into()).spawn(move || accept_programs(&listener, &shared))?;
        let mut byte = [0];
        loop {
            match recv(&self.control, &mut byte[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn accept_programs(listener: &OwnedFd, shared: &Arc<Shared>) {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(program) => {
                let shared = Arc::clone(shared);
                let serve = move || {
                    if let Err(error) = session::serve(&shared, program) {
                        eprintln!("rdmesh-guest: a program's connection is closed: {error}");
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("program".into()).spawn(serve) {
                    eprintln!("rdmesh-guest: a program is turned away: {error}");
                }
            }
            Err(errno) => {
                eprintln!("rdmesh-guest: no program can connect: {errno}");
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

/// A socket for programs of all users.
fn listen_at(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    chmod(path, Mode::from_raw_mode(0o666))?;
    listen(&socket, 128)?;
    Ok(socket)
}
