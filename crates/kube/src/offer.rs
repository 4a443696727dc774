//! The plugin of a network: its server, its registration, the health of its devices.

use crate::collector::holders;
use crate::slots::{SlotError, Slots};
use rdmesh_fabric::{ENDPOINT_MOUNT, mounted_libraries};
use rdmesh_kubelet::device_plugin::{Allocation, Device, DevicePlugin, HEALTHY, Mount, Refusal, UNHEALTHY, serve};
use rdmesh_kubelet::registration::{SOCKET, register};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

/// The device plugin of a network.
pub(crate) struct Offer {
    slots: Arc<Slots>,
    devices: watch::Sender<Vec<Device>>,
    /// The kubelet's socket that tells which pods have which devices.
    pods: PathBuf,
    /// Libraries that programs load, with colons between them.
    libraries: String,
}

impl Offer {
    pub(crate) fn new(slots: Arc<Slots>, pods: PathBuf, is_accelerated: bool) -> Self {
        let (devices, _) = watch::channel(devices(&slots, true));
        Self { slots, devices, pods, libraries: mounted_libraries(is_accelerated) }
    }

    /// Serves the kubelet whose plugins have their sockets in `folder`, for ever.
    pub(crate) async fn run(self: Arc<Self>, folder: PathBuf) {
        tokio::join!(self.watch_router(), Arc::clone(&self).stay_registered(folder));
    }

    /// Tells the kubelet when the router ends, and when it is back: no pod gets a device between.
    async fn watch_router(&self) {
        loop {
            sleep(HEALTH).await;
            let slots = Arc::clone(&self.slots);
            let is_usable = spawn_blocking(move || slots.is_usable()).await.unwrap_or(false);
            let now = devices(&self.slots, is_usable);
            let has_changed = self.devices.send_if_modified(|known| {
                let has_changed = *known != now;
                *known = now;
                has_changed
            });
            match (has_changed, is_usable) {
                (true, true) => info!("the router is back: pods get `{}` again", self.slots.resource()),
                (true, false) => warn!("the router does not answer: no pod gets `{}`", self.slots.resource()),
                (false, _) => {}
            }
        }
    }

    /// Serves, and registers again whenever the kubelet has started again: it forgets its plugins, and removes their sockets.
    async fn stay_registered(self: Arc<Self>, folder: PathBuf) {
        let name = format!("rdmesh-{}.sock", self.slots.resource().replace('/', "-"));
        let mut last = String::new();
        loop {
            let failure = match serve(Arc::clone(&self), &folder.join(&name)) {
                Err(error) => format!("{}: {error}", folder.display()),
                Ok(served) => tokio::select! {
                    ended = served => ended.err().map_or_else(String::new, |error| error.to_string()),
                    failure = self.register_until_lost(&folder, &name) => failure,
                },
            };
            if failure != last && !failure.is_empty() {
                warn!("no kubelet to offer `{}` to, will try again: {failure}", self.slots.resource());
            }
            last = failure;
            sleep(AGAIN).await;
        }
    }

    /// Registers with the kubelet; ends with what has failed, or with nothing when the kubelet has started again.
    async fn register_until_lost(&self, folder: &Path, name: &str) -> String {
        let (kubelet, own) = (folder.join(SOCKET), folder.join(name));
        let before = identity(&kubelet).ok();
        let resource = self.slots.resource();
        if let Err(error) = register(folder, name, &resource).await {
            return error.to_string();
        }
        info!("the kubelet knows `{resource}`: {} devices", self.slots.names().count());
        while identity(&kubelet).ok() == before && own.exists() {
            sleep(AGAIN).await;
        }
        String::new()
    }
}

impl DevicePlugin for Offer {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    async fn allocate(&self, asked: Vec<String>) -> Result<Allocation, Refusal> {
        let slots = Arc::clone(&self.slots);
        let directory = blocking(move || slots.reserve(&asked)).await?;
        let mount =
            Mount { inside: ENDPOINT_MOUNT.to_owned(), host: directory.display().to_string(), is_read_only: true };
        let variables = HashMap::from([("LD_PRELOAD".to_owned(), self.libraries.clone())]);
        Ok(Allocation { variables, mounts: vec![mount] })
    }

    async fn start(&self, asked: Vec<String>) -> Result<(), Refusal> {
        // An endpoint whose pod cannot be told has no labels, and works.
        let holders = holders(&self.slots, &self.pods).await.unwrap_or_default();
        let slots = Arc::clone(&self.slots);
        blocking(move || slots.start(&asked, &holders)).await
    }
}

/// All devices of a network.
fn devices(slots: &Slots, are_healthy: bool) -> Vec<Device> {
    let health = if are_healthy { HEALTHY } else { UNHEALTHY };
    slots.names().map(|id| Device { id, health: health.to_owned() }).collect()
}

/// Executes what waits for the router on a thread that serves no one else.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, SlotError> + Send + 'static,
) -> Result<T, Refusal> {
    let done = spawn_blocking(act).await.map_err(|error| Refusal::Unavailable(error.to_string()))?;
    done.map_err(|error| match error {
        SlotError::NotOne { .. } | SlotError::Unknown(_) => Refusal::Invalid(error.to_string()),
        SlotError::Directory { .. } | SlotError::Router(_) => Refusal::Unavailable(error.to_string()),
    })
}

/// Which socket is at a path: that of a kubelet that has started again is another one.
fn identity(socket: &Path) -> io::Result<(u64, i64)> {
    let file = std::fs::symlink_metadata(socket)?;
    Ok((file.ino(), file.ctime_nsec()))
}

/// Time between two looks at the router.
const HEALTH: Duration = Duration::from_secs(2);
/// Time between two looks at the kubelet's sockets, and until the next attempt.
const AGAIN: Duration = Duration::from_secs(1);
