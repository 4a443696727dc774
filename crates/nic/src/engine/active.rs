//! Borrowed view of a queue pair with its context, on which the engine executes.

use super::context::Context;
use super::output::Outputs;
use super::qp::Qp;
use crate::platform::Platform;

/// A queue pair with everything that a step of it may touch. Its send side is in [`super::requester`], its receive side
/// in [`super::responder`], its states in [`super::state`].
pub(crate) struct Active<'a, P: Platform> {
    /// The engine's index of the QP.
    pub(crate) index: u32,
    pub(crate) qp: &'a mut Qp<P>,
    pub(crate) cx: &'a mut Context<P>,
    pub(crate) out: &'a mut Outputs<P::Memory>,
}
