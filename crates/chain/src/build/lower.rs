//! Lowering: a program's straight line in queues, with what orders it.

use super::{Design, Item, Program, copy};
use crate::access::{Moment, Object, Touch, all_touches};
use crate::program::{ALWAYS, Chain, Content, Order, Place, Queue, Receive, Region, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class};

/// The queue that runs the others; in [`Design::Local`] the only one.
const CONTROL: usize = 0;
/// Requests on the chain's own memory that are filled in.
const TARGETS: usize = 1;
/// Requests to the client.
const REPLIES: usize = 2;

struct Lowering<'p> {
    program: &'p Program,
    design: Design,
    chain: Chain,
    is_recycled: bool,
    /// Slots that something writes.
    changed: Vec<bool>,
    placed: Vec<Placed>,
    /// Completions of each queue so far in this lap, and those that the control queue has waited for.
    signaled: Vec<u64>,
    waited: Vec<u64>,
    requests_cq: usize,
    /// A lap ends when all of it has.
    ends: bool,
}

struct Placed {
    queue: usize,
    /// Number of completions of its queue up to its own, if it has one.
    completion: Option<u64>,
    touches: Vec<Touch>,
    is_instant: bool,
}

/// Orderings that a request needs.
#[derive(Default)]
struct Needs {
    wait: [bool; 3],
    fence: bool,
}

pub(super) fn lower(program: &Program, design: Design) -> Chain {
    let lean = attempt(program, design, false);
    // The next lap may need that all of this one has ended; most do not.
    if design == Design::Portable && program.is_recycled() && crate::verify::verify(&lean).is_err() {
        attempt(program, design, true)
    } else {
        lean
    }
}

fn attempt(program: &Program, design: Design, ends: bool) -> Chain {
    let mut lowering = Lowering::new(program, design);
    lowering.ends = ends;
    let copies = lowering.arguments();
    lowering.note_changes(&copies);
    for item in items(program) {
        match item {
            Item::Request => lowering.request(&copies),
            Item::Slot(slot) => lowering.emit(slot),
            Item::Await(slot) => {
                let queue = lowering.queue_of(slot);
                lowering.wait_for(queue);
            }
            Item::Rearm => lowering.rearm(),
        }
    }
    lowering.finish()
}

/// The items in order; a loop restores at its head, where the last iteration has ended for certain.
fn items(program: &Program) -> Vec<Item> {
    let mut items = program.items.clone();
    if !program.is_loop {
        return items;
    }
    let is_restore = |item: &Item| match item {
        Item::Slot(slot) => {
            matches!(program.chain.slots[*slot].sges.first(), Some(Span { place: Place::Region { region, .. }, .. })
            if matches!(program.chain.regions[*region].content, Content::Pristine(_)))
        }
        _ => false,
    };
    let restores: Vec<Item> = items.iter().copied().filter(is_restore).collect();
    items.retain(|item| !is_restore(item) && *item != Item::Rearm);
    let head = items.iter().position(|item| *item == Item::Request).map_or(0, |at| at + 1);
    items.splice(head..head, restores);
    items
}

impl<'p> Lowering<'p> {
    fn new(program: &'p Program, design: Design) -> Self {
        let mut chain = program.chain.clone();
        let queue =
            |name: &str, cq, to_client| Queue { name: name.into(), cq, to_client, enabled: 0, slots: Vec::new() };
        let names: &[&str] = match (design, program.is_loop) {
            (Design::Local, true) => &["tokens"],
            (Design::Local, false) => &["sent", "requests"],
            (Design::Portable, true) => &["controlled", "reached", "tokens"],
            (Design::Portable, false) => &["controlled", "reached", "sent", "requests"],
        };
        chain.cqs = names.iter().map(|name| (*name).to_owned()).collect();
        chain.queues = match design {
            Design::Local => vec![queue("chain", 0, true)],
            Design::Portable => vec![queue("control", 0, false), queue("targets", 1, false), queue("replies", 2, true)],
        };
        let queues = chain.queues.len();
        Self {
            program,
            design,
            is_recycled: program.is_recycled(),
            changed: Vec::new(),
            placed: Vec::new(),
            signaled: vec![0; queues],
            waited: vec![0; queues],
            requests_cq: chain.cqs.len() - 1,
            ends: false,
            chain,
        }
    }

    /// The receive request, and the copies of arguments that more than one field needs.
    fn arguments(&mut self) -> Vec<usize> {
        let (mut sges, mut copies) = (Vec::new(), Vec::new());
        let span = |(slot, at): (usize, usize), length| Span { place: Place::Slot { slot, at }, length };
        for arg in &self.program.args {
            let Some(first) = arg.uses.first() else {
                self.chain.regions.push(Region {
                    name: format!("unused.{}", arg.name),
                    content: Content::Scratch(arg.length.into()),
                });
                sges.push(Span {
                    place: Place::Region { region: self.chain.regions.len() - 1, at: 0 },
                    length: arg.length,
                });
                continue;
            };
            sges.push(span(*first, arg.length));
            for (n, other) in arg.uses.iter().enumerate().skip(1) {
                let label = format!("spread.{}{}", arg.name, if n == 1 { String::new() } else { n.to_string() });
                let slot = Slot { label, ..copy(span(*other, arg.length), span(*first, arg.length)).slot };
                self.chain.slots.push(slot);
                copies.push(self.chain.slots.len() - 1);
            }
        }
        if self.program.items.contains(&Item::Request) {
            let cq = self.requests_cq;
            self.chain.receives.push(Receive { name: "arguments".into(), cq, enabled: 1, sges });
        }
        copies
    }

    fn note_changes(&mut self, copies: &[usize]) {
        if self.design == Design::Portable {
            self.give_results();
        }
        let mut changed = vec![false; self.chain.slots.len()];
        let used =
            self.program.items.iter().filter_map(|item| if let Item::Slot(slot) = item { Some(*slot) } else { None });
        let written = used.chain(copies.iter().copied()).flat_map(|slot| all_touches(&self.chain, slot));
        let received =
            self.chain.receives.iter().flat_map(|r| &r.sges).map(|span| Touch::new(Moment::Scatter, true, *span));
        for touch in written.chain(received).filter(|touch| touch.is_write) {
            if let Object::Slot(slot) = touch.object {
                changed[slot] = true;
            }
        }
        self.changed = changed;
    }

    /// An atomic operation that is not LOCAL needs a place for the old value.
    fn give_results(&mut self) {
        let is_bare = |slot: &Slot| {
            slot.sges.is_empty() && (slot.control.op.is_atomic() || slot.may.iter().any(|c| c.op.is_atomic()))
        };
        let bare: Vec<usize> = (0..self.chain.slots.len()).filter(|slot| is_bare(&self.chain.slots[*slot])).collect();
        if bare.is_empty() {
            return;
        }
        let region = self.chain.regions.len();
        self.chain.regions.push(Region { name: "old".into(), content: Content::Scratch(8 * bare.len() as u64) });
        for (at, slot) in (0..).step_by(8).zip(bare) {
            self.chain.slots[slot].sges.push(Span { place: Place::Region { region, at }, length: 8 });
        }
    }

    fn queue_of(&self, slot: usize) -> usize {
        let number = slot;
        let slot = &self.chain.slots[slot];
        match self.design {
            Design::Local => CONTROL,
            Design::Portable if is_reply(slot) || slot.class() == Class::Order => REPLIES,
            Design::Portable if self.changed.get(number).copied().unwrap_or(false) => TARGETS,
            Design::Portable => CONTROL,
        }
    }

    fn push_order(&mut self, label: String, op: ChainOp, object: usize, count: u64, step: u32) {
        let order = Order { object, count, step, relative: false };
        let mut slot = Slot { order: Some(order), ..Slot::new(label, op) };
        if self.design == Design::Local {
            slot.flags = ChainFlags::LOCAL;
        }
        self.chain.slots.push(slot);
        self.chain.queues[CONTROL].slots.push(self.chain.slots.len() - 1);
    }

    fn request(&mut self, copies: &[usize]) {
        self.push_order("request".into(), ChainOp::Wait, self.requests_cq, 1, u32::from(self.is_recycled));
        for slot in copies {
            self.emit(*slot);
        }
    }

    /// Waits for all requests of a queue so far.
    fn wait_for(&mut self, queue: usize) {
        let count = self.signaled[queue];
        if self.waited[queue] < count {
            self.waited[queue] = count;
            let last = self.chain.queues[queue].slots.iter().rev();
            let last = last.map(|slot| &self.chain.slots[*slot]).find(|slot| slot.flags.contains(ChainFlags::SIGNALED));
            let label = format!("after.{}", last.map_or("start", |slot| &slot.label));
            self.push_order(label, ChainOp::Wait, self.chain.queues[queue].cq, count, 0);
        }
    }

    fn emit(&mut self, number: usize) {
        let queue = self.queue_of(number);
        let touches = all_touches(&self.chain, number);
        let needs = self.needs(queue, &touches);
        for (waited, _) in needs.wait.iter().enumerate().filter(|(_, needed)| **needed) {
            self.wait_for(waited);
        }
        let is_loop = self.program.is_loop;
        let slot = &mut self.chain.slots[number];
        let is_reply = is_reply(slot);
        let stops = slot.may.iter().any(|control| control.quiet) || slot.control.quiet;
        let is_instant = self.design == Design::Local && !is_reply;
        let completes = if is_loop && (is_reply || self.design == Design::Local) {
            stops && slot.class() == Class::Order
        } else {
            is_reply || stops || self.design == Design::Portable
        };
        slot.flags.set(ChainFlags::SIGNALED, completes);
        slot.flags.set(ChainFlags::LOCAL, is_instant);
        slot.flags.set(ChainFlags::FENCE, needs.fence);
        self.signaled[queue] += u64::from(completes);
        let completion = completes.then_some(self.signaled[queue]);
        self.placed.push(Placed { queue, completion, touches, is_instant });
        self.chain.queues[queue].slots.push(number);
        if queue != CONTROL {
            self.enable(queue);
        }
    }

    fn needs(&self, queue: usize, touches: &[Touch]) -> Needs {
        let mut needs = Needs::default();
        // What the control queue has waited for already is over.
        let is_over = |placed: &Placed| placed.completion.is_some_and(|count| count <= self.waited[placed.queue]);
        for earlier in self.placed.iter().filter(|placed| !placed.is_instant && !is_over(placed)) {
            for (a, b) in earlier.touches.iter().flat_map(|a| touches.iter().map(move |b| (a, b))) {
                if !a.conflicts(b) {
                    continue;
                }
                let is_local = self.design == Design::Local;
                match (a.moment, b.moment) {
                    _ if earlier.queue != queue => needs.wait[earlier.queue] = true,
                    // Copied before it started, and so before anything later.
                    (Moment::Fetch, _) => {}
                    (_, Moment::Fetch) => needs.wait[queue] = true,
                    (Moment::Gather, _) if !is_local => {}
                    (Moment::Respond, Moment::Respond) if !is_local => {}
                    (Moment::Scatter, _) if !is_local => needs.fence = true,
                    _ => needs.wait[queue] = true,
                }
            }
        }
        needs
    }

    /// Lets a queue execute what it has so far; one ENABLE serves several requests if nothing lies between.
    fn enable(&mut self, queue: usize) {
        let count = self.chain.queues[queue].slots.len() as u64;
        let label = self.chain.queues[queue].slots.last().map_or("", |slot| &self.chain.slots[*slot].label);
        let label = format!("enable.{label}");
        if let Some(last) = self.chain.queues[CONTROL].slots.last() {
            let last = &mut self.chain.slots[*last];
            if let (ChainOp::Enable, Some(order)) = (last.control.op, &mut last.order)
                && order.object == queue
            {
                order.count = count;
                last.label = label;
                return;
            }
        }
        self.push_order(label, ChainOp::Enable, queue, count, 0);
    }

    fn rearm(&mut self) {
        for queue in 0..self.chain.queues.len() {
            if queue != CONTROL || self.ends || self.design == Design::Local && self.replies_are_overwritten() {
                self.wait_for(queue);
            }
        }
        if !self.chain.receives.is_empty() {
            self.push_order("next".into(), ChainOp::RecvEnable, 0, 2, 1);
        }
    }

    fn replies_are_overwritten(&self) -> bool {
        let gathers = || {
            self.placed.iter().filter(|p| !p.is_instant).flat_map(|p| &p.touches).filter(|t| t.moment == Moment::Gather)
        };
        self.placed
            .iter()
            .flat_map(|p| &p.touches)
            .any(|write| write.is_write && gathers().any(|gather| gather.conflicts(write)))
    }

    /// The counts of one lap are known: they are what WAITs and ENABLEs grow by.
    fn finish(mut self) -> Chain {
        let lengths: Vec<u32> = self.chain.queues.iter().map(|queue| queue.slots.len() as u32).collect();
        for slot in self.chain.queues[CONTROL].slots.clone() {
            let slot = &mut self.chain.slots[slot];
            let (Some(order), true) = (&mut slot.order, self.is_recycled) else { continue };
            match slot.control.op {
                ChainOp::Enable => order.step = lengths[order.object],
                ChainOp::Wait if order.object != self.requests_cq => {
                    let queue = self.chain.queues.iter().position(|queue| queue.cq == order.object);
                    order.step = queue.map_or(0, |queue| self.signaled[queue] as u32);
                }
                _ => {}
            }
        }
        self.chain.queues[CONTROL].enabled = if self.is_recycled { ALWAYS } else { lengths[CONTROL].into() };
        // Numbers of queues are those of ENABLEs, so an empty one stays if a later one is used.
        while self.chain.queues.len() > 1 && self.chain.queues.last().is_some_and(|queue| queue.slots.is_empty()) {
            self.chain.queues.pop();
        }
        self.chain
    }
}

fn is_reply(slot: &Slot) -> bool {
    let sends = |op| matches!(op, ChainOp::Send | ChainOp::SendImm | ChainOp::WriteImm);
    let any = std::iter::once(slot.control.op).chain(slot.may.iter().map(|control| control.op));
    matches!(slot.remote, Remote::Client { .. }) || any.into_iter().any(sends)
}
