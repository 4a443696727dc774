//! Drivers of dynamic resource allocation: the two servers that the kubelet asks, one where it looks for drivers
//! (`pluginregistration.Registration`), and the driver's own (`k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`).

use crate::server::{self, Methods, unary};
use prost::Message;
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::future::{Future, ready};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tracing::{info, warn};

/// A driver of dynamic resource allocation. An error's text is in the events of the claim's pod, and the kubelet tries again.
pub trait ResourceDriver: Send + Sync + 'static {
    /// Makes ready what was allocated to a claim, for the first time or again.
    fn prepare(&self, claim: ClaimName) -> impl Future<Output = Result<Vec<PreparedDevice>, String>> + Send;

    /// The last pod with the claim has ended: undoes [`ResourceDriver::prepare`], if it was done.
    fn unprepare(&self, claim: ClaimName) -> impl Future<Output = Result<(), String>> + Send;
}

/// A ResourceClaim.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ClaimName {
    /// Namespace of the claim, and of the pods that have it.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Differs from that of an earlier claim of the same name.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Unique in its namespace.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A device that containers with a claim have.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PreparedDevice {
    /// Requests in the claim that it was allocated for.
    #[prost(string, repeated, tag = "1")]
    pub requests: Vec<String>,
    /// As in the ResourceSlice that offers it.
    #[prost(string, tag = "2")]
    pub pool: String,
    /// Unique in its pool.
    #[prost(string, tag = "3")]
    pub device: String,
    /// Devices of CDI files, as `VENDOR/CLASS=NAME`.
    #[prost(string, repeated, tag = "4")]
    pub cdi_devices: Vec<String>,
}

/// Serves the driver `name` to the kubelet whose directory is `kubelet`, until the returned future is dropped.
pub fn serve<D: ResourceDriver>(
    driver: Arc<D>,
    name: &str,
    kubelet: &Path,
) -> io::Result<impl Future<Output = io::Result<()>> + use<D>> {
    let (own, registry) = (kubelet.join("plugins").join(name), kubelet.join("plugins_registry"));
    for folder in [&own, &registry] {
        DirBuilder::new().mode(0o750).recursive(true).create(folder)?;
    }
    let socket = own.join("dra.sock");
    let driver = server::serve(Arc::new(Driver(driver)), &socket)?;
    let registration = Arc::new(Registration { name: name.to_owned(), socket });
    // The kubelet asks as soon as it sees this socket. It sends the socket's path as `:authority`, with `/` as `%2F`, which is one only
    // where it stands before an `@` (RFC 3986, 3.2).
    let socket = registry.join(format!("{name}@reg.sock"));
    let registration = server::serve(registration, &socket)?;
    Ok(async {
        tokio::select! {
            ended = driver => ended,
            ended = registration => ended,
        }
    })
}

/// The methods of a driver.
struct Driver<D>(Arc<D>);

impl<D: ResourceDriver> Methods for Driver<D> {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";

    async fn answer(self: Arc<Self>, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        let driver = &self.0;
        match method {
            "NodePrepareResources" => unary(request, |asked| prepare(Arc::clone(driver), asked)).await,
            "NodeUnprepareResources" => unary(request, |asked| unprepare(Arc::clone(driver), asked)).await,
            method => server::unimplemented(method),
        }
    }
}

async fn prepare(driver: Arc<impl ResourceDriver>, asked: Claims) -> Result<AllPrepared, Status> {
    let mut claims = HashMap::new();
    for claim in asked.claims {
        let (uid, shown) = (claim.uid.clone(), format!("{}/{}", claim.namespace, claim.name));
        let prepared = match driver.prepare(claim).await {
            Ok(devices) => Prepared { devices, error: String::new() },
            Err(error) => {
                warn!("claim {shown} cannot be prepared: {error}");
                Prepared { devices: Vec::new(), error }
            }
        };
        claims.insert(uid, prepared);
    }
    Ok(AllPrepared { claims })
}

async fn unprepare(driver: Arc<impl ResourceDriver>, asked: Claims) -> Result<AllUnprepared, Status> {
    let mut claims = HashMap::new();
    for claim in asked.claims {
        let (uid, shown) = (claim.uid.clone(), format!("{}/{}", claim.namespace, claim.name));
        let error = driver.unprepare(claim).await.err().unwrap_or_default();
        if !error.is_empty() {
            warn!("claim {shown} cannot be unprepared: {error}");
        }
        claims.insert(uid, Unprepared { error });
    }
    Ok(AllUnprepared { claims })
}

/// The driver that is registered, and the methods by which the kubelet learns of it.
struct Registration {
    name: String,
    /// Socket of its service.
    socket: PathBuf,
}

impl Methods for Registration {
    const NAME: &'static str = "pluginregistration.Registration";

    async fn answer(self: Arc<Self>, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        match method {
            "GetInfo" => unary(request, |_: Empty| ready(Ok::<_, Status>(self.info()))).await,
            "NotifyRegistrationStatus" => unary(request, |status| ready(Ok::<_, Status>(self.hear(&status)))).await,
            method => server::unimplemented(method),
        }
    }
}

impl Registration {
    fn info(&self) -> Info {
        Info {
            kind: "DRAPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.socket.display().to_string(),
            versions: vec!["v1.DRAPlugin".to_owned()],
        }
    }

    fn hear(&self, status: &RegistrationStatus) -> Empty {
        if status.is_registered {
            info!("the kubelet knows the driver `{}`", self.name);
        } else {
            warn!("the kubelet does not take the driver `{}`: {}", self.name, status.error);
        }
        Empty {}
    }
}

/// `NodePrepareResourcesRequest`, and the same for the other method.
#[derive(Clone, PartialEq, Message)]
struct Claims {
    #[prost(message, repeated, tag = "1")]
    claims: Vec<ClaimName>,
}

#[derive(Clone, PartialEq, Message)]
struct AllPrepared {
    /// By the claim's UID, as below.
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, Prepared>,
}

#[derive(Clone, PartialEq, Message)]
struct Prepared {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<PreparedDevice>,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct AllUnprepared {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, Unprepared>,
}

#[derive(Clone, PartialEq, Message)]
struct Unprepared {
    #[prost(string, tag = "1")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    endpoint: String,
    #[prost(string, repeated, tag = "4")]
    versions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    is_registered: bool,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Empty {}
