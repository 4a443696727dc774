//! Conditions: a COMPARE_SWAP tests an operand and changes an operation at once.

use super::{Arg, Item, Program, Request, U56, U120};
use crate::program::{Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, Wide, offset};

/// Value that an operand is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number, of which as many bits are used as the operand has.
    Constant(u128),
    /// An argument of the client's, of 56 or of 120 bits: its number.
    Argument(usize),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Constant(value.into())
    }
}

impl From<Arg<U56>> for Value {
    fn from(arg: Arg<U56>) -> Self {
        Self::Argument(arg.number())
    }
}

impl From<Arg<U120>> for Value {
    fn from(arg: Arg<U120>) -> Self {
        Self::Argument(arg.number())
    }
}

/// Comparisons of operands ([`Request::operand`], [`Request::wide_operand`]) with values, all of which must hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    all: Vec<Comparison>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Comparison {
    /// The operand; `None` is what is true always.
    operand: Option<Span>,
    /// It is one of these.
    values: Vec<Value>,
    /// The calculation that turns the comparison into one for equality.
    calc: Option<ChainOp>,
    is_negated: bool,
}

impl Comparison {
    fn is_wide(&self) -> bool {
        self.operand.is_some_and(|operand| operand.length > 8)
    }
}

impl Condition {
    fn new(operand: Span, values: Vec<Value>, calc: Option<ChainOp>, is_negated: bool) -> Self {
        Self { all: vec![Comparison { operand: Some(operand), values, calc, is_negated }] }
    }

    /// This and another condition. Each comparison after the first costs a COMPARE_SWAP that the one before makes of a NOP; an
    /// operand that lies in a [`test`](super::test) needs no copy.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.all.extend(other.all);
        self
    }
}

impl Span {
    /// Whether the operand is the value.
    pub fn eq(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], None, false)
    }

    /// Whether the operand is one of the values.
    pub fn one_of(self, values: impl IntoIterator<Item = Value>) -> Condition {
        Condition::new(self, values.into_iter().collect(), None, false)
    }

    /// Whether the operand is another than the value.
    pub fn ne(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], None, true)
    }

    /// Whether the operand is a pointer to nothing.
    pub fn is_null(self) -> Condition {
        self.eq(0_u64)
    }

    /// Whether the operand is at most the value.
    pub fn le(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], Some(ChainOp::Max), false)
    }

    /// Whether the operand is at least the value.
    pub fn ge(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], Some(ChainOp::Min), false)
    }

    /// Whether the operand is less than the value.
    pub fn lt(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], Some(ChainOp::Min), true)
    }

    /// Whether the operand is greater than the value.
    pub fn gt(self, value: impl Into<Value>) -> Condition {
        Condition::new(self, vec![value.into()], Some(ChainOp::Max), true)
    }
}

/// Requests that depend on a condition.
///
/// The condition is tested once for each request that depends on it, by a COMPARE_SWAP of that request's control word.
#[derive(Debug)]
pub struct When<'p> {
    program: &'p mut Program,
    condition: Condition,
    targets: Vec<Target>,
    /// Operands need no copies.
    is_loaded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    slot: usize,
    /// Executed if the condition holds, or if it does not.
    runs: bool,
    is_placed: bool,
    stops: bool,
}

/// A comparison, the request whose control word it tests, and what it makes of it.
struct Link {
    comparison: Comparison,
    slot: usize,
    before: Control,
    after: Control,
}

impl<'p> When<'p> {
    pub(super) fn new(program: &'p mut Program, condition: Condition) -> Self {
        Self { program, condition, targets: Vec::new(), is_loaded: false }
    }

    /// Puts a request here that is executed if the condition holds.
    #[must_use = "a condition ends with `done`"]
    pub fn run(self, request: Request) -> Self {
        self.target(request, true, true, false)
    }

    /// Puts a request here that is executed if the condition does not hold.
    #[must_use = "a condition ends with `done`"]
    pub fn otherwise(self, request: Request) -> Self {
        self.target(request, false, true, false)
    }

    /// A request that is placed later is not executed if the condition holds. Once cancelled, it stays so in this lap.
    #[must_use = "a condition ends with `done`"]
    pub fn cancel(self, request: Request) -> Self {
        self.target(request, false, false, false)
    }

    /// Puts a request here that is executed if the condition holds, and is then the last one: what follows in the program waits
    /// for a completion that does not come.
    #[must_use = "a condition ends with `done`"]
    pub fn stop_with(self, request: Request) -> Self {
        self.target(request, true, true, true)
    }

    /// The operand lies in all the requests already: each has been filled in, and none needs a copy.
    #[must_use = "a condition ends with `done`"]
    pub fn in_place(mut self) -> Self {
        self.is_loaded = true;
        self
    }

    fn target(mut self, request: Request, runs: bool, is_placed: bool, stops: bool) -> Self {
        self.targets.push(Target { slot: request.0, runs, is_placed, stops });
        self
    }

    /// Ends the condition.
    pub fn done(mut self) {
        let stops = |target: &Target| target.stops && self.program.chain.slots[target.slot].order.is_none();
        if self.program.is_loop && self.targets.iter().any(stops) {
            self.give_credit();
        }
        let tests: Vec<Vec<Link>> = self.targets.clone().into_iter().map(|target| self.links(target)).collect();
        // All operands before the first COMPARE_SWAP: it clears the one that it tests.
        let is_loaded = |link: &&Link| self.is_loaded && self.targets.iter().any(|target| target.slot == link.slot);
        let missing: Vec<&Link> = tests.iter().flatten().filter(|link| !is_loaded(link)).collect();
        let loads = missing.into_iter().filter_map(|link| self.operands(link)).collect();
        self.load_all(loads);
        for links in &tests {
            self.test(links);
        }
        for target in self.targets {
            if target.is_placed {
                self.program.items.push(Item::Slot(target.slot));
            }
            if target.stops && !self.program.is_loop && self.program.chain.slots[target.slot].order.is_none() {
                self.program.items.push(Item::Await(target.slot));
            }
        }
    }

    /// The receive request for the next message, once the loop has ended.
    fn give_credit(&mut self) {
        let credit = self.program.credit("credit", true);
        self.targets.push(Target { slot: credit.0, runs: true, is_placed: true, stops: true });
    }

    /// The comparisons in the order of their tests: each but the last lets the next one happen.
    fn links(&mut self, target: Target) -> Vec<Link> {
        let Some((idle, active)) = self.forms(target) else { return Vec::new() };
        let mut all = self.leading_first(target);
        let (mut before, mut after) = if target.runs { (idle, active) } else { (active, idle) };
        let is_simple = all.len() == 1 && self.is_fresh(target.slot, &all[0], before);
        if is_simple && all[0].is_negated {
            (before, after) = (after, before);
        } else if !is_simple {
            self.end_with_equality(target.slot, &mut all);
        }
        self.declare_forms(target, before, after);
        let gates: Vec<usize> = (1..all.len()).map(|at| self.gate(target.slot, &all[at - 1], &all[at])).collect();
        let slots = gates.into_iter().chain([target.slot]);
        let (last, nop) = (all.len() - 1, Control::new(ChainOp::Nop));
        let ops: Vec<Control> = all.iter().map(|c| Control::new(operation(c))).collect();
        let link = |(at, (comparison, slot)): (usize, (Comparison, usize))| {
            let (before, after) = match comparison.is_negated {
                _ if at == last => (before, after),
                true => (ops[at + 1], nop),
                false => (nop, ops[at + 1]),
            };
            Link { comparison, slot, before, after }
        };
        all.into_iter().zip(slots).enumerate().map(link).collect()
    }

    /// The comparisons; only the first can be one that must fail, or have several values: its test is executed for certain.
    fn leading_first(&mut self, target: Target) -> Vec<Comparison> {
        let mut all = self.condition.all.clone();
        let must_lead = |comparison: &Comparison| comparison.is_negated || comparison.values.len() > 1;
        all.sort_by_key(|comparison| !must_lead(comparison));
        if all.iter().filter(|comparison| must_lead(comparison)).count() > 1 {
            let cause = "depends on two comparisons that are negated or have several values";
            self.program.refuse(target.slot, cause, "make two conditions of it");
        }
        all
    }

    /// Puts a comparison for equality last, which changes the target itself; if need be, one that always holds.
    fn end_with_equality(&self, slot: usize, all: &mut Vec<Comparison>) {
        let own = self.own_operand(slot, all);
        let is_last = |c: &Comparison| !c.is_negated && c.calc.is_none() && c.values.len() == 1;
        let found = all.iter().position(|c| is_last(c) && c.operand == Some(own));
        let found = found.or_else(|| all.iter().rposition(is_last)).filter(|_| all.len() > 1);
        let truth = Comparison { operand: None, values: vec![0_u64.into()], calc: None, is_negated: false };
        let last = found.map_or(truth, |at| all.remove(at));
        all.push(last);
    }

    fn own_operand(&self, slot: usize, all: &[Comparison]) -> Span {
        let is_wide = all.iter().any(|c| c.is_wide() && c.operand == Some(Request(slot).wide_operand()));
        if is_wide { Request(slot).wide_operand() } else { Request(slot).operand() }
    }

    /// Control words of a conditional request: doing nothing, and acting.
    fn forms(&self, target: Target) -> Option<(Control, Control)> {
        let op = self.program.declared[target.slot]?;
        let is_order = self.program.chain.slots[target.slot].order.is_some();
        // The token of a loop's next iteration is the completion of the credit that is not given: the last request of the
        // lap, before which the one that would end the loop has been fetched.
        let is_without_token = self.program.is_loop && target.stops && !is_order;
        // Of the requests that may end a lap one completes: the start of a branch when it does not start it.
        let is_end = self.program.ends.contains(&target.slot);
        let idle = Control { quiet: is_without_token || is_end && !is_order, ..Control::new(ChainOp::Nop) };
        let active = Control { quiet: target.stops || is_end && is_order, ..Control::new(op) };
        Some((idle, active))
    }

    /// Whether a comparison may change a request's control word: it is certain what the word is.
    fn is_fresh(&self, slot: usize, comparison: &Comparison, before: Control) -> bool {
        let control = self.program.chain.slots[slot].control;
        let is_same = (control.op, control.quiet) == (before.op, before.quiet);
        !self.program.conditional.contains(&slot) || is_same && comparison.calc.is_none() && !comparison.is_negated
    }

    fn declare_forms(&mut self, target: Target, before: Control, after: Control) {
        let slot = target.slot;
        if !self.program.conditional.contains(&slot) {
            self.program.conditional.push(slot);
            self.program.chain.slots[slot].control = before;
        }
        let request = &mut self.program.chain.slots[slot];
        request.flags |= ChainFlags::SIGNALED;
        let other =
            if (request.control.op, request.control.quiet) == (before.op, before.quiet) { after } else { before };
        if !request.may.contains(&other) {
            request.may.push(other);
        }
    }

    /// The COMPARE_SWAP that a comparison lets happen: one that the author declared for its operand, or a new one.
    fn gate(&mut self, target: usize, comparison: &Comparison, next: &Comparison) -> usize {
        let declared = self.program.tests.iter().position(|test| {
            let test = Request(*test);
            comparison.operand == Some(test.operand()) || comparison.operand == Some(test.wide_operand())
        });
        let gate = match declared {
            Some(at) => self.program.tests.remove(at),
            None => {
                let label = format!("and.{}", self.program.chain.slots[target].label);
                self.program.push(Slot::new(label, ChainOp::Nop))
            }
        };
        let (idle, active) = (Control::new(ChainOp::Nop), Control::new(operation(next)));
        let slot = &mut self.program.chain.slots[gate];
        (slot.control, slot.may) = if comparison.is_negated { (active, vec![idle]) } else { (idle, vec![active]) };
        self.program.declared[gate] = Some(active.op);
        self.program.conditional.push(gate);
        gate
    }

    /// Required and present place of an operand.
    fn operands(&mut self, link: &Link) -> Option<(Span, Span)> {
        let request = Request(link.slot);
        let to = if link.comparison.is_wide() { request.wide_operand() } else { request.operand() };
        let from = match link.comparison.operand {
            Some(operand) => Span { length: to.length, ..operand },
            None => self.program.zeros(),
        };
        (to != from).then_some((to, from))
    }

    /// Brings operands to the control words that are tested; none is overwritten before it is copied.
    fn load_all(&mut self, mut loads: Vec<(Span, Span)>) {
        while !loads.is_empty() {
            let is_free = |to: Span| loads.iter().all(|(_, from)| from.place != to.place);
            let next = loads.iter().position(|(to, _)| is_free(*to)).unwrap_or_else(|| {
                self.program.refuse(self.targets[0].slot, "swaps operands", "read them into other requests");
                0
            });
            let (to, from) = loads.remove(next);
            self.program.copy(to, from);
        }
    }

    fn test(&mut self, links: &[Link]) {
        for link in links {
            if let Some(calc) = link.comparison.calc {
                if link.comparison.is_wide() {
                    let cause = "depends on the order of 120 bits";
                    self.program.refuse(link.slot, cause, "compare 56 bits, or two words one after the other");
                }
                self.atomic(calc, link, link.comparison.values[0], None);
            }
        }
        let mut gate = None;
        for link in links {
            for value in link.comparison.values.clone() {
                self.atomic(operation(&link.comparison), link, value, gate);
            }
            gate = Some(link.slot);
        }
    }

    /// Puts an atomic operation on the control word of a link here: a new request, or one that an earlier test lets happen.
    fn atomic(&mut self, op: ChainOp, link: &Link, value: Value, gate: Option<usize>) {
        let constant = if let Value::Constant(value) = value { value } else { 0 };
        let word = |low: u128| Control { operand: low as u64 & Control::MAX_OPERAND, ..link.before }.encode();
        let is_test = operation(&link.comparison) == op;
        let number = gate.unwrap_or_else(|| {
            let name = if is_test { "if" } else { "calc" };
            let label = format!("{name}.{}", self.program.chain.slots[link.slot].label);
            self.program.push(Slot::new(label, op))
        });
        let slot = &mut self.program.chain.slots[number];
        let (place, field) = if op == ChainOp::WideCompareSwap {
            let compare = u128::from(word(constant >> 64)) << 64 | constant & u128::from(u64::MAX);
            let swap = u128::from(link.after.encode()) << 64;
            slot.wide = Wide { compare, swap, compare_mask: u128::MAX, swap_mask: u128::MAX << 64 };
            (offset::WR_ID, offset::WIDE_COMPARE)
        } else {
            slot.compare = word(constant);
            slot.swap = if is_test { link.after.encode() } else { 0 };
            (offset::CONTROL, offset::COMPARE)
        };
        slot.remote = Remote::Own(Place::Slot { slot: link.slot, at: place });
        if let Value::Argument(arg) = value {
            self.program.fill_argument(arg, number, field);
        }
        self.program.items.push(Item::Slot(number));
    }
}

fn operation(comparison: &Comparison) -> ChainOp {
    if comparison.is_wide() { ChainOp::WideCompareSwap } else { ChainOp::CompareSwap }
}
