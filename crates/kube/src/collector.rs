//! Removal of endpoints of pods that have ended: the kubelet does not tell a device plugin of them.

use crate::slots::{Holder, Slots};
use rdmesh_kubelet::KubeletError;
use rdmesh_kubelet::pod_resources::list;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

/// The pods' slots, by the kubelet at `socket`.
pub(crate) async fn holders(slots: &Slots, socket: &Path) -> Result<Vec<Holder>, KubeletError> {
    let resource = slots.resource();
    let own = list(socket).await?.into_iter().filter(|one| one.resource == resource);
    Ok(own.map(|one| Holder { slot: one.device, namespace: one.namespace, pod: one.pod }).collect())
}

/// Asks the kubelet at `socket` again and again which pods have which slots, for ever.
pub(crate) async fn run(slots: Arc<Slots>, socket: PathBuf) {
    let mut last = String::new();
    loop {
        let failure = look(&slots, &socket).await.err().unwrap_or_default();
        if failure != last && !failure.is_empty() {
            warn!("cannot tell which pods have `{}`, will try again: {failure}", slots.resource());
        }
        last = failure;
        sleep(PERIOD).await;
    }
}

async fn look(slots: &Arc<Slots>, socket: &Path) -> Result<(), String> {
    let holders = holders(slots, socket).await.map_err(|error| error.to_string())?;
    let slots = Arc::clone(slots);
    let heard = spawn_blocking(move || slots.hear(&holders)).await;
    heard.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Time between two questions.
const PERIOD: Duration = Duration::from_secs(5);
