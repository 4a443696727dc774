//! Traffic totals of an endpoint: counters of its present and destroyed queue pairs.

use super::context::Context;
use super::messages::Answer;
use super::reply::Reply;
use super::server::Server;
use crate::endpoint::{EndpointId, counter};
use rdmesh_nic::{QpCounters, Time};
use rustix::io::Errno;

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

    /// Adds the counters of the queue pairs of `context`.
    pub(super) fn add_context(&mut self, context: &Context) {
        let id = context.id;
        let sum = context.shard.call(move |shard| {
            let engine = shard.engine();
            let mut sum = Self::default();
            for qp in engine.qps(id) {
                if let Ok(info) = engine.query_qp(id, qp) {
                    sum.add(&info.counters);
                }
            }
            sum
        });
        self.add(&sum.0);
    }
}

/// Last reported values of an endpoint's counters, and their time.
#[derive(Clone, Copy)]
pub(super) struct Told {
    at: Time,
    sum: Traffic,
}

impl Server {
    /// The content of the counter's file in sysfs, now or a moment ago: reading all queue pairs takes time that others need
    /// too.
    pub(super) fn counter(&mut self, id: u64, path: &[u8]) -> Answer {
        let number = self.clients.get(id).ok_or(Errno::INVAL)?.endpoint;
        let counter = counter(path).ok_or(Errno::NOENT)?;
        let sum = self.present_traffic(number)?;
        Ok((Reply::default(), format!("{}\n", counter(&sum)).into_bytes()))
    }

    /// Traffic of an endpoint's queue pairs, now or a moment ago.
    pub(super) fn present_traffic(&mut self, number: EndpointId) -> Result<QpCounters, Errno> {
        let now = self.clock.now();
        let endpoint = self.endpoints.get(&number).ok_or(Errno::NODEV)?;
        let told = match endpoint.told {
            Some(told) if now.0 - told.at.0 < FRESH => told,
            _ => {
                let sum = self.sum_up(number, endpoint.traffic);
                // Adding up may have taken long.
                Told { at: self.clock.now(), sum }
            }
        };
        if let Some(endpoint) = self.endpoints.get_mut(&number) {
            endpoint.told = Some(told);
        }
        Ok(told.sum.0)
    }

    fn sum_up(&self, endpoint: EndpointId, mut sum: Traffic) -> Traffic {
        let contexts = self.contexts.values().filter(|context| context.endpoint == endpoint);
        contexts.for_each(|context| sum.add_context(context));
        sum
    }
}

/// Nanoseconds for which a sum is cached.
const FRESH: u64 = 100_000_000;
