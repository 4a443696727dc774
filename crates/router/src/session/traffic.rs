//! Traffic totals of an endpoint: counters of its present and destroyed queue pairs.

use super::context::Context;
use rdmesh_nic::{Device, QpCounters};

/// A sum over queue pairs.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic(QpCounters);

impl Traffic {
    /// Adds the counters of a queue pair.
    pub(super) fn add(&mut self, other: &QpCounters) {
        let sum = &mut self.0;
        sum.tx_messages += other.tx_messages;
        sum.tx_bytes += other.tx_bytes;
        sum.rx_messages += other.rx_messages;
        sum.rx_bytes += other.rx_bytes;
        sum.read_bytes += other.read_bytes;
        sum.served_bytes += other.served_bytes;
        sum.rnr_naks += other.rnr_naks;
        sum.retries += other.retries;
        sum.errors += other.errors;
        sum.retransmitted += other.retransmitted;
        sum.duplicates += other.duplicates;
        sum.out_of_order += other.out_of_order;
        sum.cnps_sent += other.cnps_sent;
        sum.cnps_received += other.cnps_received;
    }

    /// The sum.
    pub(super) fn counters(&self) -> QpCounters {
        self.0
    }

    /// Adds the counters of the queue pairs of `context`.
    pub(super) fn add_context(&mut self, context: &Context) {
        let id = context.id();
        let sum = context.shard().call(move |shard| {
            let mut sum = Self::default();
            let device = shard.engine().device(id).ok();
            device.iter().flat_map(Device::infos).for_each(|info| sum.add(&info.counters));
            sum
        });
        self.add(&sum.0);
    }
}
