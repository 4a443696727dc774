//! UDP sockets with the options that the router needs.

use super::raw::{self, Instruction, Message, Slot};
use rustix::io;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ip_recvtos, set_ipv6_mtu_discover,
    set_ipv6_recvtclass, set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force,
    set_socket_reuseport, set_socket_send_buffer_size, set_socket_send_buffer_size_force,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// Purpose of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Purpose {
    /// Other sockets may be bound to the same address, and share what comes.
    pub(super) is_shared: bool,
    /// Whether path MTU discovery applies. Otherwise only the interface's MTU limits datagrams. Either way nothing is ever
    /// fragmented.
    pub(super) heeds_path: bool,
}

impl Socket {
    /// A socket that is bound to `address`.
    pub(super) fn open(address: SocketAddr, purpose: Purpose) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Self(socket_with(family, SocketType::DGRAM, flags, None)?);
        let fd = socket.as_fd();
        set_buffers(fd, if purpose.heeds_path { PLAIN_BUFFER } else { BUFFER })?;
        if address.is_ipv4() {
            set_ip_recvtos(fd, true)?;
            raw::set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            let discovery = if purpose.heeds_path { Ipv4PathMtuDiscovery::DO } else { Ipv4PathMtuDiscovery::PROBE };
            set_ip_mtu_discover(fd, discovery)?;
        } else {
            set_ipv6_v6only(fd, true)?;
            set_ipv6_recvtclass(fd, true)?;
            raw::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            let discovery = if purpose.heeds_path { Ipv6PathMtuDiscovery::DO } else { Ipv6PathMtuDiscovery::PROBE };
            set_ipv6_mtu_discover(fd, discovery)?;
            // RoCEv2 senders leave the checksum out (RFC 6935 allows it to tunnels).
            raw::set_option(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        raw::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        raw::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        // Kernels before 5.0 have none: then every datagram is a message of its own.
        let _ = raw::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
        set_socket_reuseport(fd, purpose.is_shared)?;
        bind(fd, &address)?;
        Ok(socket)
    }

    /// Selects the socket for a datagram among those that share an address: the one whose number, in the order in which they
    /// were bound, `program` returns.
    pub(super) fn choose_by(&self, program: &[Instruction]) -> io::Result<()> {
        raw::attach(self.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    /// Receives the waiting messages; returns how many of `slots` have a message now.
    pub(super) fn receive(&self, slots: &mut [Slot]) -> io::Result<usize> {
        io::retry_on_intr(|| raw::receive(self.as_fd(), slots))
    }

    /// Whether the receive queue is so long that senders should slow down.
    pub(super) fn is_backed_up(&self) -> bool {
        raw::receive_queue(self.as_fd()).is_ok_and(|(waiting, room)| waiting > room / 4)
    }

    /// Sends as many messages as there is room for; returns their number.
    pub(super) fn send(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        io::retry_on_intr(|| raw::send(self.as_fd(), messages))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// As much as is allowed, up to `bytes`. With privilege the host's limit does not count.
fn set_buffers(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set_socket_recv_buffer_size_force(socket, bytes).or_else(|_| set_socket_recv_buffer_size(socket, bytes))?;
    set_socket_send_buffer_size_force(socket, bytes).or_else(|_| set_socket_send_buffer_size(socket, bytes))
}

/// Bytes of the buffers of an external socket, of which a tenant may make the router have many.
const PLAIN_BUFFER: usize = 1 << 20;
/// Bytes of the tunnel's buffers.
const BUFFER: usize = 16 << 20;
/// `linux/udp.h`.
const UDP_NO_CHECK6_RX: i32 = 102;
