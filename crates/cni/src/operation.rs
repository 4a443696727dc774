//! The operations of a runtime, as requests to the router.

use crate::attachment::Attachments;
use crate::call::{Call, Container};
use crate::config::Config;
use crate::devices::Devices;
use crate::interface;
use crate::ipam::Ipam;
use crate::outcome::{Error, Interface};
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Netns};
use rdmesh_fabric::{Client, ClientError, Endpoint, Isolation, Labels, Name, StateDir};
use serde_json::Value;
use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Configuration, router and IPAM plugin of an operation.
struct Plugin<'a> {
    config: &'a Config,
    network: Name,
    client: Client,
    ipam: Ipam<'a>,
}

/// Performs an operation on a configuration, which the runtime has handed as `input`. Returns the text for its standard output.
pub(crate) fn perform(call: &Call, config: &Config, input: &str) -> Result<String, Error> {
    let uid = rustix::process::geteuid().as_raw();
    let state = StateDir::locate(config.state_dir.clone(), uid).map_err(|error| Error::config(&error))?;
    let client = Client::new(state.api_socket());
    if let Some(kubelet) = &config.kubelet_dir {
        return Devices { config, client: &client, kubelet }.perform(call);
    }
    let plugin = Plugin { config, network: config.network()?, client, ipam: Ipam::of(config, input) };
    let done = match call {
        Call::Add(container) => return plugin.add(container),
        Call::Del(container) => plugin.remove(container),
        Call::Check(container) => plugin.check(container),
        Call::Gc => plugin.collect(),
        Call::Status => plugin.client.status().map(drop).map_err(|error| Error::unavailable(&error)),
        Call::Version => Ok(()),
    };
    let passed_on = plugin.ipam.pass_on(call.name());
    done.and(passed_on).map(|()| String::new())
}

impl Plugin<'_> {
    fn add(&self, container: &Container) -> Result<String, Error> {
        let (netns, path) = namespace(container)?;
        let handed = self.ipam.add()?;
        let added = self.create(container, &netns, handed).and_then(|info| {
            let found = read_interface(&netns, info.endpoint.interface.as_str())?;
            found.ok_or_else(|| Error::failed("the interface has gone"))
        });
        match added {
            Ok(interface) => {
                let before = self.config.prev_result.as_ref();
                Ok(interface.result(before, &self.config.cni_version, &path.display().to_string()).to_string())
            }
            Err(error) => {
                // Nothing is left of an ADD that fails; its own error counts.
                let _ = self.ipam.pass_on("DEL");
                Err(error)
            }
        }
    }

    fn create(&self, container: &Container, netns: &OwnedFd, handed: Vec<IpAddr>) -> Result<EndpointInfo, Error> {
        let asked = self.config.addresses(container.argument("IP"))?;
        let request = CreateEndpoint {
            addresses: if handed.is_empty() { asked } else { handed },
            quota: self.config.quota,
            isolation: Isolation::Given,
            netns: Some(Netns::Descriptor(netns.as_raw_fd().unsigned_abs())),
            interface: Some(self.config.interface(&container.interface)?),
            labels: container.pod().map(|pod| Labels::of_pod(pod.namespace, pod.name)).unwrap_or_default(),
            ..CreateEndpoint::new(self.network.clone(), self.endpoint_of(container))
        };
        self.client.create_endpoint(&request).map_err(|error| refused(&error))
    }

    fn remove(&self, container: &Container) -> Result<(), Error> {
        self.remove_endpoint(&self.endpoint_of(container))
    }

    /// Removes an endpoint; one that is not there has been removed before.
    fn remove_endpoint(&self, name: &Name) -> Result<(), Error> {
        self.client.clear_endpoint(&self.network, name).map_err(|error| refused(&error))
    }

    /// Whether the container has its endpoint, and its namespace the interface with the addresses of the result.
    fn check(&self, container: &Container) -> Result<(), Error> {
        let (netns, _) = namespace(container)?;
        let name = self.endpoint_of(container);
        let info = match self.client.endpoint(&self.network, &name) {
            Err(error @ ClientError::Refused { status: 404, .. }) => return Err(Error::unknown_container(&error)),
            found => found.map_err(|error| refused(&error))?,
        };
        let interface = info.endpoint.interface.as_str();
        let expected = expected_addresses(self.config.prev_result.as_ref(), interface);
        check_interface(&netns, &info.endpoint, expected)
    }

    /// Removes endpoints of attachments that the runtime does not know.
    fn collect(&self) -> Result<(), Error> {
        let attachments = self.attachments();
        let valid = self.config.valid_attachments.iter();
        let valid: HashSet<Name> = valid.map(|one| attachments.endpoint(&one.container, &one.interface)).collect();
        let all = self.client.endpoints().map_err(|error| refused(&error))?;
        let stale = all.iter().map(|info| &info.endpoint).filter(|endpoint| {
            endpoint.network == self.network && attachments.include(&endpoint.name) && !valid.contains(&endpoint.name)
        });
        // One that cannot be removed does not keep the others.
        let removed: Vec<_> = stale.map(|endpoint| self.remove_endpoint(&endpoint.name)).collect();
        removed.into_iter().collect()
    }

    fn attachments(&self) -> Attachments<'_> {
        Attachments { network: &self.config.name }
    }

    fn endpoint_of(&self, container: &Container) -> Name {
        self.attachments().endpoint(&container.id, &container.interface)
    }
}

/// The container's namespace, and its file.
pub(crate) fn namespace(container: &Container) -> Result<(OwnedFd, PathBuf), Error> {
    let path = container.netns.clone().unwrap_or_default();
    let opened = interface::open_namespace(&path);
    opened.map(|netns| (netns, path.clone())).map_err(|error| missing_namespace(&path, &error))
}

pub(crate) fn missing_namespace(path: &Path, error: &std::io::Error) -> Error {
    Error::unknown_container(&format!("CNI_NETNS: {}: {error}", path.display()))
}

pub(crate) fn read_interface(netns: &OwnedFd, name: &str) -> Result<Option<Interface>, Error> {
    interface::read(netns, name).map_err(|error| Error::failed(&format!("interface `{name}`: {error}")))
}

/// Whether an endpoint's interface is in its namespace, with the endpoint's addresses and those `expected`.
pub(crate) fn check_interface(netns: &OwnedFd, endpoint: &Endpoint, expected: Vec<IpAddr>) -> Result<(), Error> {
    let interface = endpoint.interface.as_str();
    let found = read_interface(netns, interface)?;
    let found = found.ok_or_else(|| Error::unknown_container(&format!("there is no interface `{interface}`")))?;
    let has = |address: IpAddr| found.addresses.iter().any(|known| known.addr() == address);
    match endpoint.addresses.iter().copied().chain(expected).find(|address| !has(*address)) {
        Some(missing) => Err(Error::failed(&format!("interface `{interface}` has lost its address {missing}"))),
        None => Ok(()),
    }
}

/// Addresses of an interface in the result of an ADD.
fn expected_addresses(result: Option<&Value>, interface: &str) -> Vec<IpAddr> {
    let Some(result) = result else { return Vec::new() };
    let list = |name: &str| result[name].as_array().cloned().unwrap_or_default();
    let at = list("interfaces").iter().position(|entry| entry["name"] == interface && entry["sandbox"].is_string());
    let own = |entry: &Value| at.is_some_and(|at| entry["interface"].as_u64() == Some(at as u64));
    let texts = list("ips").into_iter().filter(own);
    texts.filter_map(|entry| crate::config::address(entry["address"].as_str()?).ok()).collect()
}

/// Error for what the router says. A router that cannot be reached or is busy may do it later.
pub(crate) fn refused(error: &ClientError) -> Error {
    match error {
        ClientError::Unreachable { .. } | ClientError::Broken(_) | ClientError::TimedOut => {
            Error::try_again_later(error)
        }
        ClientError::Refused { status: 503, .. } => Error::try_again_later(error),
        _ => Error::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_result_names_the_addresses_of_its_interface() {
        let result = json!({
            "interfaces": [{"name": "eth0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"address": "10.7.0.2/24", "interface": 1}, {"address": "10.8.0.2/24", "interface": 0}],
        });
        assert_eq!(expected_addresses(Some(&result), "eth0"), ["10.7.0.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(expected_addresses(Some(&result), "net1"), [] as [IpAddr; 0]);
        assert_eq!(expected_addresses(None, "eth0"), [] as [IpAddr; 0]);
    }
}
