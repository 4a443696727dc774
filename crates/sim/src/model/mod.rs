//! Reference model: the requests that each program posted, and the effects that the engines may have.
//!
//! Every effect of an engine on memory and queues is checked when it happens, in its order:
//!
//! | property | check |
//! |---|---|
//! | P1 no loss | a request that completes was executed in full, with the bytes that it had when it was posted |
//! | P2 no duplication | each request is executed once and completes once, each receive request is taken and completes once |
//! | P3 order | requests are executed and complete in the order of posting, receives in the order of sending |
//! | P4 atomics | each is executed once, on the value that it returns |
//! | P5 READ | every byte was there at some moment after everything posted before was executed |
//! | P6 no stray write | every byte written belongs to a request that is being executed, and is that request's |
//! | P7 errors | each wrong request ends with its own status, everything after it is flushed, and nothing else fails |
//! | P8 corruption | follows from P1 and P6: payload that differs is never written |
//! | P9 progress | when all that was wrong has stopped, everything completes in bounded time |
//! | P10 endings | on a faultless network all that was posted before a queue pair is moved to ERR or destroyed is delivered |
//! | P13 memory bound | packets in the engines are bounded by the posted and received requests; nothing is left when all is done |

mod end;
mod memory;
mod receives;
mod sends;

pub use end::{End, Fault, Flow, Kind, Op, Window, WindowState};
pub use memory::{Owner, Space};
pub use receives::{Buffer, Queue};

use crate::coverage::Coverage;
use crate::platform::Effect;
use rdmesh_nic::Time;
use std::collections::BTreeMap;
use std::fmt;

/// A property that does not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Name of the property.
    pub property: &'static str,
    /// Description of the violation.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.text)
    }
}

/// The outcome of a check.
pub type Check<T = ()> = Result<T, Violation>;

/// A failed check.
pub fn violated<T>(property: &'static str, text: impl Into<String>) -> Check<T> {
    Err(Violation { property, text: text.into() })
}

/// All that is known.
#[derive(Default)]
pub struct Model {
    /// Queue pairs, of the past too.
    pub ends: Vec<End>,
    /// Memory of programs.
    pub spaces: Vec<Space>,
    /// Receive queues, of the past too.
    pub queues: Vec<Queue>,
    /// Events that the run has met.
    pub seen: Coverage,
    /// Datagrams may get lost, or be so late that it makes no difference.
    pub lossy: bool,
    /// Time at which that stopped.
    pub healed: Option<Time>,
    /// A datagram may arrive more than once.
    pub repeats: bool,
    /// Counts effects and changes.
    pub step: u64,
    /// The QP that has a number on a host.
    pub by_qpn: BTreeMap<(usize, u32), usize>,
    /// Memory of each region.
    pub by_region: BTreeMap<u32, usize>,
    /// READs that are done, by end and request: effects that follow may have changed what they read before it is known what it was.
    pub(super) reads: Vec<(usize, usize)>,
}

impl Model {
    /// Checks one effect of an engine on `host`.
    pub fn effect(&mut self, now: Time, host: usize, effect: &Effect) -> Check {
        self.step += 1;
        match effect {
            Effect::Write { region, offset, bytes, old } => self.written(*region, *offset, bytes, old),
            Effect::Atomic { region, offset, kind, old } => self.executed_atomic(*region, *offset, *kind, *old),
            Effect::Taken { queue, wr_id } => self.queues[*queue as usize].taken(*wr_id),
            Effect::Overrun { queue } => violated("P7", format!("completion queue {queue} overran")),
            Effect::Complete { completion, .. } => {
                let Some(&end) = self.by_qpn.get(&(host, completion.qpn.value())) else {
                    return violated("P2", format!("completion for no queue pair: {completion:?}"));
                };
                if completion.wr_id & RECEIVE != 0 {
                    self.received(end, completion)
                } else {
                    self.sent(now, end, completion)
                }
            }
        }
    }

    /// Passes requests without an effect at their responder.
    pub fn advance(&mut self, sender: usize) {
        let flow = &mut self.ends[sender].flow;
        while let Some(op) = flow.ops.get_mut(flow.executed)
            && op.passes()
        {
            op.lower = Some(self.step);
            flow.executed += 1;
        }
    }

    /// A queue pair is destroyed, or reset: it may have no more effects.
    pub fn close(&mut self, end: usize) {
        let gone = &mut self.ends[end];
        gone.alive = false;
        let (host, qpn, space, slot, queue) = (gone.host, gone.qpn.value(), gone.space, gone.slot, gone.queue);
        self.by_qpn.remove(&(host, qpn));
        self.spaces[space].slots[slot] = Owner::Nobody;
        if !self.queues[queue].shared {
            self.queues[queue].close();
        }
    }
}

/// Bit of `wr_id` that tells receive requests from the others.
pub const RECEIVE: u64 = 1 << 63;
