//! Messages to the service manager that has started the router: sd_notify(3), without its library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The manager's socket; none where there is no manager that waits for messages.
pub(super) struct Manager(Option<OsString>);

impl Manager {
    /// That of the environment.
    pub(super) fn of_this_process() -> Self {
        Self(env::var_os(SOCKET).filter(|at| !at.is_empty()))
    }

    /// Sends assignments, as `READY=1`, one on each line. A manager that cannot be reached is no reason not to serve.
    pub(super) fn tell(&self, state: &str) {
        let told = self.0.as_deref().map_or(Ok(()), |at| send(at, state));
        if let Err(error) = told {
            tracing::warn!(%error, state, "cannot reach the service manager at ${SOCKET}");
        }
    }
}

fn send(at: &OsStr, state: &str) -> io::Result<()> {
    let address = match at.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(at)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

const SOCKET: &str = "NOTIFY_SOCKET";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = path.as_os_str().as_bytes();
        let at = |name: &[u8]| Manager(Some(OsStr::from_bytes(name).to_owned()));
        let abstract_one = SocketAddr::from_abstract_name(name).unwrap();
        let sockets = [UnixDatagram::bind(&path), UnixDatagram::bind_addr(&abstract_one)].map(Result::unwrap);
        for (socket, manager) in sockets.iter().zip([at(name), at(&[b"@", name].concat())]) {
            manager.tell("READY=1");
            let mut message = [0; 100];
            let len = socket.recv(&mut message).unwrap();
            assert_eq!(&message[..len], b"READY=1");
        }
        // Nobody is there, or nobody waits.
        at(b"/nowhere").tell("READY=1");
        Manager(None).tell("READY=1");
    }
}
