//! Port counters. Their files in the tree for `/sys` are empty: when a program opens one, it gets a file with the present
//! value.

use super::channel::Channel;
use super::link::connect;
use crate::endpoint::{self, Endpoint};
use crate::memory;
use rdmesh_uverbs::session::RequestKind;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use std::ffi::CStr;

/// Part of a path before the name of a counter; the name includes its folder, as in the router's request.
const PORT: &[u8] = b"/ports/1/";
const FOLDERS: [&[u8]; 2] = [b"counters/", b"hw_counters/"];

/// Whether `path`, which is of the tree for `/sys`, is a counter's file.
pub(crate) fn is_counter(path: &[u8]) -> bool {
    name(path).is_some()
}

/// Opens the counter at `path` with its present figure.
pub(crate) fn open(path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    if flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        return Err(Errno::ACCESS);
    }
    let name = name(path.to_bytes()).ok_or(Errno::NOENT)?;
    let _gate = memory::gate();
    let figure = ask(endpoint::present().ok_or(Errno::NODEV)?, name)?;
    let kept = if flags.contains(OFlags::CLOEXEC) { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let file = rustix::fs::memfd_create(c"rdmesh-counter", kept)?;
    rustix::io::write(&file, &figure)?;
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}

/// Reads the counter `name` from the router.
pub(super) fn ask(endpoint: &Endpoint, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let socket = connect(endpoint)?;
    let mut channel = Channel::new();
    let reply = channel.call(socket.as_fd(), RequestKind::Counter, name, &[], &[])?;
    Ok(reply.response().to_vec())
}

fn name(path: &[u8]) -> Option<&[u8]> {
    let at = path.windows(PORT.len()).rposition(|part| part == PORT)?;
    let name = &path[at + PORT.len()..];
    let rest = FOLDERS.iter().find_map(|folder| name.strip_prefix(*folder))?;
    (!rest.is_empty() && !rest.contains(&b'/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_the_ports_folders_are_counters() {
        let port = "/run/e/sys/class/infiniband/rxe0/ports/1/";
        let of = |rest: &str| name(format!("{port}{rest}").as_bytes()).map(|name| name.to_vec());
        assert_eq!(of("counters/port_xmit_data").unwrap(), b"counters/port_xmit_data");
        assert_eq!(of("hw_counters/np_cnp_sent").unwrap(), b"hw_counters/np_cnp_sent");
        for other in ["counters", "counters/", "counters/a/b", "gids/0", "state"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert!(!is_counter(b"/counters/x"));
    }
}
