//! The API server's pods, namespaces and policies, as they are now.

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use tracing::warn;

/// Copies of the objects, which follow the API server.
pub(crate) struct Watched {
    pods: Store<Pod>,
    namespaces: Store<Namespace>,
    policies: Store<NetworkPolicy>,
    /// Says that something has changed, or why it cannot be told.
    changes: SelectAll<BoxStream<'static, Result<(), watcher::Error>>>,
}

/// The objects at one time.
pub(crate) struct Snapshot {
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) namespaces: Vec<Arc<Namespace>>,
    pub(crate) policies: Vec<NetworkPolicy>,
}

/// The API server's objects are not followed any more.
#[derive(Debug, thiserror::Error)]
#[error("the objects of the API server are not followed any more")]
pub(crate) struct WatchError;

impl Watched {
    /// Begins to follow.
    pub(crate) fn start(client: kube::Client) -> Self {
        let mut changes = SelectAll::new();
        let pods = follow(Api::all(client.clone()), &mut changes);
        let namespaces = follow(Api::all(client.clone()), &mut changes);
        let policies = follow(Api::all(client), &mut changes);
        Self { pods, namespaces, policies, changes }
    }

    /// Waits until all objects are known: with a part of them only, groups would be wrong.
    pub(crate) async fn ready(&mut self) -> Result<(), WatchError> {
        let (pods, namespaces, policies) = (self.pods.clone(), self.namespaces.clone(), self.policies.clone());
        let known = async move {
            tokio::try_join!(pods.wait_until_ready(), namespaces.wait_until_ready(), policies.wait_until_ready())
        };
        tokio::pin!(known);
        loop {
            tokio::select! {
                known = &mut known => return known.map(drop).map_err(|_| WatchError),
                changed = self.changed() => changed?,
            }
        }
    }

    /// Waits for a change.
    pub(crate) async fn changed(&mut self) -> Result<(), WatchError> {
        loop {
            match self.changes.next().await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => warn!("cannot follow the API server, will try again: {error}"),
                None => return Err(WatchError),
            }
        }
    }

    /// The objects as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            pods: self.pods.state(),
            namespaces: self.namespaces.state(),
            policies: self.policies.state().iter().map(|policy| (**policy).clone()).collect(),
        }
    }
}

/// Follows objects of a kind: their copies, while `changes` is asked.
fn follow<K>(api: Api<K>, changes: &mut SelectAll<BoxStream<'static, Result<(), watcher::Error>>>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    <K as Lookup>::DynamicType: Eq + Hash + Clone + Default,
{
    let writer = Writer::<K>::default();
    let store = writer.as_reader();
    let objects = watcher(api, watcher::Config::default()).default_backoff().reflect(writer);
    changes.push(objects.map(|event| event.map(drop)).boxed());
    store
}
