//! Which pods have which devices (`v1.PodResourcesLister`).

use crate::link::{KubeletError, ask};
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
    /// The resource, such as `rdmesh.dev/blue`.
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
        self.pods.into_iter().flat_map(|pod| {
            pod.containers.into_iter().flat_map(move |container| {
                let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
                container.devices.into_iter().flat_map(move |devices| {
                    let of = |device| PodDevice {
                        namespace: namespace.clone(),
                        pod: pod.clone(),
                        container: container.name.clone(),
                        resource: devices.resource.clone(),
                        device,
                    };
                    devices.ids.into_iter().map(of).collect::<Vec<_>>()
                })
            })
        })
    }
}
