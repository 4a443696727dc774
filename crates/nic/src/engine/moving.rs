//! Moves of open devices between the engines of a host.

use super::Engine;
use crate::command::ContextId;
use crate::device::Context;
use crate::packet::Packet;
use crate::platform::Platform;
use crate::schedule::Order;
use crate::timer::Time;
use crate::transport::Qp;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use rdmesh_verbs::QpState;

/// An open device on its way to another engine of its host: its objects, its queue pairs, and packets that wait for them.
///
/// Queue pairs keep their numbers and all of their state. From [`MovingDevice::take`] to [`MovingDevice::put`] no packet is
/// made or handled by any engine of the host, and none is between two of them, so that packets between two queue pairs stay
/// in their order.
pub struct MovingDevice<P: Platform> {
    context: Context<P>,
    qps: Vec<MovingQp<P>>,
    /// The last epoch of the engine that it comes from.
    epoch: u32,
}

struct MovingQp<P: Platform> {
    qp: Box<Qp<P>>,
    deadline: Option<Time>,
    packets: VecDeque<Packet<P::Memory>>,
}

impl<P: Platform> MovingDevice<P> {
    /// Takes a device out of an engine, whose events have been taken; none where there is no such device. Packets for other
    /// engines may come of it.
    pub fn take(engine: &mut Engine<P>, id: ContextId) -> Option<Self> {
        engine.drain_inbox();
        let context = engine.contexts.remove(id.0)?;
        let indices: Vec<u32> = context.qps_from(0).map(|(_, index)| index).collect();
        let qps = indices.into_iter().filter_map(|index| MovingQp::take(engine, index, &context)).collect();
        // Datagrams to a group wait with its first member: they are for those that stay.
        engine.drain_inbox();
        Some(Self { context, qps, epoch: engine.out.epoch() })
    }

    /// Gives the device to an engine. Returns its name there.
    pub fn put(self, engine: &mut Engine<P>) -> ContextId {
        let Self { context, qps, epoch } = self;
        engine.out.pass_epoch(epoch);
        let id = ContextId(engine.contexts.insert(context).expect("the table of contexts has no limit"));
        qps.into_iter().for_each(|qp| qp.put(engine, id));
        id
    }
}

impl<P: Platform> MovingQp<P> {
    fn take(engine: &mut Engine<P>, index: u32, context: &Context<P>) -> Option<Self> {
        let owner = context.owner();
        let out = &mut engine.out;
        let qp = engine.qps.take(index, owner.vni)?;
        let deadline = out.timers.get(index);
        out.timers.stop(index);
        out.schedule.leave(index, owner);
        out.forget_failed(index);
        let mut packets = VecDeque::new();
        for packet in engine.qps.arrivals().take(index) {
            if packet.head.header.dest == qp.core().qpn {
                packets.push_back(packet);
            } else {
                engine.qps.arrive(packet, out);
            }
        }
        Some(Self { qp, deadline, packets })
    }

    fn put(self, engine: &mut Engine<P>, id: ContextId) {
        let Self { mut qp, deadline, packets } = self;
        let Engine { contexts, qps, out, .. } = engine;
        let Some(context) = contexts.get_mut(id.0) else { return };
        let (owner, handle, state) = (context.owner(), qp.core().handle, qp.core().state());
        qp.core_mut().enter_context(id);
        let index = qps.put(qp, owner.vni, out);
        context.place_qp(handle, index);
        out.schedule.join(index, owner);
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
        if !packets.is_empty() {
            out.schedule.add(Order::Arrived, index);
        }
        packets.into_iter().for_each(|packet| qps.arrivals().push(index, packet));
    }
}
