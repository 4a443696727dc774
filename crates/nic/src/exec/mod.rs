//! Execution of requests, whatever transport brings them.
//!
//! * [`requests`]: work requests of the send queue; [`completions`]: how they end.
//! * [`chain`]: requests of managed queues.
//! * [`receives`]: receive requests.
//! * [`messages`]: SEND and WRITE; [`remote`]: READ, atomics and FLUSH; [`datagram`]: unreliable datagrams.
//! * [`state`]: transitions of a queue pair's state, by command or through an error.

mod chain;
mod completions;
mod datagram;
mod grh;
mod messages;
mod receives;
mod remote;
mod requests;
mod state;

pub(crate) use receives::{Refusal, failure, invalid};
pub(crate) use remote::Range;

use crate::device::{Context, Outputs};
use crate::platform::Platform;
use crate::qp::Core;
use crate::wire::Op;

/// Execution of one queue pair's requests: everything of it but its transport, and the objects of its context.
pub(crate) struct Exec<'a, P: Platform> {
    /// The engine's index of the QP.
    pub(crate) index: u32,
    pub(crate) qp: &'a mut Core<P>,
    pub(crate) cx: &'a mut Context<P>,
    pub(crate) out: &'a mut Outputs<P::Memory>,
}

impl<P: Platform> Exec<'_, P> {
    /// The same, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Exec<'_, P> {
        Exec { index: self.index, qp: self.qp, cx: self.cx, out: self.out }
    }
}

/// A request packet with its data.
pub(crate) struct Request<'a, S: ?Sized> {
    pub(crate) op: Op,
    pub(crate) solicited: bool,
    pub(crate) payload: &'a S,
}
