//! Numbers of a chain's objects: as its listing has them.

use crate::program::{Chain, Content, Order, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::ChainOp;

/// New numbers of slots, queues and completion queues by the old ones.
struct Numbers {
    slots: Vec<usize>,
    queues: Vec<usize>,
    cqs: Vec<usize>,
}

impl Chain {
    /// The same chain without empty queues and unused completion queues, with its slots in the order of the queues.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        let placed: Vec<usize> = self.queues.iter().flat_map(|queue| queue.slots.iter().copied()).collect();
        let lost = (0..self.slots.len()).filter(|slot| !placed.contains(slot));
        let order: Vec<usize> = placed.iter().copied().chain(lost).collect();
        let used = self.used_cqs();
        let numbers = Numbers {
            slots: (0..self.slots.len()).map(|old| order.iter().position(|slot| *slot == old).unwrap_or(old)).collect(),
            queues: count(self.queues.iter().map(|queue| !queue.slots.is_empty())),
            cqs: count(used.iter().copied()),
        };
        self.slots = order.iter().map(|old| numbers.slot(self.slots[*old].clone())).collect();
        self.queues.retain(|queue| !queue.slots.is_empty());
        let mut is_used = used.iter();
        self.cqs.retain(|_| is_used.next().copied().unwrap_or(true));
        for queue in &mut self.queues {
            queue.cq = numbers.cqs[queue.cq];
            queue.slots.iter_mut().for_each(|slot| *slot = numbers.slots[*slot]);
        }
        for receive in &mut self.receives {
            receive.cq = numbers.cqs[receive.cq];
            receive.slots.iter_mut().flatten().for_each(|span| *span = numbers.span(*span));
        }
        for region in &mut self.regions {
            if let Content::Pristine(parts) = &mut region.content {
                parts.iter_mut().for_each(|(slot, _, _)| *slot = numbers.slots[*slot]);
            }
        }
        self
    }

    fn used_cqs(&self) -> Vec<bool> {
        let waits = self.slots.iter().filter(|slot| slot.class_op() == ChainOp::Wait).filter_map(|slot| slot.order);
        let queues = self.queues.iter().filter(|queue| !queue.slots.is_empty()).map(|queue| queue.cq);
        let used: Vec<usize> = waits
            .map(|order| order.object)
            .chain(queues)
            .chain(self.receives.iter().map(|receive| receive.cq))
            .collect();
        (0..self.cqs.len()).map(|cq| used.contains(&cq)).collect()
    }
}

/// The number of each that stays.
fn count(stays: impl Iterator<Item = bool>) -> Vec<usize> {
    stays.scan(0, |next, stays| Some(std::mem::replace(next, *next + usize::from(stays)))).collect()
}

impl Numbers {
    fn place(&self, place: Place) -> Place {
        match place {
            Place::Slot { slot, at } => Place::Slot { slot: self.slots[slot], at },
            Place::Region { .. } => place,
        }
    }

    fn span(&self, span: Span) -> Span {
        Span { place: self.place(span.place), ..span }
    }

    fn slot(&self, mut slot: Slot) -> Slot {
        let object = |order: Order| match slot.class_op() {
            ChainOp::Wait => self.cqs[order.object],
            ChainOp::Enable => self.queues[order.object],
            _ => order.object,
        };
        slot.order = slot.order.map(|order| Order { object: object(order), ..order });
        if let Remote::Own(place) = slot.remote {
            slot.remote = Remote::Own(self.place(place));
        }
        slot.sges.iter_mut().for_each(|span| *span = self.span(*span));
        slot
    }
}
