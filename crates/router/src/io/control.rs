//! Control messages (cmsg) of UDP sockets: segment size, traffic class, addresses and time stamp of a datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Control messages, one after the other, as `sendmsg` and `recvmsg` have them (cmsg(3)).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; ROOM],
    len: usize,
}

/// Control data of a received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Received {
    /// The IP header's traffic class.
    pub(super) traffic_class: u8,
    /// Bytes of each datagram but the last, where there are several.
    pub(super) segment: Option<usize>,
    /// Time of arrival, in nanoseconds since 1970.
    pub(super) stamp: Option<u64>,
    /// Messages that the socket had no room for so far.
    pub(super) drops: Option<u32>,
    /// The address that it was sent to.
    pub(super) to: Option<IpAddr>,
}

impl Control {
    pub(super) const EMPTY: Self = Self { bytes: [0; ROOM], len: 0 };

    /// Room for what is received.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets the length of the received data.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(ROOM);
    }

    /// The bytes to be sent.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The message consists of datagrams of `bytes` each, the last one possibly shorter.
    pub(super) fn push_segment(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// It is to have this traffic class.
    pub(super) fn push_traffic_class(&mut self, is_v4: bool, class: u8) {
        let value = i32::from(class).to_ne_bytes();
        if is_v4 {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &value);
        } else {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value);
        }
    }

    /// It is to be sent from this address.
    pub(super) fn push_source(&mut self, from: IpAddr) {
        match from {
            // struct in_pktinfo: interface, source, unused.
            IpAddr::V4(from) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: source, interface.
            IpAddr::V6(from) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Parses the received control messages. Unknown ones are skipped.
    pub(super) fn read(&self) -> Received {
        let mut received = Received::default();
        let mut rest = self.bytes();
        while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
            let word = |at: usize| i32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let len = usize::from_ne_bytes(*header.first_chunk().unwrap_or(&[0; size_of::<usize>()]));
            let Some(data) = len.checked_sub(HEADER).and_then(|len| after.get(..len)) else { break };
            received.take(word(8), word(12), data);
            rest = after.get(padded(data.len())..).unwrap_or_default();
        }
        received
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let at = self.len;
        let end = at + HEADER + data.len();
        self.bytes[at..at + 8].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.bytes[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + 12..at + HEADER].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..end].copy_from_slice(data);
        self.len = padded(end);
    }
}

impl Received {
    fn take(&mut self, level: i32, kind: i32, data: &[u8]) {
        let int = data.first_chunk().map(|n| i32::from_ne_bytes(*n));
        match (level, kind) {
            // One byte for IPv4, an integer for IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.traffic_class = data.first().copied().unwrap_or_default(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.traffic_class = int.unwrap_or_default() as u8,
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = int.and_then(|n| usize::try_from(n).ok()),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => self.stamp = nanoseconds(data),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.drops = int.map(i32::cast_unsigned),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let to = data.get(8..12).and_then(|to| to.first_chunk::<4>());
                self.to = to.map(|octets| Ipv4Addr::from(*octets).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.to = data.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into());
            }
            _ => {}
        }
    }
}

/// A `struct timespec`.
fn nanoseconds(data: &[u8]) -> Option<u64> {
    let (seconds, rest) = data.split_first_chunk()?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    let nanoseconds = u64::try_from(i64::from_ne_bytes(*rest.first_chunk()?)).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// `CMSG_ALIGN`.
fn padded(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// `sizeof(struct cmsghdr)`.
const HEADER: usize = 16;
/// More than all that is asked for: 24 for the class, 24 for segments, 32 for the time, 24 for drops, 40 for the address.
const ROOM: usize = 192;
const _: () = assert!(HEADER == size_of::<libc::cmsghdr>() && size_of::<usize>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        for (is_v4, to) in [(true, "10.7.0.2"), (false, "fd00:7::2")] {
            let to: IpAddr = to.parse().unwrap();
            let mut control = Control::EMPTY;
            control.push_traffic_class(is_v4, 0xab);
            control.push(libc::SOL_UDP, libc::UDP_GRO, &1072_i32.to_ne_bytes());
            let mut time = [0; 16];
            time[0] = 2;
            time[8] = 7;
            control.push(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &time);
            control.push(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &u32::MAX.to_ne_bytes());
            control.push_source(to);
            let expected = Received {
                traffic_class: 0xab,
                segment: Some(1072),
                stamp: Some(2_000_000_007),
                drops: Some(u32::MAX),
                // A transmitted control message names the source where a received one names the destination.
                to: if is_v4 { Some(Ipv4Addr::UNSPECIFIED.into()) } else { Some(to) },
            };
            assert_eq!(control.read(), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), ROOM), len in 0..=ROOM) {
            let mut control = Control { bytes: bytes.try_into().unwrap(), len: 0 };
            control.set_len(len);
            control.read();
        }
    }
}
