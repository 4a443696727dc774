//! Diagnosis of a guest: vsock, io_uring, the agent, the library, the address.

use super::pin::PinTable;
use super::stream;
use nix::ifaddrs::getifaddrs;
use rdmesh_uverbs::session::{LIBRARY_NAME, SOCKET_NAME, SYSFS_NAME};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;

/// Result of one examination.
pub struct Finding {
    /// One word: `host`, `memory`, `agent`, `library` or `address`.
    pub subject: &'static str,
    /// Its state; or the fault, with its remedy.
    pub result: Result<String, String>,
}

/// Looks for everything; changes nothing.
pub fn examine(directory: &Path) -> Vec<Finding> {
    let finding = |subject, result| Finding { subject, result };
    vec![
        finding("host", host()),
        finding("memory", memory()),
        finding("agent", agent(directory)),
        finding("library", library(directory)),
        finding("address", address(directory)),
    ]
}

fn host() -> Result<String, String> {
    let missing = |error: io::Error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::ENODEV | libc::EADDRNOTAVAIL) => {
            "no vsock: modprobe vmw_vsock_virtio_transport, in a virtual machine that `rdmesh vm` runs".to_owned()
        }
        _ => format!("the host's device does not answer ({error}): see what `rdmesh vm` says there"),
    };
    stream::probe().map_err(missing)?;
    Ok("the host's device answers".into())
}

/// Pins a page, and looks where it is.
fn memory() -> Result<String, String> {
    let table = PinTable::new().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => {
            format!("io_uring cannot be used ({error}): see sysctl kernel.io_uring_disabled")
        }
        Some(libc::EINVAL) => format!("io_uring has no sparse buffers ({error}): Linux 5.19 or newer is needed"),
        _ => format!("io_uring: {error}"),
    })?;
    let (_page, fd) = SharedMemory::create("rdmesh-doctor", 4096).map_err(|error| error.to_string())?;
    match table.pin(fd.as_fd(), 0, 4096) {
        Ok(_) => Ok("pages can be pinned, and their addresses are known".into()),
        Err(error) => Err(format!("a page cannot be pinned ({error}): the agent must be root, with CAP_SYS_ADMIN")),
    }
}

fn agent(directory: &Path) -> Result<String, String> {
    let socket = directory.join(SOCKET_NAME);
    let connected = (|| {
        let probe = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&probe, &SocketAddrUnix::new(&socket)?)
    })();
    match connected {
        Ok(()) => Ok(format!("serves at {}", socket.display())),
        Err(error) => {
            Err(format!("{} does not answer ({error}): start `rdmesh-guest serve` as root", socket.display()))
        }
    }
}

fn library(directory: &Path) -> Result<String, String> {
    let library = directory.join(LIBRARY_NAME);
    match fs::metadata(&library) {
        Ok(found) => Ok(format!("{}, {} bytes", library.display(), found.len())),
        Err(error) => Err(format!("{}: {error}", library.display())),
    }
}

/// The device's address should be an interface's too: programs exchange their queue pairs' numbers over TCP.
fn address(directory: &Path) -> Result<String, String> {
    let gid = directory.join(SYSFS_NAME).join("class/infiniband/rxe0/ports/1/gids/1");
    let text = fs::read_to_string(&gid).map_err(|error| format!("{}: {error}", gid.display()))?;
    let gid: Ipv6Addr = text.trim().parse().map_err(|_| format!("no address: {}", text.trim()))?;
    let wanted = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
    let interfaces = getifaddrs().map_err(|error| error.to_string())?;
    let holder = interfaces.into_iter().find(|interface| {
        let address = interface.address.as_ref();
        let v4 = address.and_then(|address| Some(IpAddr::V4(address.as_sockaddr_in()?.ip())));
        let v6 = address.and_then(|address| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())));
        v4.or(v6) == Some(wanted)
    });
    match holder {
        Some(interface) => Ok(format!("{} has {wanted}", interface.interface_name)),
        None => {
            Err(format!("no interface has {wanted}, the device's address: ip address add {wanted}/PREFIX dev eth0"))
        }
    }
}
