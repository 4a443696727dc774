//! Endpoints by number and by address, and the paths to their peers.

use super::node::Node;
use super::tracked::Tracked;
use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use rdmesh_nic::cm::{CmPath, Mad};
use rdmesh_nic::{ExternalId, ExternalPort, ReceivedMad, Route};
use rdmesh_verbs::{Gid, Vni};
use rustix::io::Errno;
use std::collections::HashMap;
use std::net::IpAddr;

/// The endpoints of a host, and where other addresses are.
pub(super) struct Places {
    nodes: HashMap<EndpointId, Node>,
    /// The same by address.
    addresses: HashMap<(Vni, Gid), EndpointId>,
    /// Endpoints that receive from the sockets of a namespace, with the number of channels and devices of each.
    external_paths: HashMap<ExternalId, (ExternalPort, HashMap<EndpointId, u32>)>,
    routes: SharedRoutes,
}

impl Places {
    /// No endpoints yet.
    pub(super) fn new(routes: SharedRoutes) -> Self {
        Self { nodes: HashMap::new(), addresses: HashMap::new(), external_paths: HashMap::new(), routes }
    }

    /// Adds an endpoint.
    pub(super) fn add(&mut self, endpoint: EndpointId, node: Node) {
        for gid in node.spec.gids.iter().filter(|gid| !gid.is_zero()) {
            self.addresses.insert((node.spec.vni, *gid), endpoint);
        }
        self.nodes.insert(endpoint, node);
    }

    /// Removes an endpoint.
    pub(super) fn remove(&mut self, endpoint: EndpointId) {
        self.nodes.remove(&endpoint);
        self.addresses.retain(|_, at| *at != endpoint);
    }

    pub(super) fn node(&self, endpoint: EndpointId) -> Result<&Node, Errno> {
        self.nodes.get(&endpoint).ok_or(Errno::NODEV)
    }

    pub(super) fn node_mut(&mut self, endpoint: EndpointId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&endpoint).ok_or(Errno::NODEV)
    }

    /// Number of ports in use.
    pub(super) fn ports(&self) -> usize {
        self.nodes.values().map(|node| node.ports.len()).sum()
    }

    /// The endpoint at an address.
    pub(super) fn at(&self, vni: Vni, gid: Gid) -> Option<EndpointId> {
        self.addresses.get(&(vni, gid)).copied()
    }

    /// Location of an address of a tenant network.
    pub(super) fn route(&self, vni: Vni, gid: Gid) -> Route {
        self.routes.find(vni, gid)
    }

    /// Whether security groups allow a connection. An endpoint may always connect to itself.
    pub(super) fn may_connect(&self, vni: Vni, from: Gid, to: Gid, port: u16) -> bool {
        let at = self.at(vni, from);
        at.is_some() && at == self.at(vni, to) || self.routes.may_connect(vni, from, to, port)
    }

    /// Lets the packets of a connection through that groups allow, in both directions.
    pub(super) fn track(&self, vni: Vni, from: Gid, to: Gid) -> Tracked {
        Tracked::begin(&self.routes, vni, from, to)
    }

    /// The routes, with the connections that are tracked.
    #[cfg(test)]
    pub(super) fn routes(&self) -> &SharedRoutes {
        &self.routes
    }

    /// Sets which addresses may connect to which.
    #[cfg(test)]
    pub(super) fn set_access(&self, access: rdmesh_nic::AccessRules) {
        self.routes.change(|routes| routes.set_access(access.into()));
    }

    /// Whether an address that an endpoint names belongs to no endpoint.
    pub(super) fn leads_out(&self, endpoint: EndpointId, ip: IpAddr) -> bool {
        let is_self = ip.is_loopback() || ip.is_unspecified();
        let is_external = |node: &Node| self.route(node.spec.vni, Gid::from_ip(ip)) == Route::External;
        !is_self && self.nodes.get(&endpoint).is_some_and(is_external)
    }

    /// Records that a channel or an opened device of an endpoint has a path to external peers.
    pub(super) fn add_external_path(&mut self, endpoint: EndpointId, external: ExternalPort) {
        let (_, users) = self.external_paths.entry(external.id).or_insert_with(|| (external, HashMap::new()));
        *users.entry(endpoint).or_default() += 1;
    }

    /// It has it no longer.
    pub(super) fn remove_external_path(&mut self, endpoint: EndpointId, id: ExternalId) {
        let Some((_, users)) = self.external_paths.get_mut(&id) else { return };
        if let Some(count) = users.get_mut(&endpoint) {
            *count -= 1;
            if *count == 0 {
                users.remove(&endpoint);
            }
        }
        if users.is_empty() {
            self.external_paths.remove(&id);
        }
    }

    /// The source and destination of a message from another machine; none where no endpoint here has the destination.
    pub(super) fn locate(&self, mad: &ReceivedMad) -> Option<Mad> {
        let found = match (mad.external_origin, mad.vni) {
            (None, Some(vni)) => self.at(vni, mad.dest).map(|_| (vni, None)),
            // Its sender is not authenticated: it must not use an address to which another path leads.
            (Some(id), _) => {
                let found = self.find_outside(id, mad.dest);
                found.filter(|(vni, _)| self.route(*vni, mad.source) == Route::External)
            }
            (None, None) => None,
        };
        let (vni, external) = found?;
        Some(Mad { path: CmPath { vni, local: mad.dest, remote: mad.source, external }, bytes: mad.bytes })
    }

    /// The path by which a message leaves. Sockets that are about to be closed still send the final messages of their
    /// connections: by the present external path of the address, where the one by which it was connected has gone.
    pub(super) fn present(&self, path: CmPath) -> CmPath {
        let is_gone = path.external.is_some_and(|external| !self.external_paths.contains_key(&external.id));
        let present = if is_gone { self.present_external_path(&path) } else { None };
        CmPath { external: present.or(path.external), ..path }
    }

    fn present_external_path(&self, path: &CmPath) -> Option<ExternalPort> {
        let endpoint = self.at(path.vni, path.local)?;
        self.external_paths.values().find(|(_, users)| users.contains_key(&endpoint)).map(|(external, _)| *external)
    }

    /// The network and sockets by which a message of an external peer reached `dest`.
    fn find_outside(&self, id: ExternalId, dest: Gid) -> Option<(Vni, Option<ExternalPort>)> {
        let (external, users) = self.external_paths.get(&id)?;
        let mut nodes = users.keys().filter_map(|endpoint| self.nodes.get(endpoint));
        nodes.find(|node| node.spec.gids.contains(&dest)).map(|node| (node.spec.vni, Some(*external)))
    }

    /// Whether no endpoint has a path to external peers.
    #[cfg(test)]
    pub(super) fn has_no_ways(&self) -> bool {
        self.external_paths.is_empty()
    }
}
