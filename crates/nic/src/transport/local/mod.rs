//! Transport between two queue pairs of one host.
//!
//! * [`requester`], [`packets`]: request packets made from work requests.
//! * [`responder`]: order, and execution of a peer's requests.
//! * [`state`]: what is kept of a queue pair's packets on their way.
//! * [`replies`]: replies at the requester, and packets without one.

mod packets;
mod replies;
mod requester;
mod responder;
mod state;

use requester::MAX_UNANSWERED;
pub(crate) use state::State;

use crate::device::{Context, Outputs};
use crate::exec::Exec;
use crate::packet::{Body, Head, Packet, Reply};
use crate::platform::Platform;
use crate::qp::Core;

/// A queue pair and what its packets within the host may touch.
pub(crate) struct Local<'a, P: Platform> {
    /// The engine's index of the QP.
    pub(super) index: u32,
    pub(super) qp: &'a mut Core<P>,
    pub(super) cx: &'a mut Context<P>,
    pub(super) out: &'a mut Outputs<P::Memory>,
    pub(super) state: &'a mut State<P::Memory>,
}

impl<'a, P: Platform> Local<'a, P> {
    pub(crate) fn new(exec: Exec<'a, P>, state: &'a mut State<P::Memory>) -> Self {
        let Exec { index, qp, cx, out } = exec;
        Self { index, qp, cx, out, state }
    }

    pub(super) fn exec(&mut self) -> Exec<'_, P> {
        Exec { index: self.index, qp: self.qp, cx: self.cx, out: self.out }
    }
}

/// Answers a request packet as a wire would that loses it.
pub(crate) fn drop_request<M>(out: &mut Outputs<M>, head: &Head) {
    out.packet(Packet { head: head.reply(), body: Body::Reply(Reply::Dropped) });
}
