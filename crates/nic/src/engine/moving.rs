//! Moves of open devices between the engines of a host.

use super::{Budget, Engine};
use crate::command::ContextId;
use crate::device::{Context, Outputs};
use crate::platform::Platform;
use crate::timer::Time;
use crate::transport::Qp;
use alloc::boxed::Box;
use alloc::vec::Vec;
use rdmesh_verbs::QpState;

/// An open device on its way to another engine of its host: its objects and its queue pairs, which keep their numbers and all of
/// their state.
///
/// Packets between two queue pairs stay in their order, and none is lost, if from before [`MovingDevice::take`] until after
/// [`MovingDevice::put`] no engine of the host is polled, and
///
/// 1. every engine has executed what had arrived ([`Engine::settle_arrivals`]) and handed over all packets, so that there are only
///    replies on their way;
/// 2. the engine that the device comes from has handed over its packets again before the device is put.
pub struct MovingDevice<P: Platform> {
    context: Context<P>,
    qps: Vec<MovingQp<P>>,
    /// The last epoch of the engine that it comes from.
    epoch: u32,
}

struct MovingQp<P: Platform> {
    qp: Box<Qp<P>>,
    deadline: Option<Time>,
}

impl<P: Platform> MovingDevice<P> {
    /// Executes all that has arrived at the engine that the device is taken out of, and tells managed queues what came of it.
    /// The events that come of it have to be taken before the device is.
    pub fn prepare(engine: &mut Engine<P>, now: Time) {
        engine.settle_arrivals(now, &mut Budget::unlimited());
        engine.drain_inbox();
        while engine.qps.see_to_chains(&mut engine.contexts, &mut engine.out) != 0 {
            engine.drain_inbox();
        }
    }

    /// Takes a device out of an engine; none where there is no such device.
    pub fn take(engine: &mut Engine<P>, id: ContextId) -> Option<Self> {
        let mut context = engine.contexts.remove(id.0)?;
        let indices: Vec<u32> = context.qps_from(0).map(|(_, index)| index).collect();
        let qps = indices.into_iter().filter_map(|index| MovingQp::take(engine, index, &mut context)).collect();
        Some(Self { context, qps, epoch: engine.out.epoch() })
    }

    /// Gives the device to an engine. Returns its name there.
    pub fn put(self, engine: &mut Engine<P>, now: Time) -> ContextId {
        let Self { context, qps, epoch } = self;
        // What is on this engine already comes before all that the device will send to others here.
        Self::prepare(engine, now);
        engine.out.pass_epoch(epoch);
        let id = ContextId(engine.contexts.insert(context).expect("the table of contexts has no limit"));
        qps.into_iter().for_each(|qp| qp.put(engine, id));
        // Rules that have changed meanwhile may not have met them on either engine.
        engine.enforcement.begin();
        id
    }
}

/// A managed queue stands in no list of its engine any more: its next turn finds out again what it waits for.
fn unpark<P: Platform>(qp: &mut Qp<P>, index: u32, context: &mut Context<P>, out: &mut Outputs<P::Memory>) {
    let Some(chain) = &mut qp.core_mut().send.chain else { return };
    chain.is_parked = false;
    if let Some(at) = chain.refill.take() {
        out.chains.forget(index, at, chain.last);
    }
    if let Some(cq) = chain.waits_for.take().and_then(|cq| context.cq(cq)) {
        cq.forget(index);
    }
}

impl<P: Platform> MovingQp<P> {
    fn take(engine: &mut Engine<P>, index: u32, context: &mut Context<P>) -> Option<Self> {
        let owner = context.owner();
        let out = &mut engine.out;
        let mut qp = engine.qps.take(index, owner.vni)?;
        unpark(&mut qp, index, context, out);
        let deadline = out.timers.get(index);
        out.timers.stop(index);
        out.schedule.leave(index, owner);
        out.forget_failed(index);
        Some(Self { qp, deadline })
    }

    fn put(self, engine: &mut Engine<P>, id: ContextId) {
        let Self { mut qp, deadline } = self;
        let Engine { contexts, qps, out, .. } = engine;
        let Some(context) = contexts.get_mut(id.0) else { return };
        let (owner, handle, state) = (context.owner(), qp.core().made().handle, qp.core().state());
        qp.core_mut().enter_context(id);
        let index = qps.put(qp, owner.vni, out);
        context.place_qp(handle, index);
        out.schedule.join(index, owner, context.policy());
        if let Some(at) = deadline {
            out.timers.set(index, at);
        }
        if state == QpState::Error {
            out.watch_failed(index);
        }
        // What it has to send is not looked for: a turn with nothing to send costs little.
        if let Some(qp) = qps.get(index) {
            out.make_ready(index, qp.core());
        }
    }
}
