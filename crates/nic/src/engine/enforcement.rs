//! Enforcement of access rules that have changed: connected queue pairs that may no longer reach their peer are ended.

use super::{AccessCounters, Engine};
use crate::platform::Platform;
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
}

impl<P: Platform> Engine<P> {
    /// What access rules have prevented.
    pub fn access_counters(&self) -> AccessCounters {
        self.out.access
    }

    /// Looks at some queue pairs, if rules have changed. Returns whether they have.
    pub(super) fn enforce_access(&mut self) -> bool {
        let Some(first) = self.enforcement.next else { return false };
        let end = self.qps.places().min(first.saturating_add(SLICE));
        (first..end).for_each(|index| self.enforce_on(index));
        self.enforcement.next = (end < self.qps.places()).then_some(end);
        true
    }

    /// Ends a queue pair that is connected to a peer which it may no longer exchange packets with.
    ///
    /// Its program gets IBV_EVENT_QP_FATAL, "error occurred on a QP and it transitioned to error state": an adapter raises it for a
    /// cause that is no request's, as this is. IBV_EVENT_QP_ACCESS_ERR would blame a request for its memory key. No packet of the
    /// queue pair is answered any more, so that the peer, if its own host has not ended it, runs into its time-out.
    fn enforce_on(&mut self, index: u32) {
        let Some((qp, env)) = self.qps.with(index, &mut self.contexts, &mut self.out) else { return };
        let core = qp.core();
        let is_connected = !matches!(core.state(), QpState::Reset | QpState::Init | QpState::Error);
        let (context, handle, av) = (core.context, core.handle, core.attr.av);
        let network = &env.cx.network;
        if !is_connected || core.qp_type == QpType::Ud || env.out.may_talk(network, network.source(&av), av.dgid) {
            return;
        }
        env.out.access.ended += 1;
        env.out.async_event(context, AsyncEvent::QpFatal, handle);
        qp.enter(env, QpState::Error);
    }
}

/// Queue pairs that are looked at in one poll.
const SLICE: u32 = 256;
