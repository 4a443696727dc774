//! NETLINK_RDMA sockets, through which the `rdma` tool and libibverbs query devices and their objects.
//!
//! The kernel of a machine without RDMA has no such protocol. The program gets one end of a pair of datagram sockets, so that
//! it polls it and receives from it as it would from the kernel's; the library has the other end, forwards requests to the
//! router, and writes the answers. Addresses and options are answered here too.
//!
//! * [`frame`]: the requests of a datagram, acknowledgements, ends of lists.
//! * [`address`]: netlink's addresses.
//! * [`options`]: netlink's socket options.
#![allow(unsafe_code)]

pub(crate) mod address;
mod frame;
mod options;
#[cfg(test)]
mod tests;

pub(crate) use options::Options;

use crate::descriptors::{self, Device};
use crate::endpoint::Endpoint;
use crate::memory;
use rdmesh_preload::Channel;
use rdmesh_preload::OwnFd;
use rdmesh_preload::link::{connect, identity};
use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag, netlink_type};
use rdmesh_uverbs::session::{NetlinkAnswer, NetlinkQuery, RequestKind};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::{FromBytes, IntoBytes};

/// One `socket()` of the program, and its duplicates.
pub(crate) struct NetlinkSocket {
    endpoint: &'static Endpoint,
    /// The program's end.
    end: (u64, u64),
    kind: SocketType,
    descriptors: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    /// The other end, until the program has closed its last descriptor.
    ours: Option<OwnFd>,
    /// A connection to the router, and the fork that it belongs to.
    connection: Option<(u32, OwnFd)>,
    channel: Channel,
    /// The socket's address; 0 before it has one.
    port_id: u32,
    options: Options,
    /// Messages for which the program's end has had no room yet.
    waiting: VecDeque<Vec<u8>>,
    list: Option<List>,
}

/// A list in progress.
struct List {
    /// The request.
    request: Vec<u8>,
    header: NetlinkHeader,
    /// Position of the next part.
    from: u64,
}

/// Makes a socket; returns the program's descriptor. `kind` is what `socket()` is given.
pub(crate) fn open(endpoint: &'static Endpoint, kind: i32) -> Result<RawFd, Errno> {
    let kind_alone = SocketType::from_raw((kind & KIND_MASK).cast_unsigned());
    if kind_alone != SocketType::RAW && kind_alone != SocketType::DGRAM {
        return Err(Errno::SOCKTNOSUPPORT);
    }
    let _gate = memory::gate();
    // Without a router there are no answers: programs then look into the tree for `/sys`.
    let connection = connect(endpoint).map_err(|_| Errno::PROTONOSUPPORT)?;
    let (end, ours) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // A send by a function that is not replaced fails, instead of being queued for ever.
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Read)?;
    if kind & libc::SOCK_NONBLOCK != 0 {
        rustix::fs::fcntl_setfl(&end, OFlags::NONBLOCK)?;
    }
    if kind & libc::SOCK_CLOEXEC == 0 {
        rustix::io::fcntl_setfd(&end, FdFlags::empty())?;
    }
    let state = State {
        ours: Some(OwnFd::new(ours)),
        connection: Some((memory::forks(), OwnFd::new(connection))),
        channel: Channel::new(),
        port_id: 0,
        options: Options::default(),
        waiting: VecDeque::new(),
        list: None,
    };
    let socket = NetlinkSocket {
        endpoint,
        end: identity(end.as_fd())?,
        kind: kind_alone,
        descriptors: AtomicUsize::new(0),
        state: Mutex::new(state),
    };
    let fd = end.into_raw_fd();
    descriptors::set(fd, Arc::new(socket));
    Ok(fd)
}

/// The socket that `fd` is a descriptor of; none where the program closed that behind our back.
pub(crate) fn find(fd: RawFd) -> Option<Arc<NetlinkSocket>> {
    let socket = descriptors::get::<NetlinkSocket>(fd)?;
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if identity(unsafe { BorrowedFd::borrow_raw(fd) }) == Ok(socket.end) {
        return Some(socket);
    }
    let _gate = memory::gate();
    descriptors::forget(fd);
    None
}

impl Device for NetlinkSocket {
    fn gained_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::AcqRel);
    }

    fn lost_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            state.ours = None;
            state.connection = None;
        }
    }
}

impl NetlinkSocket {
    /// The type that `socket()` was given.
    pub(crate) fn kind(&self) -> SocketType {
        self.kind
    }

    /// Takes a datagram of the program's: answers the requests in it.
    pub(crate) fn send(&self, datagram: &[u8]) -> Result<(), Errno> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(Errno::MSGSIZE);
        }
        let _gate = memory::gate();
        let mut state = self.lock();
        if state.waiting.len() > MAX_WAITING {
            return Err(Errno::NOBUFS);
        }
        state.bind(0)?;
        for (header, request) in frame::requests(datagram) {
            state.execute(self.endpoint, header, request);
        }
        state.pump(self.endpoint);
        Ok(())
    }

    /// The program has taken something out: there is room for more.
    pub(crate) fn received(&self) {
        let mut state = self.lock();
        if state.list.is_some() || !state.waiting.is_empty() {
            let _gate = memory::gate();
            state.pump(self.endpoint);
        }
    }

    /// Gives the socket an address; a free one for 0.
    pub(crate) fn bind(&self, port_id: u32) -> Result<(), Errno> {
        self.lock().bind(port_id)
    }

    /// Its address.
    pub(crate) fn port_id(&self) -> u32 {
        self.lock().port_id
    }

    /// Its options, to be read or changed.
    pub(crate) fn with_options<T>(&self, use_them: impl FnOnce(&mut Options) -> T) -> T {
        use_them(&mut self.lock().options)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bind(&mut self, port_id: u32) -> Result<(), Errno> {
        /// Sockets of this process that chose no address.
        static UNNAMED: AtomicU32 = AtomicU32::new(0);
        if self.port_id != 0 {
            return if port_id == 0 || port_id == self.port_id { Ok(()) } else { Err(Errno::INVAL) };
        }
        self.port_id = match (port_id, UNNAMED.load(Ordering::Relaxed)) {
            (0, _) => match UNNAMED.fetch_add(1, Ordering::Relaxed) {
                0 => rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
                // Numbers that no process has, as the kernel gives them to those that come later.
                others => 1 << 31 | others,
            },
            (named, _) => named,
        };
        Ok(())
    }

    /// Answers one request, as the kernel's `rdma_nl_rcv_skb` does.
    fn execute(&mut self, endpoint: &Endpoint, header: NetlinkHeader, request: &[u8]) {
        let is_request = header.flags & netlink_flag::REQUEST != 0 && header.kind >= netlink_type::MIN;
        let done = if is_request { self.begin(endpoint, header, request) } else { Ok(Next::Acknowledge) };
        match done {
            Ok(Next::List) => {}
            Ok(Next::Acknowledge) if header.flags & netlink_flag::ACK == 0 => {}
            Ok(Next::Acknowledge) => self.acknowledge(header, request, 0),
            Err(errno) => self.acknowledge(header, request, -errno.raw_os_error()),
        }
    }

    /// Sends a request to the router, and queues the answer for the program.
    fn begin(&mut self, endpoint: &Endpoint, header: NetlinkHeader, request: &[u8]) -> Result<Next, Errno> {
        let is_list = header.flags & netlink_flag::DUMP != 0;
        if is_list && self.list.is_some() {
            return Err(Errno::BUSY);
        }
        let (answer, message) = self.ask(endpoint, 0, request)?;
        if !message.is_empty() {
            self.waiting.push_back(message);
        }
        if answer.is_list == 0 {
            return Ok(Next::Acknowledge);
        }
        self.list = Some(List { request: request.to_vec(), header, from: answer.next });
        self.end_list(answer);
        Ok(Next::List)
    }

    /// Sends the queued messages, and the rest of the list, to the program's end, as far as there is room.
    fn pump(&mut self, endpoint: &Endpoint) {
        loop {
            while let (Some(message), Some(ours)) = (self.waiting.front(), &self.ours) {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let sent = rustix::io::retry_on_intr(|| rustix::net::send(ours.as_fd(), message, flags));
                // The program has closed its end.
                if sent == Err(Errno::AGAIN) || sent == Err(Errno::NOBUFS) {
                    return;
                }
                self.waiting.pop_front();
            }
            let Some(list) = self.list.take() else { return };
            let more = self.ask(endpoint, list.from, &list.request);
            let (answer, message) = more.unwrap_or_else(|errno| {
                let status = -errno.raw_os_error();
                (NetlinkAnswer { next: NetlinkAnswer::END, status, is_list: 1 }, Vec::new())
            });
            if !message.is_empty() {
                self.waiting.push_back(message);
            }
            self.list = Some(List { from: answer.next, ..list });
            self.end_list(answer);
        }
    }

    /// Ends the list after its last part.
    fn end_list(&mut self, answer: NetlinkAnswer) {
        if answer.next == NetlinkAnswer::END
            && let Some(list) = self.list.take()
        {
            self.waiting.push_back(frame::done(list.header, self.port_id, answer.status));
        }
    }

    fn acknowledge(&mut self, header: NetlinkHeader, request: &[u8], status: i32) {
        let about = if status != 0 && !self.options.caps_acknowledgements() { request } else { header.as_bytes() };
        self.waiting.push_back(frame::error(header, self.port_id, status, about));
    }

    /// Asks the router. Returns its answer, and the message in it.
    fn ask(&mut self, endpoint: &Endpoint, from: u64, request: &[u8]) -> Result<(NetlinkAnswer, Vec<u8>), Errno> {
        let now = memory::forks();
        // A connection from before a fork belongs to the parent.
        let connection = match self.connection.take().filter(|(fork, _)| *fork == now) {
            Some((_, connection)) => connection,
            None => OwnFd::new(connect(endpoint)?),
        };
        let query = NetlinkQuery { from, port_id: self.port_id, reserved: 0 };
        let body = [query.as_bytes(), request].concat();
        let reply = self.channel.call(connection.as_fd(), RequestKind::Netlink, &body, &[], &[]);
        let answer = reply.and_then(|reply| {
            let (answer, message) = NetlinkAnswer::read_from_prefix(reply.response()).map_err(|_| Errno::IO)?;
            Ok((answer, message.to_vec()))
        });
        // After an invalid answer, or none, a new connection may work.
        if answer.as_ref().err() != Some(&Errno::IO) {
            self.connection = Some((now, connection));
        }
        answer
    }
}

/// Next step after a request.
enum Next {
    /// An acknowledgement, if it is asked for.
    Acknowledge,
    /// A list, which has an end of its own.
    List,
}

/// The bits of `socket()`'s second argument that are the type.
const KIND_MASK: i32 = 0xf;
/// Bytes of the largest datagram: what a netlink socket takes of a program that asked for no more.
const MAX_DATAGRAM: usize = 212_960;
/// Answers that may wait while the program sends on.
const MAX_WAITING: usize = 64;
