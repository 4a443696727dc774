//! Enforcement of access rules that have changed: connected queue pairs that may no longer reach their peer are ended.

use super::table::QueuePairs;
use super::{AccessCounters, Engine};
use crate::device::{Context, Outputs, Slab};
use crate::path::Path;
use crate::platform::Platform;
use crate::transport::{Env, Qp};
use rdmesh_verbs::{AsyncEvent, QpState, QpType};

/// A pass over all queue pairs, in slices: others are served between two of them.
#[derive(Default)]
pub(super) struct Enforcement {
    /// The queue pair to be looked at next, while a pass is under way.
    next: Option<u32>,
}

impl Enforcement {
    /// Begins a pass, or begins the present one again.
    pub(super) fn begin(&mut self) {
        self.next = Some(0);
    }

    /// Whether a pass is under way.
    pub(super) fn is_due(&self) -> bool {
        self.next.is_some()
    }

    /// Looks at some queue pairs, if rules have changed. Returns whether they have.
    pub(super) fn advance<P: Platform>(
        &mut self,
        qps: &mut QueuePairs<P>,
        contexts: &mut Slab<Context<P>>,
        out: &mut Outputs<P::Memory>,
    ) -> bool {
        let Some(first) = self.next else { return false };
        let end = qps.places().min(first.saturating_add(SLICE));
        for index in first..end {
            if let Some((qp, env)) = qps.with(index, contexts, out) {
                enforce(qp, env);
            }
        }
        self.next = (end < qps.places()).then_some(end);
        true
    }
}

impl<P: Platform> Engine<P> {
    /// Counts of what access rules have prevented.
    pub fn access_counters(&self) -> AccessCounters {
        self.out.access
    }
}

/// Ends a queue pair that is connected to a peer which it may no longer exchange packets with.
///
/// Its program gets IBV_EVENT_QP_FATAL, "error occurred on a QP and it transitioned to error state": an adapter raises it for a
/// cause that is no request's, as this is. IBV_EVENT_QP_ACCESS_ERR would blame a request for its memory key. No packet of the
/// queue pair is answered any more, so that the peer, if its own host has not ended it, runs into its time-out.
fn enforce<P: Platform>(qp: &mut Qp<P>, env: Env<'_, P>) {
    let core = qp.core();
    let is_connected = !matches!(core.state(), QpState::Reset | QpState::Init | QpState::Error);
    let (context, handle, av) = (core.made().context, core.made().handle, core.attr.av);
    let network = &env.cx.network;
    // An endpoint whose host the store has lost may come back; until then nothing is known against it.
    let is_lost = qp.path() != Some(Path::External) && !env.out.routes.access().knows(network.vni, av.dgid);
    if !is_connected
        || is_lost
        || core.made().qp_type == QpType::Ud
        || env.out.may_talk(network, network.source(&av), av.dgid)
    {
        return;
    }
    env.out.access.ended += 1;
    env.out.async_event(context, AsyncEvent::QpFatal, handle);
    qp.enter(env, QpState::Error);
}

/// Queue pairs that are looked at in one poll.
const SLICE: u32 = 256;
