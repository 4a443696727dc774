//! Instances: copies of a chain in the same queues, so that a client may have several requests outstanding.

use crate::program::{Chain, Content, Order, Place, Queue, Region, Remote, Slot, Span};
use crate::verify::Refusal;
use rdmesh_verbs::chain::ChainOp;

/// One instance of a chain, which maps the numbers of the chain's objects to its own.
struct Instance<'c> {
    chain: &'c Chain,
    number: usize,
    count: usize,
    /// Queues that are started by requests of the chain, completion queues of such queues only, and pristine regions: each
    /// instance has its own.
    queues: Vec<bool>,
    cqs: Vec<bool>,
    regions: Vec<bool>,
}

impl Chain {
    /// The chain so many times in the same queues: it takes as many requests at once, and answers them in turn. Memory is
    /// shared between the instances, but for pristine copies.
    pub fn instances(&self, count: usize) -> Result<Self, Refusal> {
        let is_loop = self.receives.first().is_some_and(|r| self.queues.iter().any(|queue| queue.cq == r.cq));
        let is_recycled = self.slots.iter().any(|slot| slot.class_op() == ChainOp::RecvEnable);
        if count == 0 || is_loop || !is_recycled || self.receives.len() != 1 {
            let cause = "serves one request at a time";
            let remedy = "end the program with `rearm`, or install it once for each request that is outstanding";
            return Err(Refusal::new(&self.name, cause, remedy));
        }
        let started = self.started_queues();
        let users = |cq| self.queues.iter().zip(&started).filter(move |(queue, _)| queue.cq == cq);
        let cqs: Vec<bool> = (0..self.cqs.len())
            .map(|cq| users(cq).count() > 0 && users(cq).all(|(_, own)| *own) && !self.is_awaited(cq, &started))
            .collect();
        let regions: Vec<bool> = self.regions.iter().map(|r| matches!(r.content, Content::Pristine(_))).collect();
        let mut whole = Self { slots: Vec::new(), ..self.clone() };
        whole.receives[0].enabled = count as u64;
        whole.receives[0].slots.clear();
        whole.queues.iter_mut().for_each(|queue| queue.slots.clear());
        for number in 0..count {
            let (queues, cqs, regions) = (started.clone(), cqs.clone(), regions.clone());
            Instance { chain: self, number, count, queues, cqs, regions }.add_to(&mut whole);
        }
        Ok(whole.in_order())
    }

    /// Whether a queue that all instances have together waits for a completion queue.
    fn is_awaited(&self, cq: usize, started: &[bool]) -> bool {
        let common =
            self.queues.iter().zip(started).filter(|(_, started)| !**started).flat_map(|(queue, _)| &queue.slots);
        let mut waits = common.map(|slot| &self.slots[*slot]).filter(|slot| slot.class_op() == ChainOp::Wait);
        waits.any(|slot| slot.order.is_some_and(|order| order.object == cq))
    }

    /// Queues that an ENABLE for what comes next starts, and those that they enable.
    fn started_queues(&self) -> Vec<bool> {
        let enables = |slot: &usize| {
            let slot = &self.slots[*slot];
            slot.order.filter(|_| slot.class_op() == ChainOp::Enable)
        };
        let mut started = vec![false; self.queues.len()];
        for _ in 0..self.queues.len() {
            for queue in 0..self.queues.len() {
                for order in self.queues[queue].slots.iter().filter_map(enables) {
                    started[order.object] |= order.relative || started[queue];
                }
            }
        }
        started
    }
}

impl Instance<'_> {
    fn add_to(&self, whole: &mut Chain) {
        if self.number > 0 {
            self.add_objects(whole);
        }
        let slots: Vec<Slot> = (0..self.chain.slots.len()).map(|slot| self.slot(slot)).collect();
        for (number, queue) in self.chain.queues.iter().enumerate() {
            whole.queues[self.queue(number)].slots.extend(queue.slots.iter().map(|slot| slot + self.shift()));
        }
        whole.slots.extend(slots);
        whole.receives[0].slots.push(self.chain.receives[0].slots[0].iter().map(|span| self.span(*span)).collect());
    }

    /// Adds the objects that belong to this instance alone.
    fn add_objects(&self, whole: &mut Chain) {
        for (queue, _) in self.chain.queues.iter().zip(&self.queues).filter(|(_, own)| **own) {
            let (name, cq) = (self.label(&queue.name), self.cq(queue.cq));
            whole.queues.push(Queue { name, cq, slots: Vec::new(), ..queue.clone() });
        }
        let cqs = self.chain.cqs.iter().zip(&self.cqs).filter(|(_, own)| **own);
        whole.cqs.extend(cqs.map(|(cq, _)| self.label(cq)));
        for region in &self.chain.regions {
            if let Content::Pristine(parts) = &region.content {
                let parts = parts.iter().map(|(slot, at, length)| (slot + self.shift(), *at, *length)).collect();
                whole.regions.push(Region { name: self.label(&region.name), content: Content::Pristine(parts) });
            }
        }
    }

    fn shift(&self) -> usize {
        self.number * self.chain.slots.len()
    }

    fn label(&self, name: &str) -> String {
        if self.number == 0 { name.to_owned() } else { format!("{name}@{}", self.number) }
    }

    fn renumbered(&self, old: usize, is_own: &[bool]) -> usize {
        let own = |list: &[bool]| list.iter().filter(|own| **own).count();
        if self.number == 0 || !is_own[old] {
            return old;
        }
        is_own.len() + (self.number - 1) * own(is_own) + own(&is_own[..old])
    }

    fn queue(&self, old: usize) -> usize {
        self.renumbered(old, &self.queues)
    }

    fn cq(&self, old: usize) -> usize {
        self.renumbered(old, &self.cqs)
    }

    fn place(&self, place: Place) -> Place {
        match place {
            Place::Slot { slot, at } => Place::Slot { slot: slot + self.shift(), at },
            Place::Region { region, at } => Place::Region { region: self.renumbered(region, &self.regions), at },
        }
    }

    fn span(&self, span: Span) -> Span {
        Span { place: self.place(span.place), ..span }
    }

    fn slot(&self, number: usize) -> Slot {
        let mut slot = self.chain.slots[number].clone();
        let is_own = self.chain.position(number).is_some_and(|(queue, _)| self.queues[queue]);
        slot.label = self.label(&slot.label);
        slot.sges.iter_mut().for_each(|span| *span = self.span(*span));
        if let Remote::Own(place) = slot.remote {
            slot.remote = Remote::Own(self.place(place));
        }
        slot.order = slot.order.map(|order| self.order(&slot, order, is_own));
        slot
    }

    /// Counts of all instances follow each other in a lap.
    fn order(&self, slot: &Slot, order: Order, is_own: bool) -> Order {
        let op = slot.class_op();
        let object = match op {
            ChainOp::Wait => self.cq(order.object),
            ChainOp::Enable => self.queue(order.object),
            _ => order.object,
        };
        if is_own || order.relative {
            return Order { object, ..order };
        }
        let earlier = self.number as u64 * u64::from(order.step);
        // So many messages are taken from the start on; one chain alone takes one.
        let more = if op == ChainOp::RecvEnable { self.count as u64 - 1 } else { 0 };
        Order { object, count: order.count + earlier + more, step: order.step * self.count as u32, ..order }
    }
}
