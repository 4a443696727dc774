//! Claims made ready for the containers that have them.

use crate::cdi::{self, Files, Prepared};
use crate::claim::{Allocated, Device};
use crate::options::Options;
use crate::words;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use rdmesh_fabric::api::CreateEndpoint;
use rdmesh_fabric::{Client, ClientError, Isolation, Labels, Name};
use rdmesh_kubelet::dra::{ClaimName, PreparedDevice, ResourceDriver};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::spawn_blocking;
use tracing::info;

/// The driver of this node.
pub(crate) struct Driver {
    node: String,
    prefix: String,
    is_accelerated: bool,
    server: kube::Client,
    endpoints: Arc<Endpoints>,
}

/// The endpoints of claims.
struct Endpoints {
    router: Client,
    files: Files,
    /// Held while one is made ready or removed: the kubelet may ask for the same claim twice at once.
    turn: Mutex<()>,
}

impl Driver {
    /// The driver of a node whose endpoints' names begin with `prefix`.
    pub(crate) fn new(options: &Options, node: &str, prefix: &str, router: Client, server: kube::Client) -> Self {
        let endpoints = Endpoints { router, files: Files::new(&options.cdi_dir), turn: Mutex::new(()) };
        Self {
            node: node.to_owned(),
            prefix: prefix.to_owned(),
            is_accelerated: options.accel,
            server,
            endpoints: Arc::new(endpoints),
        }
    }

    /// Allocation of a claim, by the API server.
    async fn allocated(&self, claim: &ClaimName) -> Result<Allocated, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.server.clone(), &claim.namespace);
        let found = claims.get(&claim.name).await.map_err(|error| words(&error))?;
        let allocated = Allocated::of(&found, &claim.uid, &self.node, &self.prefix, self.is_accelerated);
        allocated.map_err(|error| error.to_string())
    }
}

impl ResourceDriver for Driver {
    async fn prepare(&self, claim: ClaimName) -> Result<Vec<PreparedDevice>, String> {
        let allocated = self.allocated(&claim).await?;
        let (endpoints, uid) = (Arc::clone(&self.endpoints), claim.uid.clone());
        let prepared = blocking(move || endpoints.prepare(&uid, &allocated)).await?;
        info!(devices = prepared.devices.len(), "claim {}/{} is prepared", claim.namespace, claim.name);
        let device = |one: &cdi::PreparedDevice| PreparedDevice {
            requests: vec![one.annotations.request.clone()],
            pool: format!("{}/{}", self.node, one.annotations.network),
            device: one.annotations.endpoint.to_string(),
            cdi_devices: vec![one.id()],
        };
        Ok(prepared.devices.iter().map(device).collect())
    }

    async fn unprepare(&self, claim: ClaimName) -> Result<(), String> {
        let endpoints = Arc::clone(&self.endpoints);
        blocking(move || endpoints.unprepare(&claim.uid)).await?;
        info!("claim {}/{} has ended", claim.namespace, claim.name);
        Ok(())
    }
}

impl Endpoints {
    /// Makes the endpoints of a claim. What the claim has already stays as it is.
    fn prepare(&self, uid: &str, allocated: &Allocated) -> Result<Prepared, String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = self.files.read(uid).map_err(|error| error.to_string())? {
            for device in &prepared.devices {
                let origin = &device.annotations;
                self.ensure(&origin.network, &origin.endpoint, &allocated.labels).map_err(|error| error.to_string())?;
            }
            return Ok(prepared);
        }
        for Device { network, endpoint, .. } in &allocated.devices {
            // Nothing is left of the claim before.
            self.files.forget(network, endpoint).map_err(|error| error.to_string())?;
            self.router.clear_endpoint(network, endpoint).map_err(|error| error.to_string())?;
        }
        let made = self.make(uid, allocated);
        if made.is_err() {
            for Device { network, endpoint, .. } in &allocated.devices {
                // Of a claim that fails nothing is left; its own error counts.
                let _ = self.router.clear_endpoint(network, endpoint);
            }
        }
        made
    }

    fn make(&self, uid: &str, allocated: &Allocated) -> Result<Prepared, String> {
        let mut folder = None;
        for Device { network, endpoint, .. } in &allocated.devices {
            let made = self.create(network, endpoint, &allocated.labels).map_err(|error| error.to_string())?;
            folder = made.parent().map(Path::to_owned);
        }
        let prepared = Prepared::new(uid, &allocated.devices, &folder.unwrap_or_default());
        self.files.write(uid, &prepared).map_err(|error| format!("CDI file: {error}"))?;
        Ok(prepared)
    }

    /// Makes an endpoint, unless it is there: `rdmesh-cni` may have made it, in the pod's network namespace.
    fn ensure(&self, network: &Name, endpoint: &Name, labels: &Labels) -> Result<(), ClientError> {
        match self.router.endpoint(network, endpoint) {
            Err(ClientError::Refused { status: 404, .. }) => self.create(network, endpoint, labels).map(drop),
            found => found.map(drop),
        }
    }

    /// Makes an endpoint. Returns its directory.
    fn create(&self, network: &Name, endpoint: &Name, labels: &Labels) -> Result<PathBuf, ClientError> {
        let request = CreateEndpoint {
            isolation: Isolation::None,
            labels: labels.clone(),
            ..CreateEndpoint::new(network.clone(), endpoint.clone())
        };
        self.router.create_endpoint(&request).map(|info| info.directory)
    }

    /// Removes what a claim has.
    fn unprepare(&self, uid: &str) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(prepared) = self.files.read(uid).map_err(|error| error.to_string())? else { return Ok(()) };
        for device in &prepared.devices {
            let origin = &device.annotations;
            self.router.clear_endpoint(&origin.network, &origin.endpoint).map_err(|error| error.to_string())?;
        }
        self.files.remove(uid).map_err(|error| error.to_string())
    }
}

/// Executes what waits for the router on a thread that serves no one else.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    spawn_blocking(act).await.unwrap_or_else(|error| Err(error.to_string()))
}
