//! Management datagrams between the session thread and the workers.

use super::server::Server;
use crate::worker::{MadQueue, ShardHandle};
use rdmesh_nic::cm::Mad;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes the workers put received management datagrams into a queue, and signal `wake`.
pub(super) fn subscribe(shards: &[ShardHandle], wake: &Arc<OwnedFd>) -> MadQueue {
    let queue = MadQueue::new(Arc::clone(wake));
    for shard in shards {
        let queue = queue.clone();
        shard.call(move |shard| shard.set_mad_queue(queue));
    }
    queue
}

impl Server {
    /// Handles received datagrams. The programs have their turn between two batches.
    pub(super) fn receive_mads(&mut self) {
        for _ in 0..TURN {
            let Some(mad) = self.mads.take() else { return };
            self.cm_receive(mad);
        }
        let _ = io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sends datagrams to other machines. Those that cannot be sent are lost, as on a network.
    pub(super) fn send_mads(&self, mads: Vec<Mad>) {
        let Some(shard) = self.devices.shards().first().filter(|_| !mads.is_empty()) else { return };
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
