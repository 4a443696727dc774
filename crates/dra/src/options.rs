//! The command line.

use clap::Parser;
use rdmesh_kubelet::Offered;
use std::path::PathBuf;

/// Endpoints that pods of Kubernetes claim (dynamic resource allocation)
///
/// The API server is that of the pod's service account, or of KUBECONFIG.
///
/// Example: rdmesh-dra-driver --network blue --network red:16
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub(crate) struct Options {
    /// Network that is offered as a pool of this node, and the number of its devices [default: 256]
    #[arg(
        long = "network",
        required = true,
        value_name = "NETWORK[:COUNT]",
        value_delimiter = ',',
        value_parser = lower_case,
        env = "RDMESH_PLUGIN_NETWORKS"
    )]
    pub(crate) networks: Vec<Offered>,
    /// Have programs load the library for faster sockets, too
    #[arg(long, env = "RDMESH_PLUGIN_ACCEL")]
    pub(crate) accel: bool,
    /// Name of this node in the cluster [default: the host's name]
    #[arg(long, env = "NODE_NAME")]
    node: Option<String>,
    /// Directory of the kubelet
    #[arg(long, default_value = "/var/lib/kubelet", env = "RDMESH_PLUGIN_KUBELET")]
    pub(crate) kubelet_dir: PathBuf,
    /// Directory of CDI files that the container runtime reads
    #[arg(long, default_value = "/var/run/cdi", env = "RDMESH_PLUGIN_CDI")]
    pub(crate) cdi_dir: PathBuf,
    /// State directory of the router [default: root's]
    #[arg(long, env = "RDMESH_STATE")]
    pub(crate) state_dir: Option<PathBuf>,
}

impl Options {
    /// Name of this node: the kubelet's default is the host's name in lower case.
    pub(crate) fn node(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        self.node.clone().unwrap_or_else(host)
    }
}

/// A network whose name may be part of a pool's.
fn lower_case(text: &str) -> Result<Offered, String> {
    let offered: Offered = text.parse()?;
    if offered.network.as_str().contains(|c: char| c.is_ascii_uppercase()) {
        return Err(format!("`{}` cannot be the name of a pool: small letters, digits and `-` can", offered.network));
    }
    Ok(offered)
}
