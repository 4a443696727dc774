//! What the host has of the tenant networks.

use crate::MacAddress;
use crate::link::{LOOPBACK, Links};
use crate::namespace::Namespace;
use ipnet::IpNet;
use rdmesh_fabric::{Endpoint, Name, Network, StateDir};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Makes and removes the namespaces of networks and endpoints. Every call may be repeated.
#[derive(Debug)]
pub struct Overlay {
    state: StateDir,
    /// One change at a time: whether a network's namespace is still needed is seen from the others'.
    changing: Mutex<()>,
}

/// Why the kernel has it not.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed: {source}{}", hint(.source))]
pub struct OverlayError {
    action: String,
    source: io::Error,
}

impl Overlay {
    /// The overlay whose namespaces are kept in `state`.
    pub fn new(state: StateDir) -> Result<Self, OverlayError> {
        let directory = state.namespaces();
        fs::create_dir_all(&directory).map_err(|e| failed(format!("making {}", directory.display()), e))?;
        Ok(Self { state, changing: Mutex::new(()) })
    }

    /// Gives `endpoint` its namespace and connects it to `network`. Returns the namespace's file.
    pub fn add_endpoint(&self, network: &Network, endpoint: &Endpoint) -> Result<PathBuf, OverlayError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.state.endpoint_namespace(endpoint);
        let bridge_file = self.state.network_namespace(&network.name);
        let made = ensure_bridge(&bridge_file).and_then(|bridge| connect(&bridge, &file, network, endpoint));
        match made {
            Ok(()) => Ok(file),
            Err(error) => {
                let action = format!("making the network namespace of `{}`", endpoint.name);
                // What was half made must not stay; the first error says what is wrong.
                let _ = self.remove(endpoint);
                Err(failed(action, error))
            }
        }
    }

    /// Removes the namespace of `endpoint`, and that of its network if this was its last endpoint here.
    pub fn remove_endpoint(&self, endpoint: &Endpoint) -> Result<(), OverlayError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let action = format!("removing the network namespace of `{}`", endpoint.name);
        self.remove(endpoint).map_err(|e| failed(action, e))
    }

    /// Removes all namespaces in the state directory, whoever left them there.
    pub fn clear(&self) -> Result<(), OverlayError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.state.namespaces();
        let removed = files_in(&directory).and_then(|files| {
            files.iter().map(|name| Namespace::remove(&directory.join(name))).fold(Ok(()), Result::and)
        });
        removed.map_err(|e| failed(format!("removing the namespaces in {}", directory.display()), e))
    }

    fn remove(&self, endpoint: &Endpoint) -> io::Result<()> {
        let bridge_file = self.state.network_namespace(&endpoint.network);
        // The link goes first and at once. The kernel would remove it with the namespace, but later, and only when no
        // process is left in it.
        let unlinked = match Namespace::open(&bridge_file)? {
            Some(bridge) => bridge.run(|| Links::open()?.remove(&port_name(endpoint))),
            None => Ok(()),
        };
        let removed = Namespace::remove(&self.state.endpoint_namespace(endpoint));
        let cleaned = if self.is_empty(&endpoint.network)? { Namespace::remove(&bridge_file) } else { Ok(()) };
        unlinked.and(removed).and(cleaned)
    }

    /// Whether no endpoint of `network` has a namespace.
    fn is_empty(&self, network: &Name) -> io::Result<bool> {
        let prefix = format!("{network}.");
        Ok(!files_in(&self.state.namespaces())?.iter().any(|name| name.starts_with(&prefix)))
    }
}

fn ensure_bridge(file: &Path) -> io::Result<Namespace> {
    let (namespace, _) = Namespace::ensure(file)?;
    namespace.run(|| {
        let mut links = Links::open()?;
        if links.find(BRIDGE)?.is_none() {
            links.add_bridge(BRIDGE)?;
        }
        let bridge = links.find(BRIDGE)?.ok_or(io::ErrorKind::NotFound)?;
        links.set_up(bridge)
    })?;
    Ok(namespace)
}

fn connect(bridge: &Namespace, file: &Path, network: &Network, endpoint: &Endpoint) -> io::Result<()> {
    let (namespace, is_new) = Namespace::ensure(file)?;
    let port = port_name(endpoint);
    bridge.run(|| {
        let mut links = Links::open()?;
        if is_new {
            links.remove(&port)?;
        }
        if links.find(&port)?.is_none() {
            let bridge = links.find(BRIDGE)?.ok_or(io::ErrorKind::NotFound)?;
            links.add_veth(&port, bridge, INTERFACE, mac_of(endpoint), rustix::fd::AsFd::as_fd(&namespace))?;
        }
        let port = links.find(&port)?.ok_or(io::ErrorKind::NotFound)?;
        links.set_up(port)
    })?;
    namespace.run(|| {
        let mut links = Links::open()?;
        links.set_up(LOOPBACK)?;
        let interface = links.find(INTERFACE)?.ok_or(io::ErrorKind::NotFound)?;
        for &address in &endpoint.addresses {
            let prefix_len =
                network.subnet_of(address).map_or(IpNet::from(address).max_prefix_len(), |s| s.prefix_len());
            let address = IpNet::new(address, prefix_len).map_err(io::Error::other)?;
            links.set_address(interface, address)?;
        }
        links.set_up(interface)
    })
}

/// Name of the bridge port of `endpoint`: unique on its network, as the first address is.
fn port_name(endpoint: &Endpoint) -> String {
    let octets = mac_of(endpoint).octets();
    octets.iter().fold(String::from("v"), |name, byte| format!("{name}{byte:02x}"))
}

fn mac_of(endpoint: &Endpoint) -> MacAddress {
    MacAddress::of(endpoint.addresses.first().copied().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()))
}

fn files_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn failed(action: String, source: io::Error) -> OverlayError {
    OverlayError { action, source }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (network namespaces need root: start the router with `sudo rdmesh up`, or use `rdmesh up --rootless` and \
             `rdmesh run --host-network`)"
        }
        io::ErrorKind::Unsupported => " (the kernel lacks bridge or veth: `modprobe bridge veth`)",
        _ => "",
    }
}

const BRIDGE: &str = "br0";
const INTERFACE: &str = "eth0";

#[cfg(test)]
mod tests;
