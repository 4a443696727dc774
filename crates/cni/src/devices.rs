//! Pods of Kubernetes whose containers have endpoints, as devices (`rdmesh-device-plugin`) or by claims (`rdmesh-dra-driver`): each
//! such endpoint gets its interface in the pod's network namespace.
//!
//! The kubelet gives devices to a pod before its network is set up, so it knows then which endpoints they are. An endpoint is made
//! here, in the namespace, before the pod's first container starts.

use crate::call::{Call, Container};
use crate::config::Config;
use crate::operation::{check_interface, missing_namespace, namespace, read_interface, refused};
use crate::outcome::Error;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Netns};
use rdmesh_fabric::{Client, ClientError, InterfaceName, Isolation, Labels, Name};
use rdmesh_kubelet::RESOURCES;
use rdmesh_kubelet::pod_resources::{self, PodDevice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The endpoints that pods of a node have.
pub(crate) struct Devices<'a> {
    pub(crate) config: &'a Config,
    pub(crate) client: &'a Client,
    /// Directory of the kubelet.
    pub(crate) kubelet: &'a Path,
}

/// An endpoint that a container has.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot {
    network: Name,
    name: Name,
    /// Whether another pod has it, too: pods may have the same claim.
    is_shared: bool,
}

impl Devices<'_> {
    /// Performs an operation. Returns the text for the plugin's standard output.
    pub(crate) fn perform(&self, call: &Call) -> Result<String, Error> {
        match call {
            Call::Add(container) => return self.add(container),
            Call::Del(container) => self.remove(container),
            Call::Check(container) => self.check(container),
            Call::Status => self.client.status().map(drop).map_err(|error| Error::unavailable(&error)),
            // Endpoints that no pod has are removed by the device plugin, or by the driver.
            Call::Gc | Call::Version => Ok(()),
        }
        .map(|()| String::new())
    }

    fn add(&self, container: &Container) -> Result<String, Error> {
        let before = self.config.prev_result.as_ref();
        let mut result = before.cloned().ok_or_else(|| Error::config(NOT_FIRST))?;
        let (netns, path) = namespace(container)?;
        let slots = self.slots(container)?;
        for (number, slot) in slots.iter().enumerate() {
            if slot.is_shared && self.is_elsewhere(slot, &path)? {
                continue;
            }
            // A pod's network may be set up again.
            self.remove_endpoint(slot)?;
            let made = self.create(slot, container, &netns, number);
            let found = made.and_then(|info| read_interface(&netns, info.endpoint.interface.as_str()));
            match found.and_then(|found| found.ok_or_else(|| Error::failed("the interface has gone"))) {
                Ok(interface) => {
                    let sandbox = path.display().to_string();
                    result = interface.result(Some(&result), &self.config.cni_version, &sandbox);
                }
                Err(error) => {
                    // Nothing is left of an ADD that fails; its own error counts.
                    slots.iter().for_each(|slot| drop(self.remove_endpoint(slot)));
                    return Err(error);
                }
            }
        }
        Ok(result.to_string())
    }

    fn create(
        &self,
        slot: &Slot,
        container: &Container,
        netns: &OwnedFd,
        number: usize,
    ) -> Result<EndpointInfo, Error> {
        let labels = container.pod().map(|pod| Labels::of_pod(pod.namespace, pod.name)).unwrap_or_default();
        let interface: InterfaceName = format!("rdmesh{number}").parse().map_err(|error| Error::failed(&error))?;
        let request = CreateEndpoint {
            quota: self.config.quota,
            isolation: Isolation::Given,
            netns: Some(Netns::Descriptor(netns.as_raw_fd().unsigned_abs())),
            interface: Some(interface),
            labels,
            ..CreateEndpoint::new(slot.network.clone(), slot.name.clone())
        };
        self.client.create_endpoint(&request).map_err(|error| refused(&error))
    }

    /// Removes the endpoints that are in the pod's network namespace. One that has gone has taken them along. Other pods with the same
    /// claim go on with the device alone, which they have to open again.
    fn remove(&self, container: &Container) -> Result<(), Error> {
        let Some(netns) = &container.netns else { return Ok(()) };
        let found = self.inside(netns)?;
        if found.is_empty() {
            return Ok(());
        }
        // A kubelet that does not answer keeps no pod from its end.
        let devices = self.devices().unwrap_or_default();
        let remove = |info: EndpointInfo| {
            let slot = Slot { network: info.endpoint.network, name: info.endpoint.name, is_shared: false };
            self.remove_endpoint(&slot)?;
            let is_held = |one: &&PodDevice| !is_of(one, container) && Slot::of(one, false).as_ref() == Some(&slot);
            devices.iter().find(is_held).map_or(Ok(()), |holder| self.keep(&slot, holder))
        };
        // One that cannot be removed does not keep the others.
        let removed: Vec<_> = found.into_iter().map(remove).collect();
        removed.into_iter().collect()
    }

    /// Makes an endpoint again that another pod has, in no network namespace.
    fn keep(&self, slot: &Slot, holder: &PodDevice) -> Result<(), Error> {
        let request = CreateEndpoint {
            quota: self.config.quota,
            isolation: Isolation::None,
            labels: Labels::of_pod(&holder.namespace, &holder.pod),
            ..CreateEndpoint::new(slot.network.clone(), slot.name.clone())
        };
        self.client.create_endpoint(&request).map(drop).map_err(|error| refused(&error))
    }

    /// Whether the pod's endpoints have their interfaces, with their addresses.
    fn check(&self, container: &Container) -> Result<(), Error> {
        let (netns, path) = namespace(container)?;
        let inside = self.inside(&path)?;
        for slot in self.slots(container)? {
            if slot.is_shared && self.is_elsewhere(&slot, &path)? {
                continue;
            }
            let is_it = |info: &&EndpointInfo| info.endpoint.network == slot.network && info.endpoint.name == slot.name;
            let missing =
                || Error::unknown_container(&format!("endpoint `{}/{}` is not there", slot.network, slot.name));
            let info = inside.iter().find(is_it).ok_or_else(missing)?;
            check_interface(&netns, &info.endpoint, Vec::new())?;
        }
        Ok(())
    }

    /// Endpoints in a network namespace.
    fn inside(&self, netns: &Path) -> Result<Vec<EndpointInfo>, Error> {
        let wanted = match identity(netns) {
            Ok(wanted) => wanted,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(missing_namespace(netns, &error)),
        };
        let all = self.client.endpoints().map_err(|error| refused(&error))?;
        Ok(all.into_iter().filter(|info| given_namespace(info) == Some(wanted)).collect())
    }

    /// Whether an endpoint is in the network namespace of a pod that has it, and not in this one.
    fn is_elsewhere(&self, slot: &Slot, netns: &Path) -> Result<bool, Error> {
        match self.client.endpoint(&slot.network, &slot.name) {
            Ok(info) => Ok(given_namespace(&info).is_some_and(|place| identity(netns).ok() != Some(place))),
            Err(ClientError::Refused { status: 404, .. }) => Ok(false),
            Err(error) => Err(refused(&error)),
        }
    }

    /// The endpoints that containers of a pod have; none where the runtime connects something else than a pod.
    fn slots(&self, container: &Container) -> Result<Vec<Slot>, Error> {
        if container.pod().is_none() {
            return Ok(Vec::new());
        }
        let devices = self.devices()?;
        let is_own = |one: &&PodDevice| is_of(one, container);
        let slot = |own: &PodDevice| {
            let is_shared = devices
                .iter()
                .filter(|one| !is_own(one))
                .any(|one| (&one.resource, &one.device) == (&own.resource, &own.device));
            Slot::of(own, is_shared)
        };
        let mut slots = Vec::new();
        for slot in devices.iter().filter(is_own).filter_map(slot) {
            // Containers of a pod may have the same claim.
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        Ok(slots)
    }

    /// The devices of all pods of the node.
    fn devices(&self) -> Result<Vec<PodDevice>, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed(&error))?;
        let listed = runtime.block_on(pod_resources::list(&pod_resources::socket(self.kubelet)));
        listed.map_err(|error| Error::try_again_later(&error))
    }

    /// Removes an endpoint, if it is there.
    fn remove_endpoint(&self, slot: &Slot) -> Result<(), Error> {
        self.client.clear_endpoint(&slot.network, &slot.name).map_err(|error| refused(&error))
    }
}

impl Slot {
    fn of(device: &PodDevice, is_shared: bool) -> Option<Self> {
        let network = device.resource.strip_prefix(RESOURCES)?;
        Some(Self { network: network.parse().ok()?, name: device.device.parse().ok()?, is_shared })
    }
}

/// Whether a device is of the pod that a container is part of.
fn is_of(device: &PodDevice, container: &Container) -> bool {
    container.pod().is_some_and(|pod| device.namespace == pod.namespace && device.pod == pod.name)
}

/// A network namespace, by its file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NamespaceId {
    device: u64,
    inode: u64,
}

fn identity(file: &Path) -> std::io::Result<NamespaceId> {
    std::fs::metadata(file).map(|file| NamespaceId { device: file.dev(), inode: file.ino() })
}

/// The network namespace that the router was given for an endpoint, if that is there.
fn given_namespace(info: &EndpointInfo) -> Option<NamespaceId> {
    let file = info.namespace.as_deref().filter(|_| info.endpoint.isolation == Isolation::Given)?;
    identity(file).ok()
}

const NOT_FIRST: &str = "with `kubeletDir` this plugin stands behind the one that makes the pods' own network";
