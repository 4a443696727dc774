//! The kubelet's local interfaces, which are gRPC on Unix sockets below its directory (`/var/lib/kubelet`).
//!
//! * [`device_plugin`]: device plugins (`v1beta1`), which offer devices to the pods of a node.
//! * [`registration`]: how the kubelet learns of a device plugin.
//! * [`pod_resources`]: which pods have which devices (`v1`).
//!
//! Messages have the fields that are used here, with the numbers of `k8s.io/kubelet/pkg/apis`.

pub mod device_plugin;
mod link;
pub mod pod_resources;
pub mod registration;

pub use link::KubeletError;

/// Beginning of the names of rdmesh's resources, before the network's.
pub const RESOURCES: &str = "rdmesh.dev/";
