//! Report of a process on its connections: what `rdmesh sockets` lists.
//!
//! Who connects to the process's second Unix socket gets a sealed memfd with a record for each connection. Numbers are
//! little-endian. A report is believed as little as all else that a process says: any bytes are records, or are refused.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A connection of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Its descriptor in the process.
    pub fd: u32,
    /// Its two addresses, the process's own first.
    pub local: SocketAddr,
    /// Likewise, the other end's.
    pub peer: SocketAddr,
    /// Where what the process writes goes.
    pub out: Path,
    /// Where what it reads comes from.
    pub input: Path,
    /// Bytes that it has written to rings, and read from them; what went by TCP the kernel counts (`ss -ti`).
    pub sent: u64,
    /// Likewise, read.
    pub received: u64,
    /// Times that it has got rings.
    pub rings: u32,
    /// Why it is on TCP, where it is.
    pub reason: Reason,
}

/// Way of the bytes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// The kernel's TCP.
    Tcp = 0,
    /// A ring in shared memory, with a process of this host at its other end.
    Memory = 1,
    /// A ring that the router copies to another endpoint by RDMA.
    Relay = 2,
}

impl Path {
    /// As it is listed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Memory => "memory",
            Self::Relay => "relay",
        }
    }

    fn parse(byte: u8) -> Option<Self> {
        [Self::Tcp, Self::Memory, Self::Relay].into_iter().find(|path| *path as u8 == byte)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)+) => {
        /// Why a connection is on TCP.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name = $code,)+
        }

        impl Reason {
            /// For people.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// The reason with this code.
            pub const fn parse(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// No reason: it has rings, or will get them with one of the next calls.
    None = 0, "";
    /// Settings of the program.
    Disabled = 1, "RDMESH_UPGRADE=never is set";
    /// Nobody has taken or made an offer.
    Peer = 2, "the other end has not been reached as an accelerated program";
    /// The other end has refused an offer.
    Refused = 3, "the other end keeps it on TCP";
    /// It had rings, and the other end has left them.
    PeerLeft = 4, "the other end has gone back to TCP";
    /// Several processes have it.
    Fork = 5, "several processes have it since a fork";
    /// A program that was executed has inherited it.
    Exec = 6, "it was passed to another program by exec";
    /// Its descriptor was sent by a Unix socket.
    Passed = 7, "its descriptor was sent to another process";
    /// `fdopen`, or a standard descriptor.
    Stdio = 8, "it is a standard stream, or used by stdio (fdopen)";
    /// `splice` and `sendfile`.
    Splice = 9, "it is used by splice, tee or sendfile";
    /// An option or flag that only TCP has.
    Option = 10, "an option or flag was asked for that only TCP has: urgent data, zero copy, O_ASYNC";
    /// `io_uring`.
    IoUring = 11, "the program uses io_uring";
    /// Too many waiters.
    Waiters = 12, "more threads or epoll instances wait for it than a ring can tell";
    /// Throughput between hosts.
    Bulk = 13, "so much is sent that TCP is the faster way";
    /// The router, or the way to the other one.
    Relay = 14, "the router or the way to the other endpoint was lost";
    /// It is about to end.
    Closing = 15, "it is being closed";
    /// Memory that the other end has spoilt.
    Broken = 16, "the other end has written nonsense into the shared memory";
    /// What may have to go back by TCP does not fit into the socket's buffer.
    Crowded = 17, "TCP's queue lacks room to go back: its reader pauses, net.core.wmem_max is below 128 KiB, or Linux older than 4.12";
    /// A full ring whose reader stands still.
    Stalled = 18, "its reader stood still while the ring was full: TCP keeps more for it";
}

/// Beginning of the abstract Unix addresses of accelerated processes.
pub const NAME_PREFIX: &str = "rdmesh-sockets/";
/// End of those at which they report.
pub const REPORT_SUFFIX: &str = "/report";

/// Bytes of a record.
pub const RECORD: usize = 80;

impl Connection {
    /// The record of [`RECORD`] bytes that [`Connection::of_bytes`] reads.
    pub fn to_bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.fd.to_le_bytes());
        put(&self.rings.to_le_bytes());
        put(&self.sent.to_le_bytes());
        put(&self.received.to_le_bytes());
        for address in [self.local, self.peer] {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            put(&ip.octets());
            put(&address.port().to_le_bytes());
        }
        put(&[self.out as u8, self.input as u8, self.reason as u8]);
        bytes
    }

    /// The connection of a record; none where it is not one.
    pub fn of_bytes(bytes: &[u8; RECORD]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let address = |at: usize| {
            let ip: [u8; 16] = std::array::from_fn(|n| bytes[at + n]);
            let port = u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]);
            SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
        };
        Some(Self {
            fd: word(0),
            rings: word(4),
            sent: long(8),
            received: long(16),
            local: address(24),
            peer: address(42),
            out: Path::parse(bytes[60])?,
            input: Path::parse(bytes[61])?,
            reason: Reason::parse(bytes[62])?,
        })
    }
}

/// All connections of a report; those whose records are none are left out.
pub fn connections(report: &[u8]) -> impl Iterator<Item = Connection> {
    report.chunks_exact(RECORD).filter_map(|record| Connection::of_bytes(record.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::array::uniform32(any::<u8>()), paths in any::<[u8; 3]>()) {
            let mut record = [0; RECORD];
            record[..32].copy_from_slice(&bytes);
            record[60..63].copy_from_slice(&paths);
            if let Some(connection) = Connection::of_bytes(&record) {
                prop_assert_eq!(Connection::of_bytes(&connection.to_bytes()), Some(connection));
            }
        }
    }

    #[test]
    fn a_record_has_all_of_a_connection() {
        let all = [("10.1.2.3:80", "10.1.2.4:65535"), ("[fd00::1]:1", "[::1]:2")];
        for (reason, (local, peer)) in (0..=u8::MAX).filter_map(Reason::parse).zip(all.into_iter().cycle()) {
            let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
            let (out, input, sent) = (Path::Relay, Path::Memory, u64::MAX - 7);
            let connection = Connection { fd: 3, local, peer, out, input, sent, received: 1 << 40, rings: 9, reason };
            let bytes = connection.to_bytes();
            let report = [&bytes[..], &[0xff; RECORD], &bytes, &bytes[1..]].concat();
            assert_eq!(connections(&report).collect::<Vec<_>>(), [connection, connection]);
        }
    }
}
