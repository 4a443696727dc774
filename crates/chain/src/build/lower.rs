//! Lowering: a program's straight line in queues, with what orders it.

use super::{Design, Item, Program, copy};
use crate::access::{Moment, Object, Touch, all_touches};
use crate::program::{ALWAYS, Chain, Content, Order, Place, Queue, Receive, Region, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class};
use std::collections::BTreeSet;

/// The queue that runs the others; in [`Design::Local`] the only one. The program and each of its branches have such queues.
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
    /// The first queue of the program, or of the branch that is lowered.
    base: usize,
    /// The branch of each slot, from 1; the program's own are 0.
    groups: Vec<usize>,
    /// Slots that something writes.
    changed: Vec<bool>,
    placed: Vec<Placed>,
    /// Completions of each completion queue so far in a lap, and those that the control queue has waited for.
    signaled: Vec<u64>,
    waited: Vec<u64>,
    requests_cq: usize,
    /// The completion queue of the request that ends a lap.
    ends_cq: usize,
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
    /// Completion queues of which all must have come.
    wait: BTreeSet<usize>,
    fence: bool,
}

impl Needs {
    fn wait(&mut self, cq: usize) {
        self.wait.insert(cq);
    }
}

/// The branch of each slot, from 1.
fn groups(program: &Program) -> Vec<usize> {
    let mut groups = vec![0; program.chain.slots.len()];
    for (number, branch) in program.branches.iter().enumerate() {
        for item in &branch.items {
            if let Item::Slot(slot) = item {
                groups[*slot] = number + 1;
            }
        }
    }
    groups
}

pub(super) fn lower(program: &Program, design: Design) -> Chain {
    let lean = attempt(program, design, false);
    // The next lap may need that all of this one has ended; most do not.
    if design == Design::Portable && program.is_recycled && crate::verify::verify(&lean).is_err() {
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
    lowering.lower_items(items(program), &copies);
    for (number, branch) in program.branches.iter().enumerate() {
        lowering.base = (number + 1) * design.queues();
        lowering.placed.clear();
        lowering.lower_items(branch.items.clone(), &[]);
    }
    lowering.finish()
}

impl Design {
    /// Queues of a program, or of a branch.
    const fn queues(self) -> usize {
        match self {
            Self::Local => 1,
            Self::Portable => 3,
        }
    }
}

/// The items in order; what has several ends restores at its head, where the last lap has ended for certain.
fn items(program: &Program) -> Vec<Item> {
    let mut items = program.items.clone();
    if !program.is_loop && program.branches.is_empty() {
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
    items.retain(|item| !(is_restore(item) || program.is_loop && *item == Item::Rearm));
    let head = items.iter().position(|item| *item == Item::Request).map_or(0, |at| at + 1);
    items.splice(head..head, restores);
    items
}

impl<'p> Lowering<'p> {
    fn new(program: &'p Program, design: Design) -> Self {
        let mut chain = program.chain.clone();
        chain.cqs = vec!["ends".into(), if program.is_loop { "tokens".into() } else { "requests".into() }];
        let names = std::iter::once("").chain(program.branches.iter().map(|branch| branch.name.as_str()));
        for (group, name) in names.enumerate() {
            let all: &[&str] = if design == Design::Local { &["chain"] } else { &["control", "targets", "replies"] };
            for (at, kind) in all.iter().enumerate() {
                let name = match (group, design) {
                    (0, _) => (*kind).to_owned(),
                    (_, Design::Local) => name.to_owned(),
                    _ => format!("{name}.{kind}"),
                };
                let to_client = at + 1 == all.len();
                chain.cqs.push(format!("sent.{name}"));
                let cq = chain.cqs.len() - 1;
                chain.queues.push(Queue { name, cq, to_client, enabled: 0, slots: Vec::new() });
            }
        }
        let mut lowering = Self {
            program,
            design,
            is_recycled: program.is_recycled,
            base: 0,
            groups: groups(program),
            changed: Vec::new(),
            placed: Vec::new(),
            signaled: vec![0; chain.cqs.len()],
            waited: vec![0; chain.cqs.len()],
            ends_cq: 0,
            requests_cq: 1,
            ends: false,
            chain,
        };
        lowering.share_queues();
        lowering
    }

    /// Completion queues that count for several queues: of what ends a lap, and of a loop's tokens.
    fn share_queues(&mut self) {
        for slot in &self.program.ends {
            let queue = self.queue_of(*slot);
            self.chain.queues[queue].cq = self.ends_cq;
            self.signaled[self.ends_cq] = self.program.ends_of_a_lap;
        }
        if self.program.is_loop {
            let last = self.design.queues() - 1;
            self.chain.queues[last].cq = self.requests_cq;
        }
    }

    fn lower_items(&mut self, items: Vec<Item>, copies: &[usize]) {
        for item in items {
            match item {
                Item::Request => self.request(copies),
                Item::Slot(slot) => self.emit(slot),
                Item::Await(slot) => {
                    let queue = self.queue_of(slot);
                    self.wait_for(self.chain.queues[queue].cq);
                }
                Item::Ended => self.wait_for(self.ends_cq),
                Item::Rearm => self.rearm(),
            }
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
            self.chain.receives.push(Receive { name: "arguments".into(), cq, enabled: 1, slots: vec![sges] });
        }
        copies
    }

    fn note_changes(&mut self, copies: &[usize]) {
        if self.design == Design::Portable {
            self.give_results();
        }
        let mut changed = vec![false; self.chain.slots.len()];
        let branches = self.program.branches.iter().flat_map(|branch| &branch.items);
        let items = self.program.items.iter().chain(branches);
        let used = items.filter_map(|item| if let Item::Slot(slot) = item { Some(*slot) } else { None });
        let written = used.chain(copies.iter().copied()).flat_map(|slot| all_touches(&self.chain, slot));
        let received = self
            .chain
            .receives
            .iter()
            .flat_map(|r| r.slots.iter().flatten())
            .map(|span| Touch::new(Moment::Scatter, true, *span));
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
        let mut at = 0;
        for slot in bare {
            let width = self.chain.slots[slot].class_op().width() as u32;
            self.chain.slots[slot].sges.push(Span { place: Place::Region { region, at }, length: width });
            at += u64::from(width);
        }
        self.chain.regions.push(Region { name: "old".into(), content: Content::Scratch(at) });
    }

    fn queue_of(&self, number: usize) -> usize {
        let slot = &self.chain.slots[number];
        let base = self.groups.get(number).map_or(self.base, |group| group * self.design.queues());
        let is_changed = self.changed.get(number).copied().unwrap_or(false);
        base + match self.design {
            Design::Local => CONTROL,
            Design::Portable if is_reply(slot) || self.program.ends.contains(&number) => REPLIES,
            Design::Portable if slot.class() == Class::Order && !slot.may.is_empty() => REPLIES,
            Design::Portable if is_changed => TARGETS,
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
        let control = self.base + CONTROL;
        self.chain.queues[control].slots.push(self.chain.slots.len() - 1);
    }

    fn request(&mut self, copies: &[usize]) {
        self.push_order("request".into(), ChainOp::Wait, self.requests_cq, 1, u32::from(self.is_recycled));
        for slot in copies {
            self.emit(*slot);
        }
    }

    /// Waits for all that has been completed to a completion queue so far.
    fn wait_for(&mut self, cq: usize) {
        let count = self.signaled[cq];
        if self.waited[cq] < count {
            self.waited[cq] = count;
            let label = if cq == self.ends_cq { "end" } else { self.last_signaled(cq) };
            self.push_order(format!("after.{label}"), ChainOp::Wait, cq, count, 0);
        }
    }

    fn last_signaled(&self, cq: usize) -> &str {
        let slots = self.chain.queues.iter().filter(|queue| queue.cq == cq).flat_map(|queue| queue.slots.iter().rev());
        let mut signaled =
            slots.map(|slot| &self.chain.slots[*slot]).filter(|slot| slot.flags.contains(ChainFlags::SIGNALED));
        signaled.next().map_or("start", |slot| &slot.label)
    }

    fn emit(&mut self, number: usize) {
        let queue = self.queue_of(number);
        let touches = self.touches(number);
        let needs = self.needs(queue, &touches);
        for cq in needs.wait {
            self.wait_for(cq);
        }
        if self.program.ends.contains(&number) && self.program.ends_of_a_lap > 1 {
            self.wait_for_branch();
        }
        let completes = self.completes(number);
        let slot = &mut self.chain.slots[number];
        let is_instant = self.design == Design::Local && !is_reply(slot);
        slot.flags.set(ChainFlags::SIGNALED, completes);
        slot.flags.set(ChainFlags::LOCAL, is_instant);
        slot.flags.set(ChainFlags::FENCE, needs.fence);
        let cq = self.chain.queues[queue].cq;
        if !self.program.ends.contains(&number) {
            self.signaled[cq] += u64::from(completes);
        }
        let completion = completes.then_some(self.signaled[cq]);
        self.placed.push(Placed { queue, completion, touches, is_instant });
        self.chain.queues[queue].slots.push(number);
        if queue != self.base + CONTROL {
            self.enable(queue);
        }
    }

    /// Waits for all of a branch beside which others run: when it has ended, what it wrote is there.
    fn wait_for_branch(&mut self) {
        for queue in self.base..self.base + self.design.queues() {
            let cq = self.chain.queues[queue].cq;
            if cq != self.ends_cq {
                self.wait_for(cq);
            }
        }
    }

    /// Whether success makes a completion.
    fn completes(&self, number: usize) -> bool {
        let slot = &self.chain.slots[number];
        let stops = slot.may.iter().any(|control| control.quiet) || slot.control.quiet;
        let is_reply = is_reply(slot);
        let is_main = self.base == 0;
        let is_end = self.program.ends.contains(&number);
        if self.chain.queues[self.queue_of(number)].cq == self.ends_cq {
            return is_end;
        }
        if self.program.is_loop && is_main && (is_reply || self.design == Design::Local) {
            stops && slot.class() == Class::Order
        } else if self.design == Design::Local && !is_main {
            is_end
        } else {
            is_reply || stops || self.design == Design::Portable
        }
    }

    /// Accesses of a request; of one that starts a branch, those of the whole branch too, and of one that takes the next message,
    /// those of the message.
    fn touches(&self, number: usize) -> Vec<Touch> {
        let mut touches = all_touches(&self.chain, number);
        if let Some(branch) = self.program.branches.iter().find(|branch| branch.start == number) {
            let slots =
                branch.items.iter().filter_map(|item| if let Item::Slot(slot) = item { Some(*slot) } else { None });
            touches.extend(slots.flat_map(|slot| self.touches(slot)));
        }
        if self.chain.slots[number].class_op() == ChainOp::RecvEnable {
            let spans = self.chain.receives.iter().flat_map(|receive| receive.slots.iter().flatten());
            touches.extend(spans.map(|span| Touch::new(Moment::Scatter, true, *span)));
        }
        touches
    }

    fn needs(&self, queue: usize, touches: &[Touch]) -> Needs {
        let mut needs = Needs::default();
        let cq = |queue: usize| self.chain.queues[queue].cq;
        // What the control queue has waited for already is over.
        let is_over = |placed: &Placed| placed.completion.is_some_and(|count| count <= self.waited[cq(placed.queue)]);
        for earlier in self.placed.iter().filter(|placed| !placed.is_instant && !is_over(placed)) {
            for (a, b) in earlier.touches.iter().flat_map(|a| touches.iter().map(move |b| (a, b))) {
                if !a.conflicts(b) {
                    continue;
                }
                let is_local = self.design == Design::Local;
                match (a.moment, b.moment) {
                    _ if earlier.queue != queue => needs.wait(cq(earlier.queue)),
                    // Copied before it started, and so before anything later.
                    (Moment::Fetch, _) => {}
                    (_, Moment::Fetch) => needs.wait(cq(queue)),
                    (Moment::Gather, _) if !is_local => {}
                    (Moment::Respond, Moment::Respond) if !is_local => {}
                    (Moment::Scatter, _) if !is_local => needs.fence = true,
                    _ => needs.wait(cq(queue)),
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
        if let Some(last) = self.chain.queues[self.base + CONTROL].slots.last() {
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
        for queue in 0..self.design.queues() {
            let is_control = queue == CONTROL;
            if !is_control || self.ends || self.design == Design::Local && self.replies_are_overwritten() {
                self.wait_for(self.chain.queues[queue].cq);
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
        let size = self.design.queues();
        for (number, branch) in self.program.branches.iter().enumerate() {
            let object = (number + 1) * size;
            let order = Order { object, count: lengths[object].into(), step: 0, relative: true };
            self.chain.slots[branch.start].order = Some(order);
        }
        let controls = (0..self.chain.queues.len()).step_by(size);
        for slot in controls.flat_map(|queue| self.chain.queues[queue].slots.clone()) {
            let slot = &mut self.chain.slots[slot];
            let (Some(order), true) = (&mut slot.order, self.is_recycled) else { continue };
            match slot.control.op {
                ChainOp::Enable if !order.relative => order.step = lengths[order.object],
                ChainOp::Wait if order.object != self.requests_cq => order.step = self.signaled[order.object] as u32,
                _ => {}
            }
        }
        self.chain.queues[CONTROL].enabled = if self.is_recycled { ALWAYS } else { lengths[CONTROL].into() };
        self.chain.in_order()
    }
}

fn is_reply(slot: &Slot) -> bool {
    let sends = |op| matches!(op, ChainOp::Send | ChainOp::SendImm | ChainOp::WriteImm);
    let any = std::iter::once(slot.control.op).chain(slot.may.iter().map(|control| control.op));
    matches!(slot.remote, Remote::Client { .. }) || any.into_iter().any(sends)
}
