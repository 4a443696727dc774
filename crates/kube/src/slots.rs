//! The devices of a network, and the endpoint behind each.
//!
//! The kubelet knows a device by an identifier and gives it to one container at a time. The identifier is the name of the endpoint that
//! the container has: its slot. When the kubelet gives a slot to a container, the endpoint of the container before is removed; when
//! the container starts, the endpoint is made, unless `rdmesh-cni` has made it in the pod's network namespace before.

use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo};
use rdmesh_fabric::{Client, ClientError, Isolation, Labels, Name, StateDir, short_hash};
use rdmesh_kubelet::{Offered, RESOURCES};
use std::collections::{HashMap, HashSet};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::info;

/// The slots of a network on this node.
pub(crate) struct Slots {
    client: Client,
    state: StateDir,
    offered: Offered,
    /// Prefix of the names of this node's slots.
    prefix: String,
    /// Time after which a slot that no pod has is free. The kubelet names a pod's devices soon after it has given them.
    grace: Duration,
    /// Slots that have, or may have, an endpoint.
    taken: Mutex<HashMap<Name, Taken>>,
}

/// A slot that a container has.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// When the kubelet has spoken of it last.
    heard: Instant,
    is_announced: bool,
}

/// A pod's container that has a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) slot: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
}

/// Error of an operation on a slot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotError {
    #[error("a container has one endpoint of a network: ask for `{resource}: 1`")]
    NotOne { resource: String },
    #[error("`{0}` is no device of this node")]
    Unknown(String),
    #[error("{}: {source}", .file.display())]
    Directory { file: PathBuf, source: io::Error },
    #[error(transparent)]
    Router(#[from] ClientError),
}

impl Slots {
    /// The slots of a network on the node whose router `client` asks, with the endpoints that they have already.
    pub(crate) fn find(
        client: Client,
        state: StateDir,
        offered: Offered,
        grace: Duration,
    ) -> Result<Self, ClientError> {
        let prefix = format!("pod-{}-", short_hash(&[client.status()?.host.as_str()]));
        let taken = Taken { heard: Instant::now(), is_announced: false };
        let own = |info: EndpointInfo| Some(info.endpoint).filter(|own| own.network == offered.network);
        let known = client.endpoints()?.into_iter().filter_map(own).map(|endpoint| (endpoint.name, taken));
        let taken = known.filter(|(name, _)| name.as_str().starts_with(&prefix)).collect();
        Ok(Self { client, state, offered, prefix, grace, taken: Mutex::new(taken) })
    }

    /// The resource that pods ask for.
    pub(crate) fn resource(&self) -> String {
        format!("{RESOURCES}{}", self.offered.network)
    }

    /// All slots.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        (0..self.offered.count).map(|number| format!("{}{number}", self.prefix))
    }

    /// Whether the router can make endpoints.
    pub(crate) fn is_usable(&self) -> bool {
        self.client.status().is_ok()
    }

    /// Reserves a slot for a new container: nothing of the container before is left. Returns the directory that the new one mounts,
    /// and that the router fills when it makes the endpoint.
    pub(crate) fn reserve(&self, asked: &[String]) -> Result<PathBuf, SlotError> {
        let slot = self.slot(asked)?;
        let mut taken = self.taken();
        taken.insert(slot.clone(), Taken { heard: Instant::now(), is_announced: false });
        self.client.clear_endpoint(&self.offered.network, &slot)?;
        let directory = self.state.endpoints().join(format!("{}.{slot}", self.offered.network));
        match DirBuilder::new().mode(0o755).recursive(true).create(&directory) {
            Err(source) => Err(SlotError::Directory { file: directory, source }),
            Ok(()) => Ok(directory),
        }
    }

    /// Makes the endpoint of a container that starts, unless it is there: the container starts again, or `rdmesh-cni` has made it.
    /// `holders` are the pods' slots, as far as they are known.
    pub(crate) fn start(&self, asked: &[String], holders: &[Holder]) -> Result<(), SlotError> {
        let slot = self.slot(asked)?;
        if let Some(taken) = self.taken().get_mut(&slot) {
            taken.heard = Instant::now();
        }
        match self.client.endpoint(&self.offered.network, &slot) {
            Err(ClientError::Refused { status: 404, .. }) => {}
            found => return Ok(found.map(drop)?),
        }
        let holder = holders.iter().find(|holder| holder.slot == slot.as_str());
        let request = CreateEndpoint {
            isolation: Isolation::None,
            labels: holder.map(|holder| Labels::of_pod(&holder.namespace, &holder.pod)).unwrap_or_default(),
            ..CreateEndpoint::new(self.offered.network.clone(), slot)
        };
        Ok(self.client.create_endpoint(&request).map(drop)?)
    }

    /// Hears which slots pods have, and removes endpoints of those that no pod has had for some time.
    ///
    /// A kubelet that has just started may not know all of its pods, so an endpoint whose device is open stays, and one in a pod's
    /// network namespace, which `rdmesh-cni` removes with the pod.
    pub(crate) fn hear(&self, holders: &[Holder]) -> Result<(), ClientError> {
        let held: HashSet<&str> = holders.iter().map(|holder| holder.slot.as_str()).collect();
        let mut taken = self.taken();
        for holder in holders {
            let Ok(slot) = self.slot(std::slice::from_ref(&holder.slot)) else { continue };
            let heard = Taken { heard: Instant::now(), is_announced: false };
            let known = taken.entry(slot).or_insert(heard);
            known.heard = Instant::now();
            if !known.is_announced {
                known.is_announced = true;
                let (network, Holder { slot, namespace, pod }) = (&self.offered.network, holder);
                info!("endpoint `{network}/{slot}` is of pod {namespace}/{pod}");
            }
        }
        let is_left =
            |(name, slot): &(&Name, &Taken)| !held.contains(name.as_str()) && slot.heard.elapsed() > self.grace;
        let left: Vec<Name> = taken.iter().filter(is_left).map(|(name, _)| name.clone()).collect();
        if left.is_empty() {
            return Ok(());
        }
        let open: HashSet<Name> = self.client.contexts()?.into_iter().map(|context| context.endpoint).collect();
        for slot in left.into_iter().filter(|slot| !open.contains(slot)) {
            match self.client.endpoint(&self.offered.network, &slot) {
                Ok(info) if info.namespace.is_some() => continue,
                Ok(_) => {
                    self.client.clear_endpoint(&self.offered.network, &slot)?;
                    info!("endpoint `{}/{slot}` is removed: no pod has it", self.offered.network);
                }
                Err(ClientError::Refused { status: 404, .. }) => {}
                Err(error) => return Err(error),
            }
            taken.remove(&slot);
        }
        Ok(())
    }

    /// The slot that the kubelet means.
    fn slot(&self, asked: &[String]) -> Result<Name, SlotError> {
        let [slot] = asked else { return Err(SlotError::NotOne { resource: self.resource() }) };
        let number = slot.strip_prefix(&self.prefix).and_then(|number| number.parse::<u16>().ok());
        let is_own = number.is_some_and(|number| number < self.offered.count);
        let name = slot.parse().ok().filter(|_| is_own);
        name.ok_or_else(|| SlotError::Unknown(slot.clone()))
    }

    /// Held while endpoints are removed, so that none is that was just made.
    fn taken(&self) -> MutexGuard<'_, HashMap<Name, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
