//! Management datagrams between the thread of rdma_cm and the workers.

use super::cm_server::CmServer;
use rdmesh_nic::cm::Mad;

impl CmServer {
    /// Handles received datagrams. The programs have their turn between two batches.
    pub(super) fn receive_mads(&mut self) {
        for _ in 0..TURN {
            let Some(mad) = self.mads.take() else { return };
            self.receive_mad(&mad);
        }
        self.post.notify();
    }

    /// Sends datagrams to other machines. Those that cannot be sent are lost, as on a network.
    pub(super) fn send_mads(&self, mads: Vec<Mad>) {
        let Some(shard) = self.shards.first().filter(|_| !mads.is_empty()) else { return };
        shard.post(move |shard| {
            let now = shard.now();
            for mad in &mads {
                let _ = shard.engine().send_mad(now, mad);
            }
        });
    }
}

/// Number of datagrams taken before other messages have their turn.
const TURN: usize = 64;
