//! Pools of a node's devices, as the API server has them (`ResourceSlice`).

use crate::words;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use rdmesh_fabric::Client;
use rdmesh_kubelet::{DRIVER, Offered};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

/// Keeps the API server's slices as this node offers its networks.
pub(crate) struct Publisher {
    node: String,
    prefix: String,
    networks: Vec<Offered>,
    server: kube::Client,
}

impl Publisher {
    pub(crate) fn new(node: &str, prefix: &str, networks: &[Offered], server: kube::Client) -> Self {
        Self { node: node.to_owned(), prefix: prefix.to_owned(), networks: networks.to_vec(), server }
    }

    /// Publishes the pools, for ever. While the router does not answer they are empty, so that no pod is placed here.
    pub(crate) async fn run(&self, router: Client) {
        let (mut last, mut looked_at, mut was_usable) = (String::new(), None::<Instant>, None);
        loop {
            let router = router.clone();
            let is_usable = spawn_blocking(move || router.status().is_ok()).await.unwrap_or(false);
            if was_usable != Some(is_usable) || looked_at.is_none_or(|at| at.elapsed() > PERIOD) {
                match self.publish(is_usable).await {
                    Ok(()) => {
                        (looked_at, was_usable) = (Some(Instant::now()), Some(is_usable));
                        last.clear();
                    }
                    Err(failure) if failure != last => {
                        warn!("cannot publish the node's devices, will try again: {failure}");
                        last = failure;
                    }
                    Err(_) => {}
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn publish(&self, is_usable: bool) -> Result<(), String> {
        let text = |error: kube::Error| words(&error);
        let slices: Api<ResourceSlice> = Api::all(self.server.clone());
        let own = format!("spec.driver={DRIVER},spec.nodeName={}", self.node);
        let present = slices.list(&ListParams::default().fields(&own)).await.map_err(text)?.items;
        let wanted = self.wanted(&present, is_usable);
        if wanted.is_empty() {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.server.clone());
        let owner = owner(&nodes.get(&self.node).await.map_err(text)?);
        for change in wanted {
            match change {
                Change::Set(mut slice) => {
                    slice.metadata.owner_references = Some(vec![owner.clone()]);
                    let (name, parameters) = (slice.name_any(), PostParams::default());
                    match slice.metadata.resource_version {
                        Some(_) => slices.replace(&name, &parameters, &slice).await.map_err(text)?,
                        None => slices.create(&parameters, &slice).await.map_err(text)?,
                    };
                }
                Change::Remove(name) => drop(slices.delete(&name, &DeleteParams::default()).await.map_err(text)?),
            }
        }
        let count: u32 = self.networks.iter().map(|one| u32::from(one.count)).sum();
        info!(node = self.node, devices = if is_usable { count } else { 0 }, "the API server knows the node's devices");
        Ok(())
    }

    /// Changes by which `present` becomes what this node offers. A pool of which a slice changes is a new generation of all
    /// its slices: the scheduler waits for all of them.
    fn wanted(&self, present: &[ResourceSlice], is_usable: bool) -> Vec<Change> {
        let (mut changes, mut named) = (Vec::new(), Vec::new());
        for offered in &self.networks {
            let pool = self.pool(offered);
            let before: Vec<&ResourceSlice> = present.iter().filter(|slice| slice.spec.pool.name == pool).collect();
            let latest = before.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
            let same = self.slices(offered, is_usable, latest);
            let is_there = |slice: &ResourceSlice| {
                before.iter().any(|known| known.metadata.name == slice.metadata.name && known.spec == slice.spec)
            };
            if before.len() != same.len() || !same.iter().all(is_there) {
                for mut slice in self.slices(offered, is_usable, latest + 1) {
                    let known = present.iter().find(|known| known.metadata.name == slice.metadata.name);
                    slice.metadata.resource_version = known.and_then(|known| known.metadata.resource_version.clone());
                    changes.push(Change::Set(Box::new(slice)));
                }
            }
            named.extend(same.into_iter().filter_map(|slice| slice.metadata.name));
        }
        let names = present.iter().filter_map(|slice| slice.metadata.name.clone());
        changes.extend(names.filter(|name| !named.contains(name)).map(Change::Remove));
        changes
    }

    /// Name of a network's pool.
    fn pool(&self, offered: &Offered) -> String {
        format!("{}/{}", self.node, offered.network)
    }

    /// The slices of a network's pool; one without devices while there is no router.
    fn slices(&self, offered: &Offered, is_usable: bool, generation: i64) -> Vec<ResourceSlice> {
        let devices = if is_usable { self.devices(offered) } else { Vec::new() };
        let parts: Vec<&[Device]> = if devices.is_empty() { vec![&[]] } else { devices.chunks(MOST).collect() };
        let count = parts.len() as i64;
        let slice = |(number, part): (usize, &&[Device])| ResourceSlice {
            metadata: ObjectMeta {
                name: Some(format!("{}-{DRIVER}-{}-{number}", self.node, offered.network)),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                node_name: Some(self.node.clone()),
                pool: ResourcePool { generation, name: self.pool(offered), resource_slice_count: count },
                // The API server leaves an empty list away.
                devices: Some(part.to_vec()).filter(|devices| !devices.is_empty()),
                ..ResourceSliceSpec::default()
            },
        };
        parts.iter().enumerate().map(slice).collect()
    }

    fn devices(&self, offered: &Offered) -> Vec<Device> {
        let network = DeviceAttribute { string: Some(offered.network.to_string()), ..DeviceAttribute::default() };
        let attributes = BTreeMap::from([("network".to_owned(), network)]);
        let device = |number| Device {
            name: format!("{}{number}", self.prefix),
            attributes: Some(attributes.clone()),
            ..Device::default()
        };
        (0..offered.count).map(device).collect()
    }
}

/// A change of the API server's slices.
#[derive(Clone, PartialEq, Debug)]
enum Change {
    /// This slice is there: made, or in place of the one with its resource version.
    Set(Box<ResourceSlice>),
    /// The slice of that name is not.
    Remove(String),
}

/// Slices go with their node.
fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name_any(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// Time between two looks at the router, and between two at the API server's slices.
const PAUSE: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_secs(30);
/// Most devices of a slice (`ResourceSliceMaxDevices`).
const MOST: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(networks: &[&str]) -> Publisher {
        let networks: Vec<Offered> = networks.iter().map(|text| text.parse().unwrap()).collect();
        let server = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        Publisher::new("node-1", "claim-ab-", &networks, server)
    }

    /// Slices of the API server after changes.
    fn after(present: &[ResourceSlice], changes: Vec<Change>) -> Vec<ResourceSlice> {
        let mut slices = present.to_vec();
        for change in changes {
            let name = match &change {
                Change::Set(slice) => slice.metadata.name.clone(),
                Change::Remove(name) => Some(name.clone()),
            };
            let before = slices.iter().position(|slice| slice.metadata.name == name).map(|at| slices.remove(at));
            match change {
                Change::Set(mut slice) => {
                    let version = before.and_then(|before| before.metadata.resource_version);
                    assert_eq!(slice.metadata.resource_version, version, "{name:?}");
                    slice.metadata.resource_version = Some(slice.spec.pool.generation.to_string());
                    slices.push(*slice);
                }
                Change::Remove(_) => assert!(before.is_some(), "{name:?}"),
            }
        }
        slices
    }

    fn shape(slices: &[ResourceSlice]) -> Vec<(&str, i64, i64, usize)> {
        let mut shape: Vec<_> = slices
            .iter()
            .map(|slice| {
                let ResourcePool { generation, resource_slice_count, .. } = slice.spec.pool;
                let devices = slice.spec.devices.as_ref().map_or(0, Vec::len);
                (slice.metadata.name.as_deref().unwrap(), generation, resource_slice_count, devices)
            })
            .collect();
        shape.sort_unstable();
        shape
    }

    #[tokio::test]
    async fn pools_become_what_is_offered_and_then_stay() {
        let (large, small) = (publisher(&["blue:200", "red:4"]), publisher(&["blue:8"]));
        let first = after(&[], large.wanted(&[], true));
        assert_eq!(
            shape(&first),
            [
                ("node-1-rdmesh.dev-blue-0", 1, 2, 128),
                ("node-1-rdmesh.dev-blue-1", 1, 2, 72),
                ("node-1-rdmesh.dev-red-0", 1, 1, 4),
            ]
        );
        assert_eq!(large.wanted(&first, true), []);
        let second = after(&first, small.wanted(&first, true));
        assert_eq!(shape(&second), [("node-1-rdmesh.dev-blue-0", 2, 1, 8)]);
        assert_eq!(small.wanted(&second, true), []);
    }

    #[tokio::test]
    async fn pools_are_empty_while_there_is_no_router() {
        let publisher = publisher(&["blue:8"]);
        let first = after(&[], publisher.wanted(&[], true));
        let without = after(&first, publisher.wanted(&first, false));
        assert_eq!(shape(&without), [("node-1-rdmesh.dev-blue-0", 2, 1, 0)]);
        assert_eq!(publisher.wanted(&without, false), []);
        let again = after(&without, publisher.wanted(&without, true));
        assert_eq!(shape(&again), [("node-1-rdmesh.dev-blue-0", 3, 1, 8)]);
    }
}
