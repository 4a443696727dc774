//! Device plugins (`v1beta1.DevicePlugin`): the server that the kubelet asks.

use crate::registration::{Empty, Options};
use crate::server::{self, Methods, unary};
use prost::Message;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// A device plugin.
pub trait DevicePlugin: Send + Sync + 'static {
    /// The devices, and each change of them.
    fn devices(&self) -> watch::Receiver<Vec<Device>>;

    /// Gives devices to a container, which is to be created with what is returned. The reason of a refusal is in the pod's events.
    fn allocate(&self, devices: Vec<String>) -> impl Future<Output = Result<Allocation, Refusal>> + Send;

    /// A container with these devices starts, for the first time or again.
    fn start(&self, devices: Vec<String>) -> impl Future<Output = Result<(), Refusal>> + Send;
}

/// A device that is offered.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Its identifier, at most 63 characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Health of a device that pods may have.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that no pod gets.
pub const UNHEALTHY: &str = "Unhealthy";

/// Environment and mounts of a container that has devices (`ContainerAllocateResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct Allocation {
    /// Variables of its environment. Those of the pod's own specification count where both name one.
    #[prost(map = "string, string", tag = "1")]
    pub variables: HashMap<String, String>,
    /// Directories of the host in the container.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
}

/// A directory or file of the host in a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub inside: String,
    /// Path on the host, where links are followed.
    #[prost(string, tag = "2")]
    pub host: String,
    /// Whether it cannot be written to.
    #[prost(bool, tag = "3")]
    pub is_read_only: bool,
}

/// Refusal of a request of the kubelet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request itself is wrong.
    Invalid(String),
    /// It may work later.
    Unavailable(String),
}

/// Serves a device plugin at `socket`, in place of what is there, until the returned future is dropped.
pub fn serve(plugin: Arc<impl DevicePlugin>, socket: &Path) -> io::Result<impl Future<Output = io::Result<()>>> {
    server::serve(Arc::new(Plugin(plugin)), socket)
}

/// The methods of a device plugin.
struct Plugin<P>(Arc<P>);

impl<P: DevicePlugin> Methods for Plugin<P> {
    const NAME: &'static str = "v1beta1.DevicePlugin";

    async fn answer(self: Arc<Self>, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        let plugin = &self.0;
        match method {
            "GetDevicePluginOptions" => unary(request, |_: Empty| async { Ok::<_, Refusal>(OPTIONS) }).await,
            "ListAndWatch" => watch_devices(&**plugin, request).await,
            "Allocate" => unary(request, |asked| allocate(Arc::clone(plugin), asked)).await,
            "PreStartContainer" => unary(request, |asked| start(Arc::clone(plugin), asked)).await,
            method => server::unimplemented(method),
        }
    }
}

/// Answers with the devices, and again at each change.
async fn watch_devices(plugin: &impl DevicePlugin, request: http::Request<Body>) -> http::Response<Body> {
    type Lists = Pin<Box<dyn Stream<Item = Result<DeviceList, Status>> + Send>>;
    let devices = plugin.devices();
    let service = service_fn(move |_: Request<Empty>| {
        let lists: Lists = Box::pin(WatchStream::new(devices.clone()).map(|devices| Ok(DeviceList { devices })));
        async { Ok::<_, Status>(Response::new(lists)) }
    });
    Grpc::new(ProstCodec::<DeviceList, Empty>::default()).server_streaming(service, request).await
}

async fn allocate(plugin: Arc<impl DevicePlugin>, asked: Allocate) -> Result<Allocated, Refusal> {
    let mut containers = Vec::new();
    for devices in asked.containers {
        containers.push(plugin.allocate(devices.ids).await?);
    }
    Ok(Allocated { containers })
}

async fn start(plugin: Arc<impl DevicePlugin>, asked: Devices) -> Result<Empty, Refusal> {
    plugin.start(asked.ids).await.map(|()| Empty {})
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(reason) => Self::invalid_argument(reason),
            Refusal::Unavailable(reason) => Self::unavailable(reason),
        }
    }
}

/// Asked before each start of a container.
const OPTIONS: Options = Options { pre_start_required: true };

#[derive(Clone, PartialEq, Message)]
struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
struct Allocate {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Devices>,
}

#[derive(Clone, PartialEq, Message)]
struct Allocated {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Allocation>,
}

#[derive(Clone, PartialEq, Message)]
struct Devices {
    #[prost(string, repeated, tag = "1")]
    ids: Vec<String>,
}
