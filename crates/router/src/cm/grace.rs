//! Grace period of ports without a listener that will soon have one: connection requests that wait for it.
//!
//! A server that listens twice at a port, as perftest's `-R` does, leaves a gap in which its client's request would be refused,
//! depending on how the scheduler runs the two. A server that tells its client the port before it listens there, as qperf's does,
//! leaves another. So a request that arrives in a gap waits for a while. Where there was no listener and no identifier is bound to
//! the port, or the listener was closed with its program, a request is refused at once.

use super::id::PortSpace;
use crate::endpoint::EndpointId;
use rdmesh_nic::Time;
use rdmesh_nic::cm::{CommId, Event};
use std::collections::HashMap;
use std::time::Duration;

/// Grace period in which a port is expected to have a listener again.
const GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Maximum waiting time of a request.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Ports that are remembered of each endpoint. Requests to others are refused at once.
const MAX_PORTS: usize = 64;
/// Requests that wait, of all endpoints and of each.
const MAX_WAITING: usize = 1024;
const MAX_WAITING_OF_ONE: usize = 64;

/// A port of an endpoint.
pub(super) type ListenerPort = (EndpointId, PortSpace, u16);

/// Ports in the grace period, and the requests that wait there.
#[derive(Debug, Default)]
pub(super) struct GracePeriods {
    /// End of each port's grace period.
    ports: HashMap<EndpointId, HashMap<(PortSpace, u16), Time>>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    port: ListenerPort,
    until: Time,
    comm: CommId,
    event: Event,
}

impl GracePeriods {
    /// A listener has gone, or a program is about to listen.
    pub(super) fn begin(&mut self, now: Time, (endpoint, space, port): ListenerPort) {
        let ports = self.ports.entry(endpoint).or_default();
        ports.retain(|_, until| *until > now);
        if ports.len() < MAX_PORTS {
            ports.insert((space, port), now.after(GRACE_PERIOD));
        }
    }

    /// Lets a request wait, if there has been a listener lately and there is room; gives it back otherwise.
    pub(super) fn wait(&mut self, now: Time, port: ListenerPort, comm: CommId, event: Event) -> Option<Event> {
        let of_one = self.waiting.iter().filter(|waiting| waiting.port.0 == port.0).count();
        let has_room = self.waiting.len() < MAX_WAITING && of_one < MAX_WAITING_OF_ONE;
        if !has_room || !self.has_begun(now, port) {
            return Some(event);
        }
        self.waiting.push(Waiting { port, until: now.after(WAIT_LIMIT), comm, event });
        None
    }

    /// There is a listener again; returns the requests for it.
    pub(super) fn end(&mut self, port: ListenerPort) -> Vec<(CommId, Event)> {
        self.forget(port);
        self.take(|waiting| waiting.port == port)
    }

    /// The requests that have waited long enough. Later ones for the same ports do not wait.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<(CommId, Event)> {
        let due = self.waiting.iter().filter(|waiting| waiting.until <= now).map(|waiting| waiting.port);
        for port in due.collect::<Vec<_>>() {
            self.forget(port);
        }
        self.take(|waiting| waiting.until <= now)
    }

    /// The peer has withdrawn its request.
    pub(super) fn withdraw(&mut self, comm: CommId) {
        self.waiting.retain(|waiting| waiting.comm != comm);
    }

    /// An endpoint has gone; returns the requests to it.
    pub(super) fn remove(&mut self, endpoint: EndpointId) -> Vec<(CommId, Event)> {
        self.ports.remove(&endpoint);
        self.take(|waiting| waiting.port.0 == endpoint)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    fn take(&mut self, is_taken: impl Fn(&Waiting) -> bool) -> Vec<(CommId, Event)> {
        self.waiting.extract_if(.., |waiting| is_taken(waiting)).map(|waiting| (waiting.comm, waiting.event)).collect()
    }

    fn has_begun(&self, now: Time, (endpoint, space, port): ListenerPort) -> bool {
        self.ports.get(&endpoint).and_then(|ports| ports.get(&(space, port))).is_some_and(|until| *until > now)
    }

    fn forget(&mut self, (endpoint, space, port): ListenerPort) {
        if let Some(ports) = self.ports.get_mut(&endpoint) {
            ports.remove(&(space, port));
        }
    }
}
