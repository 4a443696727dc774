//! Session protocol: the messages between `librdmesh.so` and the router.
//!
//! One `SOCK_SEQPACKET` connection per device context, which ends with the program's command descriptor. That descriptor
//! itself is the memory of the context's queues ([`crate::ring::QueueFile`]), which the program maps. A request is
//! a [`RequestHeader`] and its body, a reply a [`ReplyHeader`] and its body; descriptors travel with SCM_RIGHTS. A
//! request is answered before the next one is sent. A forked child opens a connection of its own and attaches it to
//! the context with the token it inherited.
//!
//! Bodies:
//! * `Open`: none; descriptors: context page ([`crate::page`]), its pages filled in, and queue memory
//!   ([`crate::ring::QueueFile::memfd`]), both made by the program, whose memory they are. Reply: [`OpenReply`];
//!   descriptors: worker page, wake eventfd.
//! * `Attach`: a [`Token`]. Reply: none.
//! * `Verbs`: the program's own `write()` bytes, from `ib_uverbs_cmd_hdr` on. Reply: the response bytes, to be copied to
//!   the address that the command names (as many as the command allows for); see [`ReplyHeader`] for the rest.
//!   For `REG_MR` the command is followed by [`Segment`]s that cover the range without gaps; descriptor: the arena, which may
//!   be left out where it is the one of the last registration on this connection. ENODATA then where the router has to
//!   map more of it: the program sends it along. EFAULT where pages of it are missing: the program fills them in first. A command that makes a queue may fail with ENODATA:
//!   then the program fills in what [`ReplyHeader::wanted`] says of the queue memory, and sends the command again.
//! * `OpenCm`: none. Reply: [`OpenCmReply`]; descriptor: the event socket, which is what the program gets as its
//!   rdma_cm descriptor. It holds one byte for each event that waits, so the program polls it as it would the kernel's.
//!   The tenant only looks at the bytes; the router, which has that end too, takes one out with each event it hands over.
//! * `AttachCm`: a [`Token`]. Reply: none.
//! * `Cm`: the program's own `write()` bytes, from `rdma_ucm_cmd_hdr` on. SET_OPTION's option bytes follow the command,
//!   and MIGRATE_ID has in `fd` the [`OpenCmReply::number`] of the channel that the program's descriptor names. Reply: the
//!   response bytes. GET_EVENT is answered at once, with EAGAIN if there is no event.
//! * `CmUnlessEvents`: the same, of a command that takes events from a channel before they are read (DESTROY_ID, LEAVE_MCAST,
//!   MIGRATE_ID). EAGAIN, and nothing is changed, as long as there are such events.
//! * `Counter`: its name below `ports/1` in sysfs (`counters/port_xmit_data`). Reply: the text of its file.
//! * `Netlink`: a [`NetlinkQuery`] and one request of NETLINK_RDMA as the program sent it. Reply: a [`NetlinkAnswer`] and at
//!   most one netlink message.
//! * `Ioctl`: an [`IoctlHeader`] and the attributes' bytes. Reply: the method's response, if it has one.
//! * `Chain`: a command on managed queues; see [`chain`].
//! * `Linger`: a command on leases, or the first message of a process that takes one over; see [`linger`].
//! * `OpenGuest`, `GuestPages`, `GuestSegments`: for programs in a virtual machine; see [`guest`].

pub mod chain;
pub mod guest;
pub mod linger;

use arrayvec::ArrayVec;
use rustix::io;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of these messages; router and library must agree.
pub const VERSION: u32 = 6;
/// Bytes of the largest message.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Descriptors in one message.
pub const MAX_FDS: usize = 4;
/// Name of the session socket in an endpoint's directory.
pub const SOCKET_NAME: &str = "verbs.sock";
/// Name of the tree, in an endpoint's directory, that stands for `/sys`.
pub const SYSFS_NAME: &str = "sys";
/// Name of the preload library in an endpoint's directory.
pub const LIBRARY_NAME: &str = "librdmesh.so";
/// Name of the library for accelerated sockets in an endpoint's directory.
pub const SOCKETS_LIBRARY_NAME: &str = "librdmesh-sockets.so";
/// Name of the library for MPI programs in an endpoint's directory.
pub const MPI_LIBRARY_NAME: &str = "librdmesh-mpi.so";
/// Name of a file that is in an endpoint's directory in a virtual machine only.
pub const GUEST_NAME: &str = "guest";
/// Number of a device node, as in `/proc/devices` and `stat.st_rdev`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceNumber {
    /// Major number: which driver serves the node.
    pub major: u32,
    /// Minor number: which of the driver's devices it is.
    pub minor: u32,
}

/// Major and minor number of `/dev/infiniband/uverbs0`: the kernel's first.
pub const VERBS_DEVICE: DeviceNumber = DeviceNumber { major: 231, minor: 192 };
/// Major and minor number of `/dev/infiniband/rdma_cm`. The kernel picks a free one of its miscellaneous devices.
pub const CM_DEVICE: DeviceNumber = DeviceNumber { major: 10, minor: 58 };
/// Environment variable with the endpoint's directory; without it, the directory that the library was loaded from.
pub const ENDPOINT_ENV: &str = "RDMESH_ENDPOINT";

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RequestKind {
    /// First message: make a context.
    Open = 1,
    /// First message of a forked child: use an existing context.
    Attach = 2,
    /// A `write()` command of the uverbs ABI.
    Verbs = 3,
    /// An `ioctl(RDMA_VERBS_IOCTL)` method.
    Ioctl = 4,
    /// First message: make a channel of the connection manager.
    OpenCm = 5,
    /// First message of a forked child: use an existing channel.
    AttachCm = 6,
    /// A `write()` command of the rdma_cm ABI.
    Cm = 7,
    /// Asks for a counter of the port, on any connection.
    Counter = 8,
    /// Forwards a request of a NETLINK_RDMA socket, on any connection.
    Netlink = 20,
    /// A `write()` command of the rdma_cm ABI, unless it takes away events that have not been read.
    CmUnlessEvents = 21,
    /// A command on managed queues and their groups.
    Chain = 22,
    /// A command on leases, by which a context outlives its program.
    Linger = 23,
    /// First message: make a context for a program in a virtual machine.
    OpenGuest = 24,
    /// Names pages of the guest's queue memory.
    GuestPages = 25,
    /// Segments of the next registration.
    GuestSegments = 26,
}

impl RequestKind {
    /// The kind with number `n`.
    pub fn from_number(n: u32) -> Option<Self> {
        use RequestKind::*;
        let all = [
            Open,
            Attach,
            Verbs,
            Ioctl,
            OpenCm,
            AttachCm,
            Cm,
            Counter,
            Netlink,
            CmUnlessEvents,
            Chain,
            Linger,
            OpenGuest,
            GuestPages,
            GuestSegments,
        ];
        all.into_iter().find(|k| *k as u32 == n)
    }
}

/// Head of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHeader {
    /// [`VERSION`].
    pub version: u32,
    /// A [`RequestKind`].
    pub kind: u32,
    /// Bytes of the command, after which segments may follow.
    pub command_len: u32,
    /// Segments after the command.
    pub segments: u32,
}

/// Head of every reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// 0, or the errno that the system call returns.
    pub errno: u32,
    /// Bytes of the response that follows.
    pub response_len: u32,
    /// Uses of the descriptors of this reply: a [`FdUse`] each, in order; 0 for none.
    pub fds: [u32; MAX_FDS],
    /// For [`FdUse::Install`]: offset in the response for the descriptor's number.
    pub places: [u64; MAX_FDS],
    /// `modify_srq` of rxe returns its `mminfo` through a pointer in the command: bytes to put there, all zero for none.
    pub mminfo: [u8; 16],
    /// With ENODATA: offset and length of the queue memory to be populated.
    pub wanted: [u64; 2],
}

/// Use of a reply's descriptor by the tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FdUse {
    /// Install it, and put its number into the response at byte offset `places[i]` as a 32-bit integer
    /// (`async_fd` of GET_CONTEXT, `fd` of CREATE_COMP_CHANNEL, where the router has put the channel's number).
    Install = 1,
    /// Belongs to the reply of `Open` or `OpenCm`.
    Open = 2,
}

impl FdUse {
    /// The use with number `n`.
    pub fn from_number(n: u32) -> Option<Self> {
        [Self::Install, Self::Open].into_iter().find(|k| *k as u32 == n)
    }
}

/// Proof that its holder belongs to the context: random, known only to the opener.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Whether it is the same, in constant time: the time reveals nothing of what is secret.
    pub fn is_equal(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// Answer to `Open`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenReply {
    /// For `Attach`.
    pub token: Token,
    /// The device's number in `/dev`, as `stat` shows it.
    pub rdev: u64,
}

/// Answer to `OpenCm`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenCmReply {
    /// For `AttachCm`.
    pub token: Token,
    /// Number of this channel in MIGRATE_ID.
    pub number: u32,
    /// Zero.
    pub reserved: u32,
}

/// A piece of a range to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Segment {
    /// First address in the program.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// A [`SegmentKind`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Offset in the arena, for [`SegmentKind::Arena`].
    pub offset: u64,
}

/// The router's access to a segment: shared or through `/proc/PID/mem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SegmentKind {
    /// The pages are arena pages: the router maps them.
    Arena = 1,
    /// The pages stay private: the router copies through `/proc/PID/mem`.
    Private = 2,
}

/// Head of an `Ioctl` request; mirrors `ib_uverbs_ioctl_hdr`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlHeader {
    /// `UVERBS_OBJECT_*`.
    pub object_id: u16,
    /// `UVERBS_METHOD_*`.
    pub method_id: u16,
    /// Attributes that follow: each an [`IoctlAttr`] and its bytes, padded to 8.
    pub num_attrs: u32,
}

/// An input attribute of an `Ioctl` request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlAttr {
    /// `UVERBS_ATTR_*`.
    pub attr_id: u16,
    /// Bytes that follow.
    pub len: u16,
    /// Zero.
    pub reserved: u32,
}

/// The answer to QUERY_MR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MrInfo {
    /// Bytes.
    pub length: u64,
    /// The first address, as peers name it.
    pub iova: u64,
    /// Key for the program itself.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// Head of a `Netlink` request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NetlinkQuery {
    /// Of a list: the position to continue from. 0 at first, then [`NetlinkAnswer::next`].
    pub from: u64,
    /// The port of the program's socket.
    pub port_id: u32,
    /// Zero.
    pub reserved: u32,
}

/// Head of the answer to a `Netlink` request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NetlinkAnswer {
    /// Of a list: the position of the rest; [`NetlinkAnswer::END`] where there is no more.
    pub next: u64,
    /// Status at the end of the list: 0, or a negative errno.
    pub status: i32,
    /// Whether it is a list, which ends with a message of its own.
    pub is_list: u32,
}

impl NetlinkAnswer {
    /// No more of the list.
    pub const END: u64 = u64::MAX;
}

/// Sends one message. The socket must be connected; a full socket blocks unless it is non-blocking.
pub fn send(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Errno::MSGSIZE);
    }
    io::retry_on_intr(|| sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one message into `buffer`; returns its length (0 at the end of the connection) and its descriptors.
/// A message too long for `buffer`, or with too many descriptors, is an error (EMSGSIZE).
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, ArrayVec<OwnedFd, MAX_FDS>)> {
    let message = receive_all(socket, buffer)?;
    if message.is_truncated || message.fds.len() > MAX_FDS {
        return Err(io::Errno::MSGSIZE);
    }
    Ok((message.len, message.fds.into_iter().collect()))
}

/// A message of any kind, with every descriptor that came with it.
pub struct Received {
    /// Its bytes; 0 also at the end of the connection.
    pub len: usize,
    /// It was longer than the buffer.
    pub is_truncated: bool,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Receives one untrusted message into `buffer`. Descriptors beyond those that a message may carry are received too: the kernel
/// would close them within this call, which can take as long as their maker likes.
pub fn receive_all(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    let is_truncated = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { len: message.bytes, is_truncated, fds })
}

/// Most descriptors that the kernel lets into one message.
const SCM_MAX_FD: usize = 253;
