//! The kubelet's local interfaces, which are gRPC on Unix sockets below its directory (`/var/lib/kubelet`).
//!
//! * [`device_plugin`]: device plugins (`v1beta1`), which offer devices to the pods of a node.
//! * [`registration`]: how the kubelet learns of a device plugin.
//! * [`dra`]: drivers of dynamic resource allocation (`v1`), which prepare what pods claim.
//! * [`offered`]: the networks that a node offers.
//! * [`pod_resources`]: which pods have which devices (`v1`).
//!
//! Messages have the fields that are used here, with the numbers of `k8s.io/kubelet/pkg/apis`.

pub mod device_plugin;
pub mod dra;
mod link;
mod offered;
pub mod pod_resources;
pub mod registration;
mod server;

pub use link::KubeletError;
pub use offered::Offered;

/// Beginning of the names of rdmesh's resources, before the network's.
pub const RESOURCES: &str = "rdmesh.dev/";
/// The driver of dynamic resource allocation. Its pools are `NODE/NETWORK`.
pub const DRIVER: &str = "rdmesh.dev";
