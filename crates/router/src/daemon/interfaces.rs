//! Interfaces of this host that are attached to tenant networks.

use super::error::HostError;
use rdmesh_fabric::{Name, Network, Registry};
use rdmesh_overlay::Overlay;
use std::sync::Arc;

/// The attached interfaces.
pub struct Interfaces {
    registry: Registry,
    /// None in a rootless router.
    overlay: Option<Arc<Overlay>>,
}

impl Interfaces {
    pub(super) fn new(registry: Registry, overlay: Option<Arc<Overlay>>) -> Self {
        Self { registry, overlay }
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
        self.all(&network.name)
    }

    /// Gives an interface of `network` back to this host; returns those that stay.
    pub fn detach(&self, network: &Name, name: &str) -> Result<Vec<String>, HostError> {
        let overlay = self.overlay.as_ref().ok_or(HostError::NoNamespaces)?;
        overlay.detach(network, name)?;
        tracing::info!(%network, interface = name, "interface detached");
        self.all(network)
    }
}
