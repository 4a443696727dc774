//! Endpoints whose owners have ended.

use super::attached::{AttachedEndpoint, kernel_has_undelivered};
use super::{Attached, Endpoints};
use crate::daemon::error::HostError;
use crate::daemon::full_name::FullName;
use crate::endpoint::EndpointId;
use rdmesh_overlay::{Errors, NamespaceId};
use std::path::Path;
use std::time::Duration;

impl Endpoints {
    /// Removes endpoints as their owners end, or as the last devices there that outlive their programs do, until [`Endpoints::stop_watching`].
    pub(crate) fn remove_orphans(&self) {
        while let Some(id) = self.owners.next() {
            if let Some(time) = self.sessions.lingers_for(id) {
                self.owners.look_again(id, time);
                continue;
            }
            if is_delivering(self, id) {
                self.owners.look_again(id, Duration::ZERO);
                continue;
            }
            if let Err(error) = self.remove_orphan(id) {
                tracing::warn!(%error, "removing an endpoint whose owner has ended");
            }
        }
    }

    /// Ends [`Endpoints::remove_orphans`].
    pub(crate) fn stop_watching(&self) {
        self.owners.stop();
    }

    /// Removes the endpoint `id`, unless it is gone already, or has another owner.
    fn remove_orphan(&self, id: EndpointId) -> Result<(), HostError> {
        let mut attached = self.attached();
        let key = attached.endpoints.iter().find(|(_, e)| e.id == id && e.is_orphan()).map(|(key, _)| key.clone());
        let Some(key) = key else { return Ok(()) };
        // Its file goes with the endpoint; the kernel's namespace stays as long as a process is in it.
        let namespace = attached.endpoints.get(&key).and_then(|e| NamespaceId::of(e.namespace.as_deref()?));
        let is_of_pool = self.end(&mut attached, &key)?;
        drop(attached);
        if is_of_pool {
            // Others of the pool have processes there.
            return Ok(());
        }
        let left = namespace.map(NamespaceId::processes).unwrap_or_default();
        if !left.is_empty() {
            let (count, processes) = (left.len(), left.join(", "));
            tracing::warn!(network = %key.network, name = %key.name, count, processes, "processes are left in a removed endpoint");
        }
        Ok(())
    }

    /// Removes endpoints whose owners have ended a moment ago.
    pub(crate) fn forget_dead(&self) -> Result<(), HostError> {
        self.remove_dead(&mut self.attached(), |_| false)
    }

    /// Removes endpoints whose owners have ended a moment ago, but for those that are kept: names and addresses are free again.
    pub(super) fn remove_dead(
        &self,
        attached: &mut Attached,
        is_kept: impl Fn(&mut AttachedEndpoint) -> bool,
    ) -> Result<(), HostError> {
        let is_dead = |endpoint: &mut AttachedEndpoint| {
            endpoint.is_orphan() && self.sessions.lingers_for(endpoint.id).is_none() && !is_kept(endpoint)
        };
        let dead = attached.endpoints.iter_mut().filter_map(|(key, endpoint)| is_dead(endpoint).then_some(key));
        let keys: Vec<_> = dead.cloned().collect();
        Errors::all(keys.iter().map(|key| self.end(attached, key).map(drop)))
    }

    /// Removes an endpoint whose owner has ended; one of a pool is released instead. Whether it was one.
    fn end(&self, attached: &mut Attached, key: &FullName) -> Result<bool, HostError> {
        let is_of_pool = attached.endpoints.get(key).is_some_and(|attached| attached.endpoint.pool.is_some());
        if is_of_pool { self.pools().rest(attached, key) } else { self.remove_attached(attached, key).map(drop) }?;
        Ok(is_of_pool)
    }
}

/// Whether what programs of endpoint `id` have sent is still to be delivered, as [`AttachedEndpoint::is_delivering`] says.
fn is_delivering(endpoints: &Endpoints, id: EndpointId) -> bool {
    let of_id = |e: &&mut AttachedEndpoint| e.id == id && e.is_orphan();
    let mut attached = endpoints.attached();
    let Some(ended) = attached.endpoints.values_mut().find(of_id) else { return false };
    if !ended.is_delivering() {
        return false;
    }
    let Some(namespace) = ended.own_namespace().map(Path::to_owned) else { return true };
    drop(attached);
    // Looked at again while nothing is locked: that takes long on a host with many sockets.
    let has_undelivered = kernel_has_undelivered(&namespace);
    let mut attached = endpoints.attached();
    attached.endpoints.values_mut().find(of_id).is_some_and(|ended| {
        ended.set_undelivered(has_undelivered);
        ended.is_delivering()
    })
}
