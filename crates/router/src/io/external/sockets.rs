//! UDP sockets for plain RoCEv2, in the network namespaces of the programs.

use super::probe::ProbeError;
use crate::io::raw;
use crate::io::socket::{Purpose, Socket};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rdmesh_nic::{ExternalId, ROCE_PORT};
use rustix::fs::fstat;
use rustix::io::{self, Errno};
use rustix::net::{SendFlags, sendto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

/// The sockets for plain RoCEv2 of one network namespace.
#[derive(Debug)]
pub struct ExternalSockets {
    id: ExternalId,
    /// The worker that receives for all.
    worker: usize,
    v4: Socket,
    /// None where the namespace has no IPv6.
    v6: Option<Socket>,
    scope: u32,
}

/// A network namespace, as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::io) struct NamespaceKey {
    device: u64,
    inode: u64,
}

/// The interface that has an endpoint's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its MTU.
    pub mtu: u32,
}

/// Reason why an endpoint's programs cannot reach external peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExternalPathError {
    /// The program's namespace is not known.
    #[error("the program's network namespace cannot be opened: {0}")]
    Unknown(Errno),
    /// Not without root.
    #[error("the program is in another network namespace, which takes root to enter: {0}")]
    Enter(Errno),
    /// No interface there has the address.
    #[error("no interface in the program's network namespace has an address of the endpoint")]
    NoInterface,
    /// Another program receives RoCEv2 there.
    #[error("UDP port {ROCE_PORT} is taken in the program's network namespace; is the kernel's rdma_rxe in use there?")]
    PortTaken,
    /// No socket.
    #[error("no socket for RoCEv2: {0}")]
    Socket(Errno),
    /// It took too long.
    #[error("the program's network namespace has too many interfaces")]
    TooSlow,
    /// The kernel numbers datagrams in its own way.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// Result of the search in a namespace.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) interface: Option<Interface>,
    /// Its name there.
    pub(super) name: String,
    pub(super) sockets: Option<Result<(Socket, Option<Socket>), ExternalPathError>>,
}

impl NamespaceKey {
    /// The identity of `namespace`.
    pub(in crate::io) fn of(namespace: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = fstat(namespace)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Looks for the interface with one of `addresses` in `namespace`, and opens the sockets if there is one and
/// `with_sockets` says so. A thread of its own does it, because it stays in the namespace as long as it lives, and because the
/// tenant controls the number of interfaces: `wait` is the time-out.
pub(super) fn visit(
    namespace: OwnedFd,
    addresses: Vec<IpAddr>,
    with_sockets: bool,
    wait: Duration,
) -> Result<Found, ExternalPathError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let visit = move || {
        let found = enter(namespace.as_fd()).and_then(|()| look(&addresses, with_sockets));
        // The receiver may have timed out meanwhile.
        let _ = sender.send(found);
    };
    let thread = std::thread::Builder::new().name("rdmesh-namespace".into()).stack_size(STACK);
    thread.spawn(visit).map_err(|_| ExternalPathError::Unknown(Errno::AGAIN))?;
    receiver.recv_timeout(wait).map_err(|_| ExternalPathError::TooSlow)?
}

/// Index and name of the interface with one of `addresses` in `namespace`.
pub(crate) fn find_interface(
    namespace: OwnedFd,
    addresses: Vec<IpAddr>,
    wait: Duration,
) -> Result<Option<(u32, String)>, ExternalPathError> {
    let found = visit(namespace, addresses, false, wait)?;
    Ok(found.interface.map(|interface| (interface.index, found.name)))
}

/// Moves the calling thread into `namespace`; where it is already, no privilege is asked for.
fn enter(namespace: BorrowedFd<'_>) -> Result<(), ExternalPathError> {
    let own = open_namespace("/proc/thread-self/ns/net").map_err(ExternalPathError::Unknown)?;
    let key = |fd| NamespaceKey::of(fd).map_err(ExternalPathError::Unknown);
    if key(own.as_fd())? == key(namespace)? {
        return Ok(());
    }
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).map_err(ExternalPathError::Enter)
}

/// Opens a network namespace that `/proc` shows.
pub(crate) fn open_namespace(path: &str) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn look(addresses: &[IpAddr], with_sockets: bool) -> Result<Found, ExternalPathError> {
    let (interface, name) = interface(addresses).map_err(ExternalPathError::Socket)?.unzip();
    let sockets = (with_sockets && interface.is_some()).then(sockets);
    Ok(Found { interface, name: name.unwrap_or_default(), sockets })
}

/// The interface of the calling thread's namespace that has one of `addresses`.
fn interface(addresses: &[IpAddr]) -> io::Result<Option<(Interface, String)>> {
    let errno = |error: nix::errno::Errno| Errno::from_raw_os_error(error as i32);
    let found = getifaddrs().map_err(errno)?.find(|interface| {
        let address = interface.address.as_ref().and_then(ip);
        address.is_some_and(|address| addresses.contains(&address))
    });
    let Some(found) = found else { return Ok(None) };
    let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let index = rustix::net::netdevice::name_to_index(&any, &found.interface_name)?;
    let mtu = raw::interface_mtu(any.as_fd(), &found.interface_name)?;
    Ok(Some((Interface { index, mtu }, found.interface_name)))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn sockets() -> Result<(Socket, Option<Socket>), ExternalPathError> {
    let open = |ip| {
        // Path MTU discovery is on, because only then the datagrams are numbered from zero.
        Socket::open(SocketAddr::new(ip, ROCE_PORT), Purpose { is_shared: false, heeds_path: true })
    };
    let failed =
        |error| if error == Errno::ADDRINUSE { ExternalPathError::PortTaken } else { ExternalPathError::Socket(error) };
    let v4 = open(Ipv4Addr::UNSPECIFIED.into()).map_err(failed)?;
    let v6 = match open(Ipv6Addr::UNSPECIFIED.into()) {
        Ok(v6) => Some(v6),
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => None,
        Err(error) => return Err(failed(error)),
    };
    Ok((v4, v6))
}

impl ExternalSockets {
    /// These sockets as number `id`, which `worker` receives from.
    pub(super) fn new(id: ExternalId, worker: usize, v4: Socket, v6: Option<Socket>, interface: Interface) -> Self {
        Self { id, worker, v4, v6, scope: interface.index }
    }

    /// Their number.
    pub fn id(&self) -> ExternalId {
        self.id
    }

    /// The worker that receives from them.
    pub(in crate::io) fn worker(&self) -> usize {
        self.worker
    }

    /// The interface, for addresses that mean something only together with it.
    pub(in crate::io) fn scope(&self) -> u32 {
        self.scope
    }

    /// Probes a machine, so that the kernel resolves its address: an empty datagram to the discard port (RFC 863).
    pub fn probe(&self, dest: Ipv4Addr) -> io::Result<()> {
        const DISCARD: u16 = 9;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendto(self.v4.as_fd(), &[], flags, &SocketAddrV4::new(dest, DISCARD)) {
            // No room now; the next probe makes the kernel resolve the address.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The socket of one family; none where the namespace has no such addresses.
    pub(in crate::io) fn socket(&self, is_v4: bool) -> Option<&Socket> {
        if is_v4 { Some(&self.v4) } else { self.v6.as_ref() }
    }
}

const STACK: usize = 256 * 1024;
