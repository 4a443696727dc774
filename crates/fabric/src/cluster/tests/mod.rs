//! Tests of the cluster: records, addresses, views.

mod convergence;
mod faulty;
mod interleavings;
mod records;

use super::*;
use crate::store::{Embedded, Store};
use crate::{Endpoint, Host, InterfaceName, Isolation, Labels, Name, Network, Quota};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that stands still until it is moved.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let time = self.clone();
        Arc::new(move || time.now())
    }

    fn store(&self) -> Embedded {
        let time = self.clone();
        Embedded::with_clock(move || time.now())
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(super) fn host(number: u8) -> Host {
    Host::new(name(&format!("h{number}")), format!("192.0.2.{}", number + 1).parse().unwrap())
}

fn network(range: &str) -> Network {
    Network { subnets: vec![range.parse().unwrap()], ..Network::around(name("blue"), 7, &[]) }
}

pub(super) fn endpoint(host: &Host, text: &str, address: std::net::IpAddr) -> Endpoint {
    Endpoint {
        name: name(text),
        network: name("blue"),
        host: host.name.clone(),
        addresses: vec![address],
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation: Isolation::None,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

pub(super) fn terms() -> Terms {
    let seconds = Duration::from_secs;
    Terms { session: seconds(10), tenure: seconds(60), quarantine: seconds(20), reserve: 0 }
}

async fn join(store: &Arc<dyn Store>, time: &Time, number: u8) -> Member {
    join_with(store, time, number, terms()).await
}

async fn join_with(store: &Arc<dyn Store>, time: &Time, number: u8, terms: Terms) -> Member {
    let (cluster, local) = (Cluster::new(Arc::clone(store)), Arc::new(time.store()));
    Member::join(cluster, local, time.clock(), terms, host(number)).await.unwrap().0
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test);
}
