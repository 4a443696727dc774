//! Management datagrams between the session thread and the workers.

use super::server::Server;
use crate::worker::{MadSink, ShardHandle};
use rdmesh_nic::ReceivedMad;
use rdmesh_nic::cm::Mad;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Makes the workers put received management datagrams into a queue, and signal `wake`.
pub(super) fn subscribe(shards: &[ShardHandle], wake: &Arc<OwnedFd>) -> Receiver<ReceivedMad> {
    let (sender, receiver) = sync_channel(WAITING);
    for shard in shards {
        let sink = MadSink::new(sender.clone(), Arc::clone(wake));
        shard.call(move |shard| shard.set_mad_sink(sink));
    }
    receiver
}

impl Server {
    /// Handles received datagrams. The programs have their turn between two batches.
    pub(super) fn receive_mads(&mut self) {
        for _ in 0..TURN {
            let Ok(mad) = self.mads.try_recv() else { return };
            self.cm_receive(mad);
        }
        let _ = io::write(&self.wake, &1u64.to_ne_bytes());
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

/// Management datagrams that wait for the session thread.
const WAITING: usize = 1024;
/// Number of datagrams taken before other messages have their turn.
const TURN: usize = 64;
