//! Streams of many connections that share the last link of their path.

use super::{Happening, Incoming, World};
use crate::layout::{SLOT, TARGET};
use crate::link::Link;
use crate::model::{Check, Kind, violated};
use crate::plan::Plan;
use rdmesh_nic::Time;

/// The link into a host, behind a switch at which what all hosts send to it waits.
pub(super) struct LastLink {
    link: Link,
    /// Nanoseconds that each datagram has waited, while they are counted.
    waits: Option<Vec<u64>>,
    dropped: u64,
}

/// Streams of WRITEs to one host.
#[derive(Clone, Copy)]
pub(crate) struct SharedStreams {
    /// Bytes of each.
    pub(crate) len: u64,
    /// Outstanding requests of each connection.
    pub(crate) outstanding: usize,
    /// Nanoseconds before the measurement, and of it.
    pub(crate) warm_up: u64,
    pub(crate) span: u64,
}

/// Measurement of streams that share a link.
pub(crate) struct Shared {
    /// Bytes of payload that each connection has moved.
    pub(crate) moved: Vec<u64>,
    /// Nanoseconds that each datagram has waited at the switch, in order.
    pub(crate) waits: Vec<u64>,
    /// Datagrams that the switch has dropped.
    pub(crate) dropped: u64,
}

impl LastLink {
    pub(super) fn new(link: Link) -> Self {
        Self { link, waits: None, dropped: 0 }
    }
}

impl World {
    /// A datagram is at the switch before its host.
    pub(super) fn cross_switch(&mut self, host: usize, incoming: Incoming) {
        let last = &mut self.last_links[host];
        let mut arrivals = last.link.send(self.now, &incoming.bytes, &mut self.network, &mut self.model.seen);
        let Some(arrival) = arrivals.pop() else {
            last.dropped += u64::from(last.waits.is_some());
            return;
        };
        if let Some(waits) = &mut last.waits {
            waits.push(arrival.waited);
        }
        let traffic_class = incoming.traffic_class | if arrival.marked { 3 } else { 0 };
        let waited = if self.plan.switch_tells { arrival.waited } else { 0 };
        let incoming = Incoming { bytes: arrival.bytes, traffic_class, waited, ..incoming };
        self.schedule(arrival.at, Happening::Arrival { host, incoming });
    }

    /// Each pair's first side WRITEs to the second, on host 0, for as long as `streams` says. What waits before other hosts are
    /// acknowledgements, which are not counted.
    pub(crate) fn share(plan: Plan, streams: SharedStreams) -> Check<Shared> {
        let pairs = plan.pairs.len();
        let mut world = Self::new(plan, false);
        world.steady = true;
        world.build()?;
        let done =
            |world: &Self| -> Vec<usize> { (0..pairs).map(|pair| world.model.ends[2 * pair].flow.completed).collect() };
        let (begin, end) = (Time(streams.warm_up), Time(streams.warm_up + streams.span));
        let mut before = None;
        while world.now < end {
            for node in 0..world.nodes.len() {
                world.drain(node);
            }
            for pair in 0..pairs {
                world.keep_writing(pair, &streams)?;
            }
            if world.now >= begin && before.is_none() {
                before = Some(done(&world));
                world.last_links[0].waits = Some(Vec::new());
            }
            let Some(happening) = world.next() else { return violated("P9", world.unfinished()) };
            world.happen(happening)?;
        }
        let before = before.unwrap_or_else(|| vec![0; pairs]);
        let moved = done(&world).into_iter().zip(before).map(|(now, before)| (now - before) as u64 * streams.len);
        let moved = moved.collect();
        let LastLink { waits, dropped, .. } = world.last_links.swap_remove(0);
        let mut waits = waits.unwrap_or_default();
        waits.sort_unstable();
        Ok(Shared { moved, waits, dropped })
    }

    fn keep_writing(&mut self, pair: usize, streams: &SharedStreams) -> Check {
        let end = 2 * pair;
        let target = (2 * pair as u64 + 1) * SLOT + TARGET.start;
        while self.model.ends[end].flow.ops.len() - self.model.ends[end].flow.completed < streams.outstanding {
            self.ask(end, Kind::Write { target, imm: None }, streams.len)?;
            self.model.ends[end].used.clear();
            self.model.ends[end].next_data = 0;
        }
        Ok(())
    }
}
