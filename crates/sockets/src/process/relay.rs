//! The endpoint's relay, which stands for the processes of other endpoints and hosts.

use super::{Link, Process};
use crate::lock::Spin;
use crate::spin::now;
use rdmesh_preload::{endpoint, gate};
use rdmesh_streams::RELAY_NAME;
use rdmesh_streams::message::Message;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The way to the relay.
#[derive(Default)]
pub(super) struct Relay(Spin<State>);

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// Time of the last try to connect.
    tried: u64,
}

/// Whether this program is in an endpoint that has a relay.
pub(crate) fn is_present() -> bool {
    path().is_some()
}

fn path() -> Option<&'static PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = endpoint::present()?.directory().join(RELAY_NAME);
        // No connection yet: this is asked of every connection.
        rustix::fs::access(&path, rustix::fs::Access::EXISTS).ok().map(|()| path)
    })
    .as_ref()
}

impl Process {
    /// The link to the relay; none where it is not there.
    pub(crate) fn relay(&self) -> Option<Arc<Link>> {
        let _gate = gate::enter();
        let mut state = self.relay.0.lock();
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_dead()) {
            return Some(Arc::clone(link));
        }
        // A router that has ended comes back, or does not.
        if state.tried != 0 && now() - state.tried < RETRY_NS {
            return None;
        }
        state.tried = now();
        state.link = path().and_then(|path| connect_to(path).ok()).and_then(|socket| self.link_relay(socket).ok());
        state.link.clone()
    }

    /// Answers that a connection which the relay wants cannot be accelerated.
    pub(super) fn refuse_relay(link: &Link, index: u32) -> Result<(), Errno> {
        Message::Refuse { offer: index }.send(link.socket(), &[])
    }
}

fn connect_to(path: &PathBuf) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

const RETRY_NS: u64 = 1_000_000_000;
