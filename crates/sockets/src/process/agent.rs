//! The agent: a thread that listens to linked processes.
#![allow(unsafe_code)]

use super::{Link, Process, as_stream};
use crate::stream::Stream;
use arrayvec::ArrayVec;
use rdmesh_preload::gate;
use rdmesh_streams::ends::Ends;
use rdmesh_streams::inbox::STREAMS;
use rdmesh_streams::message::{FDS, Message, Received, VERSION};
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{SocketFlags, accept_with};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Keys of what is no link's socket: links' are addresses.
pub(super) const LISTENER: u64 = 0;
pub(super) const REPORTER: u64 = 1;
pub(super) const STALLS: u64 = 2;

/// Starts the agent of `process`. It takes no signal of the program's.
pub(super) fn start(process: &'static Process) -> std::io::Result<()> {
    let before = block_signals();
    let thread = std::thread::Builder::new().name("rdmesh-sockets".into()).stack_size(STACK);
    let started = thread.spawn(move || run(process));
    // SAFETY: the mask that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started.map(drop)
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: sets are plain data, which these calls fill.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn run(process: &'static Process) {
    loop {
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&process.watched, rustix::buffer::spare_capacity(&mut events), process.stalls.pause()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        // A fork finds nothing half done.
        let _gate = gate::enter();
        for event in events {
            match event.data.u64() {
                LISTENER => accept(process),
                REPORTER => super::report::answer(process),
                STALLS => process.stalls.silence(),
                key => listen_to(process, key),
            }
        }
        process.look_at_stalls();
        crate::wake::flush();
    }
}

fn accept(process: &'static Process) {
    while let Ok(socket) = accept_with(&process.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        // One that is refused sees the end of the socket.
        let _ = process.add_link(socket);
    }
}

fn listen_to(process: &'static Process, key: u64) {
    let raw: *const Link = std::ptr::with_exposed_provenance(key as usize);
    // SAFETY: keys come from `Arc::into_raw`, and this count is given back only where the socket is watched no more, below.
    let link = unsafe {
        Arc::increment_strong_count(raw);
        Arc::from_raw(raw)
    };
    loop {
        match Message::receive(link.socket()) {
            Err(Errno::AGAIN) => return,
            Ok(Some(received)) => {
                // A process that breaks the rules is not listened to any more.
                if handle(process, &link, received).is_err() {
                    break;
                }
            }
            Ok(None) | Err(_) => break,
        }
    }
    link.die();
    if link.is_relay() {
        process.for_each_stream(|stream| stream.lose_relay(&link));
    }
    let _ = epoll::delete(&process.watched, link.socket());
    process.links.lock().retain(|_, known| !Arc::ptr_eq(known, &link));
    // SAFETY: the count of the key, once.
    drop(unsafe { Arc::from_raw(raw) });
}

fn handle(process: &'static Process, link: &Arc<Link>, Received { message, mut fds }: Received) -> Result<(), Errno> {
    match message {
        Message::Hello { version: VERSION } => {
            link.take_inbox(&fds.pop().ok_or(Errno::PROTO)?)?;
            // The other end may use rings that it was offered before its hello is heard here.
            process.for_each_stream(|stream| stream.signal_peer(link));
            Ok(())
        }
        Message::Hello { .. } => Err(Errno::PROTO),
        Message::Doorbell { waiter } => link.take_doorbell(waiter, fds.pop().ok_or(Errno::PROTO)?),
        Message::Offer { offer } => {
            let answer = match take_offer(process, link, &fds) {
                Ok(()) => Message::Accept { offer },
                Err(Errno::AGAIN) => Message::Later { offer },
                Err(_) => Message::Refuse { offer },
            };
            answer.send(link.socket(), &[])
        }
        Message::Accept { offer } => with_stream(process, offer, |stream| stream.offer_accepted(offer)),
        Message::Refuse { offer } => with_stream(process, offer, |stream| stream.offer_refused(offer)),
        Message::Down { index } => with_stream(process, index, |stream| stream.leave_ring(link)),
        Message::Later { offer } => with_stream(process, offer, |stream| stream.offer_put_off(offer)),
        Message::Want { index } if link.is_relay() => take_want(process, link, index),
        Message::Lost { index } if link.is_relay() => with_stream(process, index, |stream| stream.lose_relay(link)),
        Message::Want { .. } | Message::Lost { .. } => Err(Errno::PROTO),
    }
}

/// The relay wants rings for connection `index`, which this process has accepted.
fn take_want(process: &'static Process, link: &Arc<Link>, index: u32) -> Result<(), Errno> {
    let object = process.stream(index);
    let stream = object.as_deref().and_then(as_stream);
    let offered = stream.and_then(|stream| {
        let ends = *stream.ends()?;
        let (fd, _) = process.accepted(&ends)?;
        stream.offer_by(fd, link).map(|()| ends)
    });
    match offered {
        Some(ends) => {
            process.withdraw(&ends);
            Ok(())
        }
        None => Process::refuse_relay(link, index),
    }
}

/// Calls `call` with the stream of this process that an index, or the number of an offer, belongs to.
fn with_stream(process: &Process, number: u32, call: impl FnOnce(&Stream)) -> Result<(), Errno> {
    // It may have been closed meanwhile.
    if let Some(object) = process.stream(number % STREAMS as u32) {
        as_stream(&object).map(call);
    }
    Ok(())
}

/// Takes an offer: the socket is the other end of a connection that this process has accepted. Whoever holds that end could
/// write to the connection anyway. EAGAIN where a later offer may be taken.
fn take_offer(process: &'static Process, link: &Arc<Link>, fds: &ArrayVec<OwnedFd, FDS>) -> Result<(), Errno> {
    let [socket, slot] = &fds[..] else { return Err(Errno::INVAL) };
    let ends = Ends::of(socket.as_fd(), true).ok_or(Errno::INVAL)?;
    let (fd, object) = process.accepted(&ends).ok_or(Errno::NOENT)?;
    let stream = as_stream(&object).ok_or(Errno::NOENT)?;
    if netns(socket.as_raw_fd()).is_none_or(|own| netns(fd) != Some(own)) {
        return Err(Errno::PERM);
    }
    stream.take_offer(link, slot)?;
    process.withdraw(&ends);
    Ok(())
}

/// Identity of a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14); 0 where the kernel does not tell.
fn netns(fd: i32) -> Option<u64> {
    let mut cookie = MaybeUninit::<u64>::zeroed();
    let mut len = size_of::<u64>() as libc::socklen_t;
    let result = rdmesh_preload::real::getsockopt(
        fd,
        libc::SOL_SOCKET,
        SO_NETNS_COOKIE,
        cookie.as_mut_ptr().cast(),
        &raw mut len,
    );
    match result {
        // SAFETY: zeros, or what the kernel wrote.
        0 => Some(unsafe { cookie.assume_init() }),
        _ if rdmesh_preload::errno::is(io::Errno::NOPROTOOPT) => Some(0),
        _ => None,
    }
}

const STACK: usize = 256 << 10;
/// asm-generic/socket.h; the `libc` crate does not have it for all machines.
const SO_NETNS_COOKIE: i32 = 71;
