//! Conditions of a program under construction.
#![allow(unsafe_code)]

use super::border::{Failure, Result, list};
use super::span::{Builder, Span};
use rdmesh_chain::build::{Condition as ChainCondition, Request, Value as ChainValue};

/// `struct rdmesh_value`.
#[repr(C)]
struct Value {
    argument: u32,
    reserved: u32,
    low: u64,
    high: u64,
}

/// `struct rdmesh_condition`.
#[repr(C)]
pub(super) struct Condition {
    operand: Span,
    comparison: u32,
    num_values: u32,
    values: *const Value,
}

/// `struct rdmesh_outcome`.
#[repr(C)]
pub(super) struct Outcome {
    request: u32,
    effect: u32,
}

/// Puts requests that depend on conditions, all of which must hold, into a program.
///
/// # Safety
/// The lists of values are null or valid.
pub(super) unsafe fn when(
    builder: &mut Builder,
    conditions: &[Condition],
    outcomes: &[Outcome],
    is_in_place: bool,
) -> Result<usize> {
    // SAFETY: by the contract.
    let all = conditions.iter().map(|condition| unsafe { condition.parse(builder) }).collect::<Result<Vec<_>>>()?;
    let all = all.into_iter().reduce(ChainCondition::and);
    let all = all.ok_or_else(|| Failure::invalid("there is no condition"))?;
    let outcomes = outcomes.iter().map(|outcome| outcome.parse(builder)).collect::<Result<Vec<_>>>()?;
    if outcomes.is_empty() {
        return Err(Failure::invalid("no request depends on the condition"));
    }
    let mut when = builder.program.when(all);
    if is_in_place {
        when = when.in_place();
    }
    for (request, effect) in outcomes {
        when = match effect {
            Effect::Run => when.run(request),
            Effect::Otherwise => when.otherwise(request),
            Effect::Cancel => when.cancel(request),
            Effect::StopWith => when.stop_with(request),
        };
    }
    when.done();
    Ok(0)
}

#[derive(Clone, Copy)]
enum Effect {
    Run,
    Otherwise,
    Cancel,
    StopWith,
}

impl Outcome {
    fn parse(&self, builder: &Builder) -> Result<(Request, Effect)> {
        let effect = match self.effect {
            0 => Effect::Run,
            1 => Effect::Otherwise,
            2 => Effect::Cancel,
            3 => Effect::StopWith,
            other => return Err(Failure::invalid(format_args!("{other} is no effect"))),
        };
        Ok((builder.request(self.request)?, effect))
    }
}

impl Condition {
    /// # Safety
    /// The list of values is null or valid.
    unsafe fn parse(&self, builder: &Builder) -> Result<ChainCondition> {
        let operand = builder.span(&self.operand)?;
        // SAFETY: by the contract.
        let values = unsafe { list(self.values, self.num_values as usize, "the list of values")? };
        let values = values.iter().map(|value| value.parse(builder)).collect::<Result<Vec<_>>>()?;
        if ![7, 15].contains(&operand.length) {
            return Err(Failure::invalid("an operand has 7 bytes, or 15"));
        }
        let one = match values[..] {
            [one] => Ok(one),
            _ => Err(Failure::invalid("this comparison is with one value")),
        };
        Ok(match self.comparison {
            0 if values.is_empty() => return Err(Failure::invalid("a comparison is with a value")),
            0 => operand.one_of(values),
            1 => operand.ne(one?),
            2 => operand.le(one?),
            3 => operand.ge(one?),
            4 => operand.lt(one?),
            5 => operand.gt(one?),
            other => return Err(Failure::invalid(format_args!("{other} is no comparison"))),
        })
    }
}

impl Value {
    fn parse(&self, builder: &Builder) -> Result<ChainValue> {
        match self.argument {
            0 => Ok(ChainValue::Constant(u128::from(self.high) << 64 | u128::from(self.low))),
            number => builder.argument(number)?.value(),
        }
    }
}

const _: () = assert!(size_of::<Condition>() == 40 && size_of::<Value>() == 24);
