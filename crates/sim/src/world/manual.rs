//! World whose datagrams the caller delivers, one by one.

use super::requests::Wish;
use super::{Incoming, World};
use crate::coverage::Seen;
use crate::model::{Check, Kind, RECEIVE, violated};
use crate::plan::Plan;
use crate::trace::dissect;
use rdmesh_nic::wire::Op;
use rdmesh_nic::{Engine, Time};
use rdmesh_verbs::Key;

/// A datagram that was sent and not delivered.
#[derive(Clone)]
pub struct Flying {
    /// Destination.
    pub host: usize,
    pub(super) incoming: Incoming,
}

/// A stream of equal requests.
#[derive(Clone, Copy)]
pub(crate) struct RequestStream {
    pub(crate) kind: Kind,
    /// Bytes of each.
    pub(crate) len: u64,
    pub(crate) outstanding: usize,
    pub(crate) count: usize,
}

/// Measurement of a stream of requests.
pub(crate) struct Streamed {
    pub(crate) took: Time,
    /// Datagrams, and those of them that a full queue has dropped.
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    /// Packets of the requester that were sent again.
    pub(crate) retransmitted: u64,
}

impl Flying {
    /// Whether it carries nothing but an acknowledgement.
    pub(crate) fn is_acknowledgement(&self) -> bool {
        let packet = dissect(&self.incoming.bytes, true);
        packet.is_some_and(|(_, _, header, _)| matches!(header.op, Op::Acknowledge(_)))
    }
}

impl World {
    /// Both sides of every pair of `plan` connected, receives posted, nothing sent.
    pub(crate) fn by_hand(plan: Plan, verbose: bool) -> Check<Self> {
        let mut world = Self::new(plan, verbose);
        world.flying = Some(Vec::new());
        world.build()?;
        for end in 0..world.model.ends.len() {
            world.post_receives(end);
        }
        Ok(world)
    }

    /// Posts a request.
    pub(crate) fn ask(&mut self, end: usize, kind: Kind, len: u64) -> Check {
        let key: Key = self.nodes[self.node_of(self.model.ends[end].peer)].key;
        if self.post(end, &Wish { kind, len, fault: None, key })? { Ok(()) } else { violated("sim", "no room") }
    }

    /// Ends a queue pair by a command: moves it to ERR, or destroys it.
    pub(crate) fn end(&mut self, end: usize, destroys: bool) -> Check {
        if destroys { self.destroy(end) } else { self.break_(end) }
    }

    /// Lets a host work.
    pub(crate) fn work(&mut self, host: usize) -> Check {
        self.serve(host)
    }

    /// Datagrams sent since the last call.
    pub(crate) fn take_flying(&mut self) -> Vec<Flying> {
        self.flying.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Delivers a datagram.
    pub(crate) fn deliver(&mut self, flying: &Flying) -> Check {
        self.arrive(flying.host, flying.incoming.clone());
        self.serve(flying.host)
    }

    /// Lets time pass until some engine has to be called; false where none ever has.
    pub(crate) fn pass_time(&mut self) -> Check<bool> {
        let timeouts = self.hosts.iter().flat_map(|host| host.engines.iter()).filter_map(Engine::poll_timeout);
        let Some(at) = timeouts.min() else { return Ok(false) };
        self.now = Time(at.0.max(self.now.0 + 1));
        for host in 0..self.hosts.len() {
            self.serve(host)?;
        }
        Ok(true)
    }

    /// Posts the requests of a stream until all are done.
    pub(crate) fn stream(plan: Plan, stream: RequestStream) -> Check<Streamed> {
        let RequestStream { kind, len, outstanding, count } = stream;
        let mut world = Self::new(plan, false);
        world.steady = true;
        world.build()?;
        loop {
            world.drain(1);
            world.drain(0);
            world.post_receives(1);
            while world.model.ends[0].flow.ops.len() < count + outstanding
                && world.model.ends[0].flow.ops.len() - world.model.ends[0].flow.completed < outstanding
            {
                world.ask(0, kind, len)?;
                world.model.ends[0].used.clear();
                world.model.ends[0].next_data = 0;
            }
            if world.model.ends[0].flow.completed >= count {
                let dropped = world.model.seen.of(Seen::QueueDrop);
                world.retire(0);
                let retransmitted = world.model.seen.of(Seen::Retransmitted);
                return Ok(Streamed { took: world.now, sent: world.sent, dropped, retransmitted });
            }
            let Some(happening) = world.next() else { return violated("P9", world.unfinished()) };
            world.happen(happening)?;
        }
    }

    pub(super) fn drain(&mut self, node: usize) {
        while let Some(wc) = self.nodes[node].completions.poll() {
            if wc.wr_id & RECEIVE != 0 {
                let queue = ((wc.wr_id & !RECEIVE) >> 24) as usize;
                self.model.queues[queue].polled(wc.wr_id);
            }
        }
    }
}
