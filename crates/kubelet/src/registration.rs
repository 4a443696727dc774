//! Registration of device plugins (`v1beta1.Registration`).

use crate::link::{KubeletError, ask};
use prost::Message;
use std::path::{Path, PathBuf};

/// Folder of the sockets of device plugins, and of the kubelet's own, below the kubelet's directory.
pub fn folder(kubelet: &Path) -> PathBuf {
    kubelet.join("device-plugins")
}

/// Name of the kubelet's socket in that folder.
pub const SOCKET: &str = "kubelet.sock";

/// Tells the kubelet of a device plugin whose socket is `socket` in `folder`. From then on the kubelet asks there.
pub async fn register(folder: &Path, socket: &str, resource: &str) -> Result<(), KubeletError> {
    let request = Register {
        version: "v1beta1".to_owned(),
        endpoint: socket.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(Options { pre_start_required: true }),
    };
    let done: Result<Empty, _> = ask(&folder.join(SOCKET), "/v1beta1.Registration/Register", request).await;
    done.map(drop)
}

#[derive(Clone, PartialEq, Message)]
struct Register {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    resource_name: String,
    #[prost(message, optional, tag = "4")]
    options: Option<Options>,
}

/// Options of a device plugin (`DevicePluginOptions`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Options {
    /// Whether it is asked before each start of a container.
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Empty {}
