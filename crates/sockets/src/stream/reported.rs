//! Streams as others may know them: `rdmesh sockets` lists them.

use super::{Channel, Stream};
use crate::kernel::borrow;
use rdmesh_streams::report::{Connection, Path, Reason};
use rdmesh_streams::ring::Ring;
use rustix::net::{getpeername, getsockname};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl Stream {
    /// Addresses, paths and counters of descriptor `fd`; none where the kernel knows its peer no more.
    pub(crate) fn report(&self, fd: c_int) -> Option<Connection> {
        // Of one that is closed now the calls fail, or tell of another socket.
        let socket = borrow(fd);
        let local = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
        let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        let path =
            |of: fn(&Channel) -> Ring<'_>| self.channel().map_or(Path::Tcp, |channel| path(channel, &of(channel)));
        let (out, input) = (path(Channel::out), path(Channel::input));
        let kept = self.kept.lock();
        // Also what went by rings that it had before.
        let sent = kept.iter().map(|channel| channel.out().header.producer.tail.load(Ordering::Relaxed));
        let received = kept.iter().map(|channel| channel.input().header.consumer.head.load(Ordering::Relaxed));
        let rings = kept.iter().filter(|channel| has_carried(channel)).count();
        let is_on_tcp = out == Path::Tcp || input == Path::Tcp;
        let is_crowded = |channel: &Channel| channel.is_relayed() && channel.back.is_crowded.load(Ordering::Relaxed);
        let reason = match Reason::parse(self.reason.load(Ordering::Relaxed)) {
            None | Some(Reason::None) if self.channel().is_some_and(is_crowded) => Some(Reason::Crowded),
            reason => reason,
        };
        let reason = reason.filter(|_| is_on_tcp);
        Some(Connection {
            fd: fd.unsigned_abs(),
            local,
            peer,
            out,
            input,
            sent: sent.fold(0, u64::wrapping_add),
            received: received.fold(0, u64::wrapping_add),
            rings: rings as u32,
            reason: reason.unwrap_or(Reason::None),
        })
    }
}

fn path(channel: &Channel, ring: &Ring<'_>) -> Path {
    let path = &ring.header.path;
    let is_on_ring = path.up_at.load(Ordering::Acquire) != 0 && path.down_at.load(Ordering::Acquire) == 0;
    match is_on_ring {
        false => Path::Tcp,
        true if channel.is_relayed() => Path::Relay,
        true => Path::Memory,
    }
}

/// Whether one of the directions has been on the ring.
fn has_carried(channel: &Channel) -> bool {
    [channel.out(), channel.input()].iter().any(|ring| ring.header.path.up_at.load(Ordering::Acquire) != 0)
}
