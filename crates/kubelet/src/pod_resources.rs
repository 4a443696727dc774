//! Which pods have which devices (`v1.PodResourcesLister`).

use crate::link::{KubeletError, ask};
use crate::{DRIVER, RESOURCES};
use prost::Message;
use std::path::{Path, PathBuf};

/// A device of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodDevice {
    /// The pod's namespace.
    pub namespace: String,
    /// Name of the pod, unique in its namespace.
    pub pod: String,
    /// Name of the container in the pod's specification.
    pub container: String,
    /// The resource, such as `rdmesh.dev/blue`; of a device that the pod has by a claim, that of the same network.
    pub resource: String,
    /// The device's identifier.
    pub device: String,
}

/// The kubelet's socket for this below its directory.
pub fn socket(kubelet: &Path) -> PathBuf {
    kubelet.join("pod-resources/kubelet.sock")
}

/// All devices that pods have, by asking at `socket`.
pub async fn list(socket: &Path) -> Result<Vec<PodDevice>, KubeletError> {
    let answer: ListAnswer = ask(socket, "/v1.PodResourcesLister/List", List {}).await?;
    Ok(answer.into_devices().collect())
}

#[derive(Clone, PartialEq, Message)]
struct List {}

#[derive(Clone, PartialEq, Message)]
struct ListAnswer {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<Devices>,
    #[prost(message, repeated, tag = "5")]
    claims: Vec<Claimed>,
}

/// Devices of a container by a claim (`DynamicResource`).
#[derive(Clone, PartialEq, Message)]
struct Claimed {
    #[prost(message, repeated, tag = "4")]
    resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimResource {
    #[prost(string, tag = "2")]
    driver: String,
    #[prost(string, tag = "3")]
    pool: String,
    #[prost(string, tag = "4")]
    device: String,
}

#[derive(Clone, PartialEq, Message)]
struct Devices {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

impl ListAnswer {
    fn into_devices(self) -> impl Iterator<Item = PodDevice> {
        self.pods.into_iter().flat_map(|Pod { name, namespace, containers }| {
            containers.into_iter().flat_map(move |container| {
                let (namespace, pod, name) = (namespace.clone(), name.clone(), container.name.clone());
                let of = move |Given { resource, device }| PodDevice {
                    namespace: namespace.clone(),
                    pod: pod.clone(),
                    container: name.clone(),
                    resource,
                    device,
                };
                container.into_given().map(of)
            })
        })
    }
}

/// A device that a container has.
struct Given {
    resource: String,
    device: String,
}

impl Container {
    fn into_given(self) -> impl Iterator<Item = Given> {
        let plugins = self.devices.into_iter().flat_map(|Devices { resource, ids }| {
            ids.into_iter().map(move |device| Given { resource: resource.clone(), device })
        });
        let claims = self.claims.into_iter().flat_map(|claimed| claimed.resources).filter(|one| one.driver == DRIVER);
        plugins.chain(claims.map(|one| {
            // The pool is of the node and of the network.
            let network = one.pool.rsplit('/').next().unwrap_or_default();
            Given { resource: format!("{RESOURCES}{network}"), device: one.device }
        }))
    }
}
