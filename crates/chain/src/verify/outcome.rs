//! One outcome of a chain: its requests run in turn on unknown data, with decided conditions.

use super::Refusal;
use super::order::Events;
use crate::access::{Moment, Object, Touch, is_hole, touches};
use crate::program::{Chain, Content, Place, Remote, Slot};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, offset};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Requests of the client that are tried at least, one after the other.
const REQUESTS: u64 = 3;
/// Laps of a loop without requests, and in all.
const MAX_LAPS: u64 = 6;

/// A byte of which only the origin is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Byte {
    Constant(u8),
    Initial(Object, u64),
    Unknown(usize),
}

/// One execution of a request: its moments as events, and what it touched.
struct Instance {
    slot: usize,
    fetch: usize,
    start: usize,
    executed: usize,
    done: usize,
    is_local: bool,
    returns_data: bool,
    touches: Vec<Touch>,
    label: String,
}

pub(super) struct Outcome<'c> {
    chain: &'c Chain,
    decisions: &'c [bool],
    decided: Vec<(Vec<Byte>, Vec<Byte>, bool)>,
    events: Events,
    instances: Vec<Instance>,
    /// The instances of each queue, by index.
    queues: Vec<Vec<usize>>,
    limits: Vec<u64>,
    receive_limits: Vec<u64>,
    received: Vec<Vec<usize>>,
    /// Events that enable so many requests of a queue.
    enables: Vec<Vec<(u64, usize)>>,
    receive_enables: Vec<Vec<(u64, usize)>>,
    /// Events that complete into each completion queue.
    feeders: Vec<Vec<usize>>,
    waits: Vec<(usize, usize, u64)>,
    forms: Vec<Control>,
    bytes: HashMap<(Object, u64), Byte>,
    /// Ranges of a slot that have been filled since its last fetch.
    filled: BTreeMap<usize, Vec<(u64, u64)>>,
    /// Ranges that arguments filled: they stay until the next message replaces all of them.
    arguments: BTreeMap<usize, Vec<(u64, u64)>>,
    /// Request that changed the operation of a slot, and whether the slot was fetched since.
    changed: BTreeMap<usize, (String, bool)>,
    fresh: usize,
    was_quiet: bool,
}

impl<'c> Outcome<'c> {
    /// Runs the chain with these decisions, and no condition that holds after them.
    pub(super) fn of(chain: &'c Chain, decisions: &'c [bool]) -> Result<Self, Refusal> {
        let queues = chain.queues.len();
        let mut outcome = Self {
            chain,
            decisions,
            decided: Vec::new(),
            events: Events::default(),
            instances: Vec::new(),
            queues: vec![Vec::new(); queues],
            limits: chain.queues.iter().map(|queue| queue.enabled).collect(),
            receive_limits: chain.receives.iter().map(|receive| receive.enabled).collect(),
            received: vec![Vec::new(); chain.receives.len()],
            enables: vec![Vec::new(); queues],
            receive_enables: vec![Vec::new(); chain.receives.len()],
            feeders: vec![Vec::new(); chain.cqs.len()],
            waits: Vec::new(),
            forms: chain.slots.iter().map(|slot| slot.control).collect(),
            bytes: HashMap::new(),
            filled: BTreeMap::new(),
            arguments: BTreeMap::new(),
            changed: BTreeMap::new(),
            fresh: 0,
            was_quiet: false,
        };
        outcome.run()?;
        Ok(outcome)
    }

    /// Number of open conditions.
    pub(super) fn decided(&self) -> usize {
        self.decided.len()
    }

    /// The slots that were executed.
    pub(super) fn executed(&self) -> impl Iterator<Item = usize> {
        self.instances.iter().map(|instance| instance.slot)
    }

    fn run(&mut self) -> Result<(), Refusal> {
        loop {
            let mut progress = false;
            for queue in 0..self.queues.len() {
                while self.can_start(queue) {
                    self.start(queue)?;
                    progress = true;
                }
            }
            if !progress && !self.receive()? {
                break;
            }
        }
        self.stalls()
    }

    /// A message arrives, when everything before has come to rest.
    fn receive(&mut self) -> Result<bool, Refusal> {
        for (number, receive) in self.chain.receives.iter().enumerate() {
            let index = self.received[number].len() as u64;
            if index >= self.receive_limits[number] || index >= self.requests(number) {
                continue;
            }
            let slot = (index % receive.slots.len().max(1) as u64) as usize;
            let before = self.received[number].last().copied();
            let event = self.events.add(before.as_slice());
            if index >= receive.enabled {
                let of = self.receive_enables[number]
                    .iter()
                    .filter(|(limit, _)| *limit > index)
                    .map(|(_, event)| *event)
                    .collect();
                self.events.after_any(event, of);
            }
            let touches: Vec<Touch> =
                receive.slots[slot].iter().map(|span| Touch::new(Moment::Scatter, true, *span)).collect();
            for touch in &touches {
                self.fill(touch, None);
                if let Object::Slot(slot) = touch.object {
                    self.arguments.entry(slot).or_default().push((touch.start, touch.end));
                }
            }
            self.received[number].push(event);
            self.feeders[receive.cq].push(event);
            let (fetch, start, executed, done) = (event, event, event, event);
            let label = receive.name.clone();
            self.instances.push(Instance {
                slot: usize::MAX,
                fetch,
                start,
                executed,
                done,
                is_local: true,
                returns_data: false,
                touches,
                label,
            });
            return Ok(true);
        }
        Ok(false)
    }

    /// Messages that are tried: two laps of the receive queue, and one more.
    fn requests(&self, receive: usize) -> u64 {
        REQUESTS.max(2 * self.chain.receives[receive].slots.len() as u64 + 1)
    }

    fn next(&self, queue: usize) -> Option<(usize, u64, u64)> {
        let slots = &self.chain.queues[queue].slots;
        let index = self.queues[queue].len() as u64;
        let cycle = slots.len() as u64;
        let is_open = cycle > 0 && index < self.limits[queue] && index / cycle < MAX_LAPS;
        is_open.then(|| (slots[(index % cycle) as usize], index, index / cycle))
    }

    fn can_start(&self, queue: usize) -> bool {
        let Some((slot, _, lap)) = self.next(queue) else { return false };
        let slot = &self.chain.slots[slot];
        match slot.order {
            Some(order) if slot.control.op == ChainOp::Wait => {
                self.feeders[order.object].len() as u64 >= order.count.saturating_add(lap * u64::from(order.step))
            }
            _ => true,
        }
    }

    fn start(&mut self, queue: usize) -> Result<(), Refusal> {
        let Some((number, index, lap)) = self.next(queue) else { return Ok(()) };
        let chain = self.chain;
        let slot = &chain.slots[number];
        self.check_fetch(number, lap)?;
        let form = self.forms[number];
        let op = form.op;
        let instant =
            slot.is_local() || matches!(op, ChainOp::Nop | ChainOp::Wait | ChainOp::Enable | ChainOp::RecvEnable);
        let instance = self.moments(queue, number, index, instant, op);
        let done = instance.done;
        self.queues[queue].push(self.instances.len());
        self.instances.push(instance);
        self.act(number, form, lap, done)?;
        if slot.flags.contains(ChainFlags::SIGNALED) && !form.quiet {
            self.feeders[chain.queues[queue].cq].push(done);
        }
        self.was_quiet |= form.quiet && slot.flags.contains(ChainFlags::SIGNALED);
        Ok(())
    }

    /// The events of an execution, and what the queue itself orders.
    fn moments(&mut self, queue: usize, number: usize, index: u64, instant: bool, op: ChainOp) -> Instance {
        let slot = &self.chain.slots[number];
        let fetch = self.events.add(&[]);
        if index >= self.chain.queues[queue].enabled {
            let of = self.enables[queue].iter().filter(|(limit, _)| *limit > index).map(|(_, event)| *event).collect();
            self.events.after_any(fetch, of);
        }
        let start = self.events.add(&[fetch]);
        let (mut executed, mut done) = (start, start);
        if !instant {
            executed = self.events.add(&[start]);
            done = self.events.add(&[executed]);
        }
        let mut is_latest = true;
        for earlier in self.queues[queue].iter().rev().map(|at| &self.instances[*at]) {
            if is_latest {
                self.events.after(fetch, earlier.fetch);
                self.events.after(start, earlier.start);
            }
            is_latest = false;
            if earlier.is_local {
                self.events.after(fetch, earlier.done);
            }
            if !instant && earlier.executed != earlier.start {
                self.events.after(executed, earlier.executed);
                self.events.after(done, earlier.done);
            }
            if slot.flags.contains(ChainFlags::FENCE) && earlier.returns_data {
                self.events.after(start, earlier.done);
            }
        }
        let touches = touches(self.chain, number, op);
        let (is_local, label) = (slot.is_local(), slot.label.clone());
        Instance {
            slot: number,
            fetch,
            start,
            executed,
            done,
            is_local,
            returns_data: op.returns_data(),
            touches,
            label,
        }
    }

    /// A slot is copied: what should have been filled in or restored since the last time has been.
    fn check_fetch(&mut self, number: usize, lap: u64) -> Result<(), Refusal> {
        let slot = &self.chain.slots[number];
        if let Some((by, true)) = self.changed.get(&number) {
            let cause = format!("still is what `{by}` made of it in an earlier lap");
            return Err(Refusal::new(&slot.label, &cause, "restore its control word by a WRITE of its pristine bytes"));
        }
        let mut filled = self.filled.remove(&number).unwrap_or_default();
        filled.extend(self.arguments.get(&number).into_iter().flatten());
        for (at, length) in &slot.holes {
            let (start, end) = (*at as u64, (at + length) as u64);
            let is_filled = (start..end).all(|byte| filled.iter().any(|(first, last)| *first <= byte && byte < *last));
            if !is_filled && form_uses(slot, self.forms[number], *at) {
                let field = crate::listing::field(slot, *at).map_or_else(|| at.to_string(), str::to_owned);
                let when = if lap == 0 { "" } else { " anew in each lap" };
                let cause = format!("is fetched before its `{field}` is filled in{when}");
                return Err(Refusal::new(&slot.label, &cause, "fill it in earlier: by a READ, a copy or an argument"));
            }
        }
        if let Some((_, is_fetched)) = self.changed.get_mut(&number) {
            *is_fetched = true;
        }
        Ok(())
    }

    fn act(&mut self, number: usize, form: Control, lap: u64, done: usize) -> Result<(), Refusal> {
        let chain = self.chain;
        let slot = &chain.slots[number];
        if let Some(order) = slot.order {
            let count = order.count.saturating_add(lap.saturating_mul(order.step.into()));
            match form.op {
                ChainOp::Wait => self.waits.push((done, order.object, count)),
                ChainOp::Enable | ChainOp::RecvEnable => {
                    let is_send = form.op == ChainOp::Enable;
                    let (limits, enables) = if is_send {
                        (&mut self.limits, &mut self.enables)
                    } else {
                        (&mut self.receive_limits, &mut self.receive_enables)
                    };
                    let Some(limit) = limits.get_mut(order.object) else {
                        return Err(Refusal::new(
                            &slot.label,
                            "enables a queue that is not there",
                            "name a queue of this chain",
                        ));
                    };
                    *limit = if order.relative { limit.saturating_add(order.count) } else { count.max(*limit) };
                    enables[order.object].push((if order.relative { *limit } else { count }, done));
                }
                _ => {}
            }
            return Ok(());
        }
        match (form.op, slot.remote) {
            (ChainOp::CompareSwap, Remote::Own(Place::Slot { slot: target, at: offset::CONTROL })) => {
                self.compare(number, target, slot.compare, slot.swap)
            }
            (ChainOp::WideCompareSwap, Remote::Own(Place::Slot { slot: target, at: offset::WR_ID })) => {
                self.compare(number, target, (slot.wide.compare >> 64) as u64, (slot.wide.swap >> 64) as u64)
            }
            (ChainOp::Min | ChainOp::Max, Remote::Own(Place::Slot { slot: target, at: offset::CONTROL })) => {
                self.calculate(number, target)
            }
            (op, _) => {
                for touch in touches(chain, number, op).iter().filter(|touch| touch.is_write) {
                    self.fill(touch, (op == ChainOp::Write).then_some(number));
                }
            }
        }
        Ok(())
    }

    fn byte(&self, object: Object, at: u64) -> Byte {
        if let Some(byte) = self.bytes.get(&(object, at)) {
            return *byte;
        }
        let constant = |word: u64, from: usize| Byte::Constant(word.to_le_bytes()[at as usize - from]);
        match object {
            Object::Slot(slot) => {
                let slot = &self.chain.slots[slot];
                match at as usize {
                    8..16 => constant(slot.control.encode(), 8),
                    32..40 if slot.class_op().is_atomic() => constant(slot.compare, 32),
                    at @ 72..88 if slot.class_op() == ChainOp::WideCompareSwap => {
                        Byte::Constant(slot.wide.compare.to_le_bytes()[at - offset::WIDE_COMPARE])
                    }
                    _ => Byte::Initial(object, at),
                }
            }
            Object::Region(region) => match &self.chain.regions[region].content {
                Content::Bytes(bytes) => {
                    bytes.get(at as usize).map_or(Byte::Initial(object, at), |byte| Byte::Constant(*byte))
                }
                _ => Byte::Initial(object, at),
            },
        }
    }

    /// Bytes are written: copied from where `writer` gathers them, or unknown.
    fn fill(&mut self, touch: &Touch, writer: Option<usize>) {
        let source = writer.and_then(|writer| self.chain.slots[writer].sges.first().map(|span| (writer, *span)));
        for at in touch.start..touch.end {
            let byte = match source {
                Some((writer, span))
                    if !is_hole(&self.chain.slots[writer], offset::SGES, 12) && !self.is_foreign(span.place) =>
                {
                    let from = Touch::new(Moment::Gather, false, span);
                    self.byte(from.object, from.start + (at - touch.start))
                }
                _ => {
                    self.fresh += 1;
                    Byte::Unknown(self.fresh)
                }
            };
            self.bytes.insert((touch.object, at), byte);
        }
        let Object::Slot(slot) = touch.object else { return };
        if touch.start <= offset::OPERATION as u64 && touch.end > offset::OPERATION as u64 {
            // Only a pristine copy writes a whole control word.
            self.forms[slot] = self.chain.slots[slot].control;
            self.changed.remove(&slot);
            for at in offset::CONTROL..offset::CONTROL + 8 {
                self.bytes.remove(&(touch.object, at as u64));
            }
        } else {
            self.filled.entry(slot).or_default().push((touch.start, touch.end));
        }
    }

    /// Whether others change the memory at any time: what is read twice may differ.
    fn is_foreign(&self, place: Place) -> bool {
        matches!(place, Place::Region { region, .. } if self.chain.regions[region].content.is_foreign())
    }

    /// A condition: known, decided before, or to be decided.
    fn compare(&mut self, number: usize, target: usize, compare: u64, swap: u64) {
        let slot = &self.chain.slots[number];
        let (Some(expected), Some(after)) = (Control::decode(compare), Control::decode(swap)) else { return };
        let form = self.forms[target];
        if (form.op, form.quiet) != (expected.op, expected.quiet) {
            return;
        }
        let word = |object, from: usize, length: usize| -> Vec<Byte> {
            (from..from + length).map(|at| self.byte(object, at as u64)).collect()
        };
        let (a, b) = if slot.class_op() == ChainOp::WideCompareSwap {
            (word(Object::Slot(number), offset::WIDE_COMPARE, 15), word(Object::Slot(target), offset::WR_ID, 15))
        } else {
            (word(Object::Slot(number), offset::COMPARE, 7), word(Object::Slot(target), offset::CONTROL, 7))
        };
        if !self.holds(a, b) {
            return;
        }
        self.forms[target] = after;
        self.changed.insert(target, (slot.label.clone(), false));
        for (at, byte) in (offset::CONTROL as u64..).zip(after.operand.to_le_bytes()).take(7) {
            self.bytes.insert((Object::Slot(target), at), Byte::Constant(byte));
        }
    }

    fn holds(&mut self, a: Vec<Byte>, b: Vec<Byte>) -> bool {
        if a == b {
            return true;
        }
        let differ = |(a, b): (&Byte, &Byte)| matches!((a, b), (Byte::Constant(a), Byte::Constant(b)) if a != b);
        if a.iter().zip(&b).any(differ) {
            return false;
        }
        if let Some((_, _, holds)) = self.decided.iter().find(|(c, d, _)| (c, d) == (&a, &b)) {
            return *holds;
        }
        let holds = self.decisions.get(self.decided.len()).copied().unwrap_or(false);
        self.decided.push((a, b, holds));
        holds
    }

    /// The larger or smaller operand: unknown, but the same for the same two.
    fn calculate(&mut self, number: usize, target: usize) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hash = DefaultHasher::new();
        for at in 0..7 {
            self.byte(Object::Slot(number), offset::COMPARE as u64 + at).hash(&mut hash);
            self.byte(Object::Slot(target), offset::CONTROL as u64 + at).hash(&mut hash);
        }
        self.chain.slots[number].control.op.hash(&mut hash);
        let origin = hash.finish() as usize | 1 << 63;
        for at in 0..7 {
            self.bytes.insert(
                (Object::Slot(target), offset::CONTROL as u64 + at),
                Byte::Unknown(origin.wrapping_add(at as usize)),
            );
        }
    }

    /// Queues stand only where they may.
    fn stalls(&self) -> Result<(), Refusal> {
        for queue in 0..self.queues.len() {
            let Some((slot, _, lap)) = self.next(queue) else { continue };
            let slot = &self.chain.slots[slot];
            let Some(order) = slot.order else { continue };
            let receive = self.chain.receives.iter().position(|receive| receive.cq == order.object);
            let is_open = receive.is_some_and(|r| {
                self.received[r].len() as u64 >= self.requests(r).min(self.receive_limits[r]) && lap > 0
            });
            let name = &self.chain.cqs[order.object];
            if let Some(receive) = receive.filter(|r| is_open && (self.received[*r].len() as u64) < self.requests(*r)) {
                let cause =
                    format!("waits for the next message, but `{}` takes none", self.chain.receives[receive].name);
                return Err(Refusal::new(&slot.label, &cause, "end each lap with RECV_ENABLE"));
            }
            if is_open || receive.is_none() && self.was_quiet {
                continue;
            }
            let (count, come) = (order.count + lap * u64::from(order.step), self.feeders[order.object].len());
            let cause = format!("waits for {count} completions of `{name}`, of which only {come} come");
            return Err(Refusal::new(
                &slot.label,
                &cause,
                "count the completions of a lap again, or signal those that are missing",
            ));
        }
        Ok(())
    }

    /// Orders all accesses, and finds two that no order separates.
    pub(super) fn check(mut self) -> Result<(), Refusal> {
        for (event, cq, count) in std::mem::take(&mut self.waits) {
            self.events.wait(event, count, self.feeders[cq].clone());
        }
        self.events.close();
        // What is never read may be written in any order.
        let all = || self.instances.iter().flat_map(|instance| &instance.touches);
        let read: BTreeSet<Object> = all().filter(|touch| !touch.is_write).map(|touch| touch.object).collect();
        for (n, b) in self.instances.iter().enumerate() {
            for a in &self.instances[..n] {
                for (x, y) in a.touches.iter().flat_map(|x| b.touches.iter().map(move |y| (x, y))) {
                    if x.conflicts(y) && read.contains(&x.object) && !self.are_ordered(a, x, b, y) {
                        return Err(race(self.chain, a, x, b, y));
                    }
                }
            }
        }
        Ok(())
    }

    fn are_ordered(&self, a: &Instance, x: &Touch, b: &Instance, y: &Touch) -> bool {
        let (x, y) = (interval(self.chain, a, x), interval(self.chain, b, y));
        self.events.is_before(x.1, y.0) || self.events.is_before(y.1, x.0)
    }
}

/// Between which events an access lies.
fn interval(chain: &Chain, instance: &Instance, touch: &Touch) -> (usize, usize) {
    let is_client = chain.slots.get(instance.slot).is_some_and(|slot| !matches!(slot.remote, Remote::Own(_)));
    match touch.moment {
        Moment::Fetch => (instance.fetch, instance.fetch),
        // Another host may ask for the data again until it has acknowledged it.
        Moment::Gather => (instance.start, if is_client { instance.done } else { instance.executed }),
        Moment::Respond => (instance.executed, instance.executed),
        Moment::Scatter => (instance.executed, instance.done),
    }
}

fn race(chain: &Chain, a: &Instance, x: &Touch, b: &Instance, y: &Touch) -> Refusal {
    let name = match x.object {
        Object::Region(region) => chain.regions[region].name.clone(),
        Object::Slot(slot) => chain.slots[slot].label.clone(),
    };
    let (writer, other) = if y.is_write { (b, a) } else { (a, b) };
    let (cause, remedy) = if x.moment == Moment::Fetch || y.moment == Moment::Fetch {
        (format!("may change `{name}` while it is fetched"), "put WAIT and ENABLE between them, or make it LOCAL")
    } else {
        (format!("may change `{name}` while `{}` uses it", other.label), "put a WAIT or FENCE between them")
    };
    Refusal::new(&writer.label, &cause, remedy)
}

/// Whether a slot in this form looks at a field: a NOP looks at nothing but what conditions compare.
fn form_uses(slot: &Slot, form: Control, at: usize) -> bool {
    form.op != ChainOp::Nop || at <= offset::CONTROL || slot.may.is_empty()
}
