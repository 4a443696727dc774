//! Service of the sockets in programs' namespaces by the workers.

use crate::io::{ExternalPathWatcher, ExternalSockets};
use crate::worker::ShardHandle;
use rdmesh_nic::ExternalId;
use std::sync::Arc;

/// The workers, which serve the sockets of programs' namespaces.
pub(super) struct Serving(pub(super) Vec<ShardHandle>);

impl ExternalPathWatcher for Serving {
    fn opened(&self, sockets: &Arc<ExternalSockets>) {
        for shard in &self.0 {
            let sockets = Arc::clone(sockets);
            if let Err(error) = shard.call(move |shard| shard.add_external(sockets)) {
                tracing::error!(%error, "cannot watch the sockets of a network namespace");
            }
        }
    }

    fn closed(&self, id: ExternalId) {
        for shard in &self.0 {
            shard.call(move |shard| shard.remove_external(id));
        }
    }
}
