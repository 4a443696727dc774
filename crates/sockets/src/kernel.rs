//! Questions to the kernel about a TCP socket, and its own path of data.
#![allow(unsafe_code)]

use libc::{c_int, c_void, iovec, msghdr, socklen_t};
use rdmesh_preload::{errno, real};
use rdmesh_streams::ring::Piece;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::time::Duration;

/// Sends on TCP as much as fits. Never waits; EPIPE raises no signal.
pub(crate) fn send(fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
    let message = message(pieces);
    let sent = real::sendmsg(fd, &raw const message, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    count(sent)
}

/// Receives from TCP what is there. Never waits.
pub(crate) fn receive(fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
    let mut message = message(pieces);
    count(real::recvmsg(fd, &raw mut message, flags | libc::MSG_DONTWAIT))
}

/// Whether TCP has bytes, or an end, to be received.
pub(crate) fn has_something(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    real::poll(&raw mut poll, 1, 0) > 0
}

/// Ends of the connection that the kernel knows of, as bits of epoll.
pub(crate) fn ends_of(fd: c_int) -> u32 {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    real::poll(&raw mut poll, 1, 0);
    poll.revents as u16 as u32
}

fn message(pieces: &[Piece]) -> msghdr {
    // SAFETY: plain data, of which all zeros is a value.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    // A piece has the layout of an iovec, see below.
    message.msg_iov = pieces.as_ptr().cast::<iovec>().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    message
}

const _: () = assert!(size_of::<Piece>() == size_of::<iovec>());

fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| errno::get())
}

/// Bytes that have been written to a connected socket, ever. Only who keeps others from writing meanwhile can ask.
pub(crate) fn written(fd: c_int, has_connected: bool) -> Option<u64> {
    let queued = stable(fd, |info| info.acked, libc::TIOCOUTQ as libc::c_ulong)?;
    // The SYN of the end that connects is counted as acknowledged.
    Some((queued.0 + queued.1).wrapping_sub(u64::from(has_connected)))
}

/// Bytes that have been read from it, ever, where `sent` are all that come before a FIN. `was_reset` says that a call has been told of
/// a reset: the kernel tells of it once.
pub(crate) fn read(fd: c_int, sent: u64, was_reset: bool) -> Option<u64> {
    let received = |info: &Info| info.received.wrapping_sub(u64::from(has_fin(fd, info, sent, was_reset)));
    let (received, unread) = stable(fd, received, libc::FIONREAD as libc::c_ulong)?;
    Some(received.wrapping_sub(unread))
}

struct Info {
    acked: u64,
    /// With the FIN, which the kernel counts as a byte.
    received: u64,
    /// A state of linux/tcp_states.h.
    state: u8,
}

/// A counter and a queue's length that belong together: the counter is the same before and after.
fn stable(fd: c_int, counter: impl Fn(&Info) -> u64, request: libc::c_ulong) -> Option<(u64, u64)> {
    for _ in 0..TRIES {
        let before = counter(&info(fd)?);
        let mut queued: c_int = 0;
        if real::ioctl(fd, request, (&raw mut queued).cast()) != 0 {
            return None;
        }
        if counter(&info(fd)?) == before {
            return Some((before, queued as u64));
        }
    }
    None
}

/// `tcpi_bytes_acked` and `tcpi_bytes_received` of `struct tcp_info` (linux/tcp.h); kernels before 4.1 have neither.
fn info(fd: c_int) -> Option<Info> {
    let mut bytes = [0u64; 32];
    let mut len = size_of_val(&bytes) as socklen_t;
    let result = real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len);
    (result == 0 && len >= 136).then(|| Info { acked: bytes[15], received: bytes[16], state: bytes[0] as u8 })
}

/// Whether the peer's FIN has been received, behind `sent` bytes.
fn has_fin(fd: c_int, info: &Info, sent: u64, was_reset: bool) -> bool {
    // Both ends have closed, or a reset has come, which is an error until a call has been told of it.
    let has_error = || {
        let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
        real::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLERR != 0
    };
    match info.state {
        CLOSE_WAIT | LAST_ACK | CLOSING | TIME_WAIT => true,
        // A reset may have followed a FIN, which comes behind all bytes.
        CLOSE if was_reset || has_error() => info.received.wrapping_sub(sent) == 1,
        CLOSE => true,
        _ => false,
    }
}

/// Whether it is a TCP socket that is neither connected nor listens.
pub(crate) fn is_unconnected(fd: c_int) -> bool {
    info(fd).is_some_and(|info| info.state == CLOSE)
}

/// An option that is a number.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    let result = real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len);
    (result == 0).then_some(value)
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`; none where the wait has no limit.
pub(crate) fn time_out(fd: c_int, name: c_int) -> Option<Duration> {
    // SAFETY: plain data.
    let mut value: libc::timeval = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::timeval>() as socklen_t;
    let result = real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len);
    let time = Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    (result == 0 && !time.is_zero()).then_some(time)
}

/// Whether calls on the socket fail rather than wait.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    let flags = real::fcntl(fd, libc::F_GETFL, std::ptr::null_mut::<c_void>());
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Descriptor `fd`, for calls that take it as a borrowed one.
pub(crate) fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: the program's descriptor, open during its call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: c_int) -> bool {
    real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut::<c_void>()) >= 0
}

/// Whether TCP's queue takes so many bytes now, whatever the peer does. Makes it as long as that needs, where the system allows it.
pub(crate) fn has_room(fd: c_int, bytes: usize) -> bool {
    // The kernel counts its own memory, too.
    let wanted = bytes * 2;
    let Some(memory) = send_memory(fd) else { return false };
    if memory.queued + wanted <= memory.limit {
        return true;
    }
    lengthen_queue(fd, wanted);
    send_memory(fd).is_some_and(|memory| memory.queued + wanted <= memory.limit)
}

/// Sets `SO_SNDBUF` to at least `wanted`, and leaves it to the kernel to make it longer still, if it was.
fn lengthen_queue(fd: c_int, wanted: usize) {
    let set = |name: c_int, value: c_int| {
        let len = size_of::<c_int>() as socklen_t;
        real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len);
    };
    let wanted = c_int::try_from(wanted).unwrap_or(c_int::MAX);
    if option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).is_some_and(|now| now < wanted) {
        // Linux 5.14 and newer.
        let lock = option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK);
        set(libc::SO_SNDBUF, wanted);
        if let Some(lock) = lock {
            set(libc::SO_BUF_LOCK, lock);
        }
    }
}

/// Bytes of the kernel's memory for what a socket sends.
struct SendMemory {
    queued: usize,
    limit: usize,
}

/// `SO_MEMINFO` (linux/sock_diag.h), which Linux 4.12 and newer have.
fn send_memory(fd: c_int) -> Option<SendMemory> {
    let mut words = [0u32; 16];
    let mut len = size_of_val(&words) as socklen_t;
    let result = real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, words.as_mut_ptr().cast(), &raw mut len);
    let has_all = result == 0 && len as usize > libc::SK_MEMINFO_WMEM_QUEUED as usize * size_of::<u32>();
    let word = |name: c_int| words[name as usize] as usize;
    has_all.then(|| SendMemory { queued: word(libc::SK_MEMINFO_WMEM_QUEUED), limit: word(libc::SK_MEMINFO_SNDBUF) })
}

/// Ends a connection with a reset, so that its peer does not take it for an orderly end (`tcp_disconnect` of the kernel).
pub(crate) fn abort(fd: c_int) {
    let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    real::connect(fd, &raw const unspecified, size_of::<libc::sockaddr>() as socklen_t);
}

/// Makes the last close of the socket end the connection with a reset, as the close of one with unread data does.
pub(crate) fn reset_on_close(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as socklen_t;
    real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
}

const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
const TRIES: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    #[test]
    fn a_queue_has_room_unless_its_reader_pauses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let mut writer = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (mut reader, _) = listener.accept().expect("it is connected");
        let has_room = |writer: &TcpStream| has_room(writer.as_raw_fd(), 128 << 10);
        assert!(has_room(&writer));
        writer.set_nonblocking(true).expect("a socket can");
        let full = std::iter::repeat_with(|| writer.write(&[0; 1 << 16])).find_map(Result::err).expect("it ends");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(!has_room(&writer));
        reader.set_read_timeout(Some(Duration::from_millis(10))).expect("a socket has one");
        let begin = Instant::now();
        let mut bytes = vec![0; 1 << 20];
        while !has_room(&writer) {
            assert!(begin.elapsed() < Duration::from_secs(10), "the reader has read on");
            // All may have been read before the writer hears of it.
            match reader.read(&mut bytes) {
                Ok(length) => assert_ne!(length, 0, "the writer lives"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}
