//! This process among others that share accelerated connections with it.
//!
//! Everything here is made when the first connection between programs of this host is: a program that has none is left alone.
//!
//! * [`waiter`]: who waits for connections, and is woken.
//! * [`link`]: the other processes; [`relay`]: the one that stands for those of other endpoints.
//! * [`report`]: what it tells of its connections; [`stalls`]: those whose rings are full.
//! * [`agent`]: the thread that listens to them. The program's own threads may compute or sleep for as long as they like; an offer,
//!   or a peer that asks for its bytes on TCP, does not wait for them. It sleeps as long as nothing is said.
//!
//! A fork's child begins anew with its first connection.

pub(crate) mod agent;
mod link;
mod relay;
mod report;
mod stalls;
mod waiter;

pub(crate) use link::Link;
pub(crate) use relay::is_present as has_relay;
pub(crate) use waiter::Waiter;

use crate::lock::Spin;
use crate::registry::{ProcessName, Registry};
use crate::stream::{Locks, LocksArea, Stream};
use crate::table::{Object, TABLE};
use rdmesh_preload::{OwnFd, gate};
use rdmesh_streams::ends::Ends;
use rdmesh_streams::inbox::{Inbox, STREAMS};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use waiter::Doorbells;

/// State of a process that has accelerated connections, or may have some. Never freed.
pub(crate) struct Process {
    name: ProcessName,
    registry: Registry,
    inbox: (Inbox, OwnFd),
    doorbells: Doorbells,
    locks: LocksArea,
    streams: Spin<Streams>,
    /// Offers that have been made.
    offers: AtomicU32,
    links: Spin<HashMap<ProcessName, Arc<Link>>>,
    relay: relay::Relay,
    stalls: stalls::Stalls,
    /// Watched by the agent: the listening socket, and the links' sockets.
    watched: OwnFd,
    listener: OwnFd,
    /// Likewise, for who asks for a report.
    reporter: OwnFd,
}

/// Connections, by index.
#[derive(Default)]
struct Streams {
    list: Vec<Weak<Object>>,
    free: Vec<u32>,
    /// Accepted connections that no offer has come for, by their ends.
    accepted: HashMap<Ends, (i32, Weak<Object>)>,
}

/// The present one; null before the first connection, and in a child.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// Held while one is made.
static MAKING: Spin<bool> = Spin::new(false);

impl Process {
    /// This process, made if it is not there. None where something that it needs cannot be had; it is not tried again.
    pub(crate) fn get() -> Option<&'static Self> {
        let current = Self::current();
        if current.is_some() {
            return current;
        }
        let _gate = gate::enter();
        let mut has_failed = MAKING.lock();
        if Self::current().is_none() && !*has_failed {
            match Self::make() {
                Some(made) => {
                    CURRENT.store(std::ptr::from_ref(made).cast_mut(), Ordering::Release);
                    *has_failed = agent::start(made).is_err();
                }
                None => *has_failed = true,
            }
        }
        Self::current().filter(|_| !*has_failed)
    }

    fn current() -> Option<&'static Self> {
        crate::table::never_freed(CURRENT.load(Ordering::Acquire))
    }

    /// This process is the child of a fork: what it has is its parent's.
    pub(crate) fn forget() {
        CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    }

    fn make() -> Option<&'static Self> {
        let mut nonce = [0; 4];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()).ok()?;
        let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let name = ProcessName { pid, nonce: u32::from_ne_bytes(nonce) };
        let (inbox, inbox_fd) = Inbox::create().ok()?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let listener = listen_at(&name.address()).ok()?;
        let reporter = listen_at(&name.report_address()).ok()?;
        for (socket, key) in [(&listener, agent::LISTENER), (&reporter, agent::REPORTER)] {
            epoll::add(&watched, socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN).ok()?;
        }
        Some(Box::leak(Box::new(Self {
            name,
            registry: Registry::open()?,
            inbox: (inbox, OwnFd::new(inbox_fd)),
            doorbells: Doorbells::default(),
            locks: LocksArea::new(STREAMS).ok()?,
            streams: Spin::default(),
            offers: AtomicU32::new(0),
            links: Spin::default(),
            relay: relay::Relay::default(),
            stalls: stalls::Stalls::new(&watched, agent::STALLS).ok()?,
            watched: OwnFd::new(watched),
            listener: OwnFd::new(listener),
            reporter: OwnFd::new(reporter),
        })))
    }

    /// Its inbox.
    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox.0
    }

    /// Descriptor of its inbox, for others.
    pub(crate) fn inbox_fd(&self) -> BorrowedFd<'_> {
        self.inbox.1.as_fd()
    }

    /// The doorbells of its waiters.
    pub(crate) fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// A waiter; none where there are too many.
    pub(crate) fn waiter(&'static self) -> Option<Waiter> {
        self.doorbells.waiter(self)
    }

    /// An index for a new connection, and the locks that go with it; none where there are too many connections.
    pub(crate) fn claim_index(&self) -> Option<(u32, &Locks)> {
        let mut streams = self.streams.lock();
        let index = match streams.free.pop() {
            Some(index) => index,
            None if streams.list.len() < STREAMS => {
                streams.list.push(Weak::new());
                streams.list.len() as u32 - 1
            }
            None => return None,
        };
        Some((index, self.locks.get(index)))
    }

    /// A number for an offer of connection `index`, which no other one has for a long time.
    pub(crate) fn offer_number(&self, index: u32) -> u32 {
        let serial = self.offers.fetch_add(1, Ordering::Relaxed);
        serial.wrapping_mul(STREAMS as u32).wrapping_add(index)
    }

    /// A connection has ended.
    pub(crate) fn release_index(&self, index: u32) {
        self.inbox().withdraw(index);
        let mut streams = self.streams.lock();
        streams.list[index as usize] = Weak::new();
        streams.free.push(index);
    }

    /// Makes a connection known by its index.
    pub(crate) fn enter(&self, index: u32, stream: &Arc<Object>) {
        self.streams.lock().list[index as usize] = Arc::downgrade(stream);
    }

    /// Connection `index`.
    pub(crate) fn stream(&self, index: u32) -> Option<Arc<Object>> {
        self.streams.lock().list.get(index as usize)?.upgrade()
    }

    /// Calls `call` with each connection.
    pub(crate) fn for_each_stream(&self, call: impl Fn(&Stream)) {
        let all: Vec<Arc<Object>> = self.streams.lock().list.iter().filter_map(Weak::upgrade).collect();
        all.iter().filter_map(|object| as_stream(object)).for_each(call);
    }

    /// Tells others that it has accepted a connection, as descriptor `fd`. False where there is no room to.
    pub(crate) fn publish(&self, ends: Ends, fd: i32, stream: &Arc<Object>) -> bool {
        self.streams.lock().accepted.insert(ends, (fd, Arc::downgrade(stream)));
        let published = if ends.are_local() {
            self.registry.enter(&ends, self.name)
        } else {
            if let Some(stream) = as_stream(stream) {
                self.inbox().accept(stream.index(), ends.hash());
            }
            self.relay().is_some()
        };
        if !published {
            self.streams.lock().accepted.remove(&ends);
        }
        published
    }

    /// No offer is wanted for an accepted connection any more.
    pub(crate) fn withdraw(&self, ends: &Ends) {
        let Some((_, stream)) = self.streams.lock().accepted.remove(ends) else { return };
        if ends.are_local() {
            self.registry.remove(ends, self.name);
        } else if let Some(index) = stream.upgrade().and_then(|stream| as_stream(&stream).map(Stream::index)) {
            self.inbox().withdraw(index);
        }
    }

    /// The accepted connection with these ends, and its descriptor.
    pub(crate) fn accepted(&self, ends: &Ends) -> Option<(i32, Arc<Object>)> {
        let (fd, stream) = self.streams.lock().accepted.get(ends).cloned()?;
        let stream = stream.upgrade()?;
        // The program may have closed the descriptor in a way that was not seen.
        TABLE.get(fd).is_some_and(|known| Arc::ptr_eq(&known.0, &stream)).then_some((fd, stream))
    }

    /// The link to the process that has accepted a connection; none where that is not accelerated.
    pub(crate) fn find_link(&self, ends: &Ends) -> Option<Arc<Link>> {
        if !ends.are_local() {
            return self.relay();
        }
        let name = self.registry.find(ends)?;
        let known = self.links.lock().get(&name).cloned();
        if let Some(link) = known.filter(|link| !link.is_dead()) {
            return Some(link);
        }
        self.connect(name).ok()
    }

    fn connect(&self, name: ProcessName) -> Result<Arc<Link>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(&name.address())?)?;
        let link = self.add_link(socket)?;
        self.links.lock().insert(name, Arc::clone(&link));
        Ok(link)
    }

    /// A link by a connected socket, to which the agent listens.
    fn add_link(&self, socket: OwnedFd) -> Result<Arc<Link>, Errno> {
        // Others can do to this process what they like only if they are the same user anyway.
        if sockopt::socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            return Err(Errno::PERM);
        }
        self.watch_link(socket, false)
    }

    /// The link to the relay, likewise.
    fn link_relay(&self, socket: OwnedFd) -> Result<Arc<Link>, Errno> {
        self.watch_link(socket, true)
    }

    fn watch_link(&self, socket: OwnedFd, is_relay: bool) -> Result<Arc<Link>, Errno> {
        let link = Arc::new(Link::new(socket, self, is_relay)?);
        let key = Arc::into_raw(Arc::clone(&link)).expose_provenance() as u64;
        epoll::add(&self.watched, link.socket(), epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        Ok(link)
    }
}

/// A socket that listens at an abstract address.
fn listen_at(address: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new_abstract_name(address)?)?;
    listen(&listener, 128)?;
    Ok(listener)
}

/// The stream of an object.
pub(crate) fn as_stream(object: &Object) -> Option<&Stream> {
    match object {
        Object::Stream(stream) => Some(stream),
        Object::Epoll(_) | Object::Early(_) => None,
    }
}
