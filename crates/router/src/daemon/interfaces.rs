//! Interfaces of this host that are attached to tenant networks.

use super::cluster::Allocator;
use super::error::HostError;
use rdmesh_fabric::{Name, Network, Registry, RegistryError};
use rdmesh_overlay::Overlay;
use std::sync::Arc;

/// The attached interfaces.
pub struct Interfaces {
    registry: Registry,
    /// None in a rootless router.
    overlay: Option<Arc<Overlay>>,
    /// None outside a cluster.
    allocator: Option<Arc<Allocator>>,
}

impl Interfaces {
    pub(super) fn new(registry: Registry, overlay: Option<Arc<Overlay>>, allocator: Option<Arc<Allocator>>) -> Self {
        Self { registry, overlay, allocator }
    }

    /// Has the cluster told of interfaces that a router which has died left attached.
    pub(super) fn restore(&self) -> Result<(), HostError> {
        if self.allocator.is_some() {
            self.registry.networks()?.iter().try_for_each(|network| self.tell(&network.name).map(drop))?;
        }
        Ok(())
    }

    /// The interfaces of this host that are part of `network`.
    pub fn all(&self, network: &Name) -> Result<Vec<String>, HostError> {
        Ok(self.overlay.as_ref().map_or(Ok(Vec::new()), |overlay| overlay.attached(network))?)
    }

    /// Makes an interface of this host a part of `network`; returns all that are.
    pub fn attach(&self, network: &Name, vni: Option<u32>, name: &str) -> Result<Vec<String>, HostError> {
        let overlay = self.overlay.as_ref().ok_or(HostError::NoNamespaces)?;
        let network: Network = self.registry.network(network, vni, &[])?;
        overlay.attach(&network, name)?;
        tracing::info!(network = %network.name, interface = name, "interface attached");
        self.tell(&network.name)
    }

    /// Gives an interface of `network` back to this host; returns those that stay.
    pub fn detach(&self, network: &Name, name: &str) -> Result<Vec<String>, HostError> {
        let overlay = self.overlay.as_ref().ok_or(HostError::NoNamespaces)?;
        let known = self.registry.find_network(network)?;
        overlay.detach(&known.ok_or_else(|| RegistryError::NoSuchNetwork(network.clone()))?, name)?;
        tracing::info!(%network, interface = name, "interface detached");
        self.tell(network)
    }

    /// Has the cluster told whether interfaces are attached to `network`; returns them.
    fn tell(&self, network: &Name) -> Result<Vec<String>, HostError> {
        let all = self.all(network)?;
        if let Some(allocator) = &self.allocator {
            allocator.set_attached(network, !all.is_empty());
        }
        Ok(all)
    }
}
