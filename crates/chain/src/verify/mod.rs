//! The verifier: what a chain must hold before it runs.
//!
//! * Single requests keep to their bounds and rights, and only fields that may hold data are filled in by data.
//! * Every hole is filled in before its request is fetched, in each lap anew, even if slots are fetched as early as the rules
//!   allow; no two requests touch the same bytes without an order, if one of them writes.
//! * What a condition changed is restored before the slot is used again.
//! * Every WAIT is reached, in every outcome of the conditions, but for loops that a condition ended and for requests that have not
//!   come; every request runs in some outcome; counts of a lap are what WAITs grow by.
//! * A queue that repeats has a WAIT.
//!
//! The chain is run for three requests of a client with unknown data. Outcomes of conditions are tried in full up to
//! [`MAX_OUTCOMES`]; beyond it, those with the fewest conditions that hold, and the one in which all do.

mod order;
mod outcome;
mod shape;

use crate::program::{ALWAYS, Chain};
use outcome::Outcome;
use rdmesh_verbs::chain::ChainOp;
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of outcomes of conditions that are tried.
pub const MAX_OUTCOMES: usize = 128;

/// The first reason why a chain is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{label}` {cause}; {remedy}")]
pub struct Refusal {
    /// The request, by its author's name for it.
    pub label: String,
    /// The error.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
}

impl Refusal {
    pub(crate) fn new(label: &str, cause: &str, remedy: &str) -> Self {
        Self { label: label.into(), cause: cause.into(), remedy: remedy.into() }
    }
}

/// Checks a chain.
pub fn verify(chain: &Chain) -> Result<(), Refusal> {
    shape::check(chain)?;
    loops_wait(chain)?;
    let mut executed = BTreeSet::new();
    let mut open: VecDeque<Vec<bool>> = VecDeque::from([Vec::new()]);
    let mut most = 0;
    for _ in 0..MAX_OUTCOMES {
        let Some(decisions) = open.pop_front() else { break };
        let outcome = Outcome::of(chain, &decisions)?;
        let decided = outcome.decided();
        executed.extend(outcome.executed());
        outcome.check()?;
        most = most.max(decided);
        for at in decisions.len()..decided {
            let mut other = decisions.clone();
            other.resize(at, false);
            other.push(true);
            open.push_back(other);
        }
    }
    if !open.is_empty() {
        Outcome::of(chain, &vec![true; most])?.check()?;
    }
    for queue in &chain.queues {
        if let Some(slot) = queue.slots.iter().find(|slot| !executed.contains(*slot)) {
            let remedy = "add an ENABLE for it, or the completions that its queue waits for";
            return Err(Refusal::new(&chain.slots[*slot].label, "is never executed", remedy));
        }
    }
    Ok(())
}

/// A queue that goes on for ever must wait for something in each lap.
fn loops_wait(chain: &Chain) -> Result<(), Refusal> {
    let is_wait = |slot: &usize| chain.slots[*slot].control.op == ChainOp::Wait;
    let enables_itself = |number: usize, slot: &usize| {
        let slot = &chain.slots[*slot];
        slot.class_op() == ChainOp::Enable
            && slot.order.is_some_and(|order| order.object == number && (order.step > 0 || order.relative))
    };
    for (number, queue) in chain.queues.iter().enumerate() {
        let repeats = queue.enabled == ALWAYS || queue.slots.iter().any(|slot| enables_itself(number, slot));
        let first = queue.slots.first().filter(|_| repeats && !queue.slots.iter().any(is_wait));
        if let Some(first) = first {
            let cause = format!("begins `{}`, which repeats without a WAIT", queue.name);
            return Err(Refusal::new(
                &chain.slots[*first].label,
                &cause,
                "wait for a request or a completion in each lap",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
