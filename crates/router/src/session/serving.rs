//! Service of the sockets in programs' namespaces by the workers.

use crate::io::{PlainSockets, PlainWatcher};
use crate::worker::ShardHandle;
use rdmesh_nic::PlainId;
use std::sync::Arc;

/// The workers, which serve the sockets of programs' namespaces.
pub(super) struct Serving(pub(super) Vec<ShardHandle>);

impl PlainWatcher for Serving {
    fn opened(&self, sockets: &Arc<PlainSockets>) {
        for shard in &self.0 {
            let sockets = Arc::clone(sockets);
            if let Err(error) = shard.call(move |shard| shard.add_plain(sockets)) {
                tracing::error!(%error, "cannot watch the sockets of a network namespace");
            }
        }
    }

    fn closed(&self, id: PlainId) {
        for shard in &self.0 {
            shard.call(move |shard| shard.remove_plain(id));
        }
    }
}
