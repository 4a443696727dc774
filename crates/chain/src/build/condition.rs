//! Conditions: a COMPARE_SWAP tests an operand and changes an operation at once.

use super::{Arg, Item, Program, Request, U56};
use crate::program::{Order, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, offset};

/// Value that an operand is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number, of which 56 bits are used.
    Constant(u64),
    /// An argument of the client's.
    Argument(Arg<U56>),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Constant(value)
    }
}

impl From<Arg<U56>> for Value {
    fn from(arg: Arg<U56>) -> Self {
        Self::Argument(arg)
    }
}

/// A comparison of an operand ([`Request::operand`]) with a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    operand: Span,
    value: Value,
    /// The calculation that turns the comparison into one for equality.
    calc: Option<ChainOp>,
    is_negated: bool,
}

impl Span {
    /// Whether the operand is the value.
    pub fn eq(self, value: impl Into<Value>) -> Condition {
        Condition { operand: self, value: value.into(), calc: None, is_negated: false }
    }

    /// Whether the operand is another than the value.
    pub fn ne(self, value: impl Into<Value>) -> Condition {
        Condition { is_negated: true, ..self.eq(value) }
    }

    /// Whether the operand is at most the value.
    pub fn le(self, value: impl Into<Value>) -> Condition {
        Condition { calc: Some(ChainOp::Max), ..self.eq(value) }
    }

    /// Whether the operand is at least the value.
    pub fn ge(self, value: impl Into<Value>) -> Condition {
        Condition { calc: Some(ChainOp::Min), ..self.eq(value) }
    }

    /// Whether the operand is less than the value.
    pub fn lt(self, value: impl Into<Value>) -> Condition {
        Condition { is_negated: true, ..self.ge(value) }
    }

    /// Whether the operand is greater than the value.
    pub fn gt(self, value: impl Into<Value>) -> Condition {
        Condition { is_negated: true, ..self.le(value) }
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
}

#[derive(Clone, Copy, Debug)]
struct Target {
    slot: usize,
    /// Executed if the condition holds, or if it does not.
    runs: bool,
    is_placed: bool,
    stops: bool,
}

impl<'p> When<'p> {
    pub(super) fn new(program: &'p mut Program, condition: Condition) -> Self {
        Self { program, condition, targets: Vec::new() }
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

    fn target(mut self, request: Request, runs: bool, is_placed: bool, stops: bool) -> Self {
        self.targets.push(Target { slot: request.0, runs, is_placed, stops });
        self
    }

    /// Ends the condition.
    pub fn done(mut self) {
        if self.program.is_loop && self.targets.iter().any(|target| target.stops) {
            self.give_credit();
        }
        // All operands before the first COMPARE_SWAP: it clears the one that it tests.
        for Target { slot, .. } in self.targets.clone() {
            let to = Request(slot).operand();
            if to != self.condition.operand {
                self.program.copy(to, self.condition.operand);
            }
        }
        for target in self.targets.clone() {
            self.test(target);
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
        let order = Order { object: 0, count: 1, step: 0, relative: true };
        let mut slot = Slot { order: Some(order), ..Slot::new("credit", ChainOp::RecvEnable) };
        slot.control = slot.control.quiet();
        let credit = self.program.push(slot);
        self.program.declared[credit] = Some(ChainOp::RecvEnable);
        self.targets.push(Target { slot: credit, runs: true, is_placed: true, stops: true });
    }

    fn test(&mut self, target: Target) {
        let Condition { value, calc, is_negated, .. } = self.condition;
        let slot = target.slot;
        let Some(op) = self.program.declared[slot] else { return };
        let is_order = self.program.chain.slots[slot].order.is_some();
        let quiet = |control: Control| if target.stops { control.quiet() } else { control };
        // The token of a loop's next iteration is the completion of the credit that is not given: the last request of the
        // lap, before which the one that would end the loop has been fetched.
        let is_without_token = self.program.is_loop && target.stops && !is_order;
        let idle = Control { quiet: is_without_token, ..Control::new(ChainOp::Nop) };
        let active = quiet(Control::new(op));
        let (before, after) = if target.runs == is_negated { (active, idle) } else { (idle, active) };
        *self.program.control(slot) = before;
        let request = &mut self.program.chain.slots[slot];
        request.flags |= ChainFlags::SIGNALED;
        if !request.may.contains(&after) {
            request.may.push(after);
        }
        if !self.program.conditional.contains(&slot) {
            self.program.conditional.push(slot);
        }
        if let Some(calc) = calc {
            self.atomic(calc, slot, before, 0, value);
        }
        self.atomic(ChainOp::CompareSwap, slot, before, after.encode(), value);
    }

    fn atomic(&mut self, op: ChainOp, target: usize, expected: Control, swap: u64, value: Value) {
        let constant = if let Value::Constant(value) = value { value } else { 0 };
        let compare = Control { operand: constant & Control::MAX_OPERAND, ..expected }.encode();
        let place = Place::Slot { slot: target, at: offset::CONTROL };
        let label = format!(
            "{}.{}",
            if op == ChainOp::CompareSwap { "if" } else { "calc" },
            self.program.chain.slots[target].label
        );
        let request = self.program.emit(Slot { remote: Remote::Own(place), compare, swap, ..Slot::new(label, op) });
        if let Value::Argument(arg) = value {
            self.program.fill_argument(arg.number(), request.0, offset::COMPARE);
        }
    }
}
