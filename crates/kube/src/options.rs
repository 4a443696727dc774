//! The command line.

use clap::Parser;
use rdmesh_kubelet::Offered;
use std::path::PathBuf;

/// Endpoints as devices that pods of Kubernetes ask for
///
/// Example: rdmesh-device-plugin --network blue --network red:16
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub(crate) struct Options {
    /// Network that is offered as the resource rdmesh.dev/NETWORK, and the number of its devices on this node [default: 256]
    #[arg(
        long = "network",
        required = true,
        value_name = "NETWORK[:COUNT]",
        value_delimiter = ',',
        env = "RDMESH_PLUGIN_NETWORKS"
    )]
    pub(crate) networks: Vec<Offered>,
    /// Have programs load the library for faster sockets, too
    #[arg(long, env = "RDMESH_PLUGIN_ACCEL")]
    pub(crate) accel: bool,
    /// Seconds after which the endpoint of a pod that has ended is removed
    #[arg(long, default_value = "60", value_name = "SECONDS", env = "RDMESH_PLUGIN_GRACE")]
    pub(crate) grace: u32,
    /// Directory of the kubelet
    #[arg(long, default_value = "/var/lib/kubelet", env = "RDMESH_PLUGIN_KUBELET")]
    pub(crate) kubelet_dir: PathBuf,
    /// Directory of the container runtime's CNI plugins, in which `rdmesh-cni` is to be installed
    #[arg(long, value_name = "DIR", env = "RDMESH_PLUGIN_CNI_BIN")]
    pub(crate) cni_bin: Option<PathBuf>,
    /// Directory of the networks' lists of CNI plugins: `rdmesh-cni` is put behind the others in the first of them
    #[arg(long, value_name = "DIR", requires = "cni_bin", env = "RDMESH_PLUGIN_CNI_CONF")]
    pub(crate) cni_conf: Option<PathBuf>,
    /// State directory of the router [default: root's]
    #[arg(long, env = "RDMESH_STATE")]
    pub(crate) state_dir: Option<PathBuf>,
}
