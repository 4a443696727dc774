//! Socket calls that rustix does not have: batches of messages with control messages, filters, and a few options.
//!
//! Headers are made anew for every call, on the stack: they point only to memory that the call borrows.

use super::control::Control;
use rustix::io::{self, Errno};
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Messages of one call.
pub(super) const BATCH: usize = 16;

/// One instruction of a classic BPF program.
pub(super) type Instruction = libc::sock_filter;

/// Room for one message that is received.
pub(super) struct Slot {
    pub(super) bytes: Box<[u8]>,
    /// Bytes of the message.
    pub(super) len: usize,
    /// Whether the message had more bytes, or more control messages, than there was room for.
    pub(super) is_cut: bool,
    pub(super) name: Name,
    pub(super) control: Control,
}

/// A message to be sent.
pub(super) struct Message<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) name: Name,
    pub(super) control: Control,
}

/// A socket address as the kernel has it: `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Name([u8; NAME_LEN]);

impl Name {
    pub(super) const EMPTY: Self = Self([0; NAME_LEN]);

    pub(super) fn new(address: SocketAddr) -> Self {
        let mut bytes = [0; NAME_LEN];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                libc::AF_INET
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self(bytes)
    }

    /// The address; none where the kernel wrote none.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let word = |at: usize| [self.0[at], self.0[at + 1]];
        let port = u16::from_be_bytes(word(2));
        match i32::from(u16::from_ne_bytes(word(0))) {
            libc::AF_INET => {
                let octets: [u8; 4] = self.0[4..8].try_into().ok()?;
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = self.0[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(self.0[24..28].try_into().ok()?);
                Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope)))
            }
            _ => None,
        }
    }

    fn len(&self) -> usize {
        if i32::from(u16::from_ne_bytes([self.0[0], self.0[1]])) == libc::AF_INET { 16 } else { NAME_LEN }
    }
}

/// Receives up to [`BATCH`] messages, without waiting. Returns how many of `slots` have one now.
#[allow(unsafe_code)]
pub(super) fn receive(socket: BorrowedFd<'_>, slots: &mut [Slot]) -> io::Result<usize> {
    // SAFETY: null pointers and zero lengths are valid values of these structs.
    let (mut headers, mut vectors) = unsafe { (zeroed::<[libc::mmsghdr; BATCH]>(), zeroed::<[libc::iovec; BATCH]>()) };
    let count = slots.len().min(BATCH);
    for ((slot, header), vector) in slots.iter_mut().zip(&mut headers).zip(&mut vectors) {
        *vector = libc::iovec { iov_base: slot.bytes.as_mut_ptr().cast(), iov_len: slot.bytes.len() };
        let control = slot.control.buffer();
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_name = slot.name.0.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = NAME_LEN as u32;
        header.msg_hdr.msg_control = control.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
    }
    // SAFETY: the first `count` headers point to vectors, names and control buffers of the lengths that they say, all of
    // them borrowed exclusively until this returns; any bytes are valid in them.
    let result = unsafe {
        let timeout = std::ptr::null_mut();
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _, timeout)
    };
    let received = usize::try_from(result).map_err(|_| last_error())?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        slot.len = (header.msg_len as usize).min(slot.bytes.len());
        slot.is_cut = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        slot.control.set_len(header.msg_hdr.msg_controllen);
    }
    Ok(received)
}

/// Sends up to [`BATCH`] messages, without waiting. Returns how many of `messages`, from the first, were sent; an error
/// is the first one's.
#[allow(unsafe_code)]
pub(super) fn send(socket: BorrowedFd<'_>, messages: &[Message<'_>]) -> io::Result<usize> {
    // SAFETY: null pointers and zero lengths are valid values of these structs.
    let (mut headers, mut vectors) = unsafe { (zeroed::<[libc::mmsghdr; BATCH]>(), zeroed::<[libc::iovec; BATCH]>()) };
    let count = messages.len().min(BATCH);
    for ((message, header), vector) in messages.iter().zip(&mut headers).zip(&mut vectors) {
        *vector = libc::iovec { iov_base: message.bytes.as_ptr().cast_mut().cast(), iov_len: message.bytes.len() };
        let control = message.control.bytes();
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_name = message.name.0.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = message.name.len() as u32;
        header.msg_hdr.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers point to vectors, names and control buffers of the lengths that they say, which
    // are borrowed until this returns. The kernel only reads them; it writes the lengths in `headers`, which is ours.
    let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as u32, flags as _) };
    usize::try_from(result).map_err(|_| last_error())
}

/// Sets an option that is an integer.
#[allow(unsafe_code)]
pub(super) fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (from, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: `from` is valid for reading `len` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, from, len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Memory use of a socket's receive queue, and its limit, as the kernel accounts for it (`SO_MEMINFO`).
#[allow(unsafe_code)]
pub(super) fn receive_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_RCVBUF` are the first two.
    let mut numbers = [0u32; 9];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, all values of which are valid.
    let result = unsafe {
        let to = numbers.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, to, &raw mut len)
    };
    if result == 0 { Ok((numbers[0], numbers[1])) } else { Err(last_error()) }
}

/// Gives a socket a classic BPF program, as the option `name` of `SOL_SOCKET`.
#[allow(unsafe_code)]
pub(super) fn attach(socket: BorrowedFd<'_>, name: i32, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (from, from_len) = ((&raw const filter).cast(), size_of_val(&filter) as libc::socklen_t);
    // SAFETY: `from` is valid for reading `from_len` bytes; the program that it points to has `len` instructions, which
    // the kernel copies and checks.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, from, from_len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// The MTU of the interface `name` in the network namespace of `socket`.
#[allow(unsafe_code)]
pub(super) fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: zeros are a valid value of this struct.
    let mut request = unsafe { zeroed::<libc::ifreq>() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    if name.len() > room {
        return Err(Errno::NODEV);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the request is valid for this call, which reads its name and writes its MTU.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(last_error());
    }
    // SAFETY: an integer, which the kernel has written; the union was zero before.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| Errno::INVAL)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// `sizeof(struct sockaddr_in6)`.
const NAME_LEN: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for address in ["10.7.0.2:4791", "[fd00:7::2]:6081", "[fe80::1%3]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Name::new(address).address(), Some(address));
        }
        assert_eq!(Name::EMPTY.address(), None);
    }

    #[test]
    fn an_interface_has_an_mtu() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&socket);
        assert!(interface_mtu(fd, "lo").unwrap() > 1000);
        assert_eq!(interface_mtu(fd, "none-such"), Err(Errno::NODEV));
        assert_eq!(interface_mtu(fd, "a name that is far too long"), Err(Errno::NODEV));
    }
}
