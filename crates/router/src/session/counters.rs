//! Port counters of an endpoint, as its programs read them.

use super::connection::Answer;
use super::reply::Reply;
use super::server::Server;
use super::traffic::{Told, Traffic};
use crate::endpoint::{EndpointId, counter};
use rdmesh_nic::QpCounters;
use rustix::io::Errno;

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
        let endpoint = self.accounts.get(number).ok_or(Errno::NODEV)?;
        let told = match endpoint.told {
            Some(told) if now.0 - told.at.0 < FRESH => told,
            _ => {
                let sum = self.sum_up(number, endpoint.traffic);
                // Adding up may have taken long.
                Told { at: self.clock.now(), sum }
            }
        };
        if let Some(endpoint) = self.accounts.get_mut(number) {
            endpoint.told = Some(told);
        }
        Ok(told.sum.0)
    }

    fn sum_up(&self, endpoint: EndpointId, mut sum: Traffic) -> Traffic {
        self.devices.of_endpoint(endpoint).for_each(|context| sum.add_context(context));
        sum
    }
}

/// Nanoseconds for which a sum is cached.
const FRESH: u64 = 100_000_000;
