//! Chains: commands on managed queues and their groups, and queues that others have woken or ended.

use super::Device;
use super::table::QueuePairs;
use crate::chain::{
    ChainEntry, Enable, Executed, Image, Manage, ManagedReceive, ManagedSend, RING_ACCESS, Side, Target,
};
use crate::command::CommandError;
use crate::device::{Context, Outputs, Slab};
use crate::packet::{Body, Packet, acknowledgement};
use crate::platform::Platform;
use crate::qp::Core;
use crate::transport::Env;
use crate::wire::Syndrome;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use rdmesh_verbs::{Access, Key, QpState, QpType};

type Result<T> = core::result::Result<T, CommandError>;
use CommandError::{Exhausted, Invalid, NoSuchObject};

/// A region over a queue's ring: slot `n` lies at address `n` times the stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingRegion {
    /// Handle of the region.
    pub mr: u32,
    /// Its key.
    pub key: Key,
    /// Bytes of a slot.
    pub stride: u32,
    /// Slots.
    pub slots: u32,
}

impl<P: Platform> Device<'_, P> {
    /// The queues of a queue pair, as the platform made them: its receive queue unless it is shared.
    pub fn queues(&self, qp: u32) -> Result<(&P::SendQueue, Option<&P::RecvQueue>)> {
        let index = self.cx.qp(qp).ok_or(NoSuchObject)?;
        let core = self.qps.get(index).ok_or(NoSuchObject)?.core();
        Ok((&core.send.queue, core.recv.queue.as_ref()))
    }

    /// Makes queues of a connected queue pair managed, before RTS. They stay so.
    pub fn manage_qp(&mut self, qp: u32, init: Manage<P::Memory>) -> Result<()> {
        let index = self.cx.qp(qp).ok_or(NoSuchObject)?;
        let core = self.qps.get_mut(index).ok_or(NoSuchObject)?.core_mut();
        let Manage { group, send, receive } = init;
        if !may_be_managed(core, send.is_some(), receive.is_some()) {
            return Err(Invalid);
        }
        let inline = core.made().caps.max_inline;
        let send = send.map(|send| ManagedSend::new(send, inline).ok_or(Invalid)).transpose()?;
        let receive = receive.map(|ring| ManagedReceive::new(ring).ok_or(Invalid)).transpose()?;
        let mut sides = Vec::new();
        sides.extend(send.as_ref().map(|_| Side::Send));
        sides.extend(receive.as_ref().map(|_| Side::Receive));
        self.cx.chains.join(qp, index, group, &sides)?;
        core.send.chain = send.map(Box::new);
        core.recv.chain = receive.map(Box::new);
        Ok(())
    }

    /// Lets a managed send queue execute its requests up to an index, as an ENABLE does.
    pub fn enable(&mut self, qp: u32, limit: u64) -> Result<()> {
        self.raise(Target { qp, side: Side::Send }, limit)
    }

    /// Lets a managed receive queue take messages up to an index.
    pub fn enable_receives(&mut self, qp: u32, limit: u64) -> Result<()> {
        self.raise(Target { qp, side: Side::Receive }, limit)
    }

    fn raise(&mut self, target: Target, limit: u64) -> Result<()> {
        let index = self.cx.chains.enable(None, target, Enable::To(limit))?;
        self.out.chains.wake(index);
        Ok(())
    }

    /// Registers the ring of a managed send queue, so that requests can change requests. The region goes with the queue pair.
    pub fn register_send_ring(&mut self, qp: u32, pd: Option<u32>, access: Access) -> Result<RingRegion> {
        self.register_ring(Target { qp, side: Side::Send }, pd, access)
    }

    /// Registers the ring of a managed receive queue.
    pub fn register_receive_ring(&mut self, qp: u32, pd: Option<u32>, access: Access) -> Result<RingRegion> {
        self.register_ring(Target { qp, side: Side::Receive }, pd, access)
    }

    fn register_ring(&mut self, target: Target, pd: Option<u32>, access: Access) -> Result<RingRegion> {
        let index = self.cx.qp(target.qp).ok_or(NoSuchObject)?;
        let core = self.qps.get(index).ok_or(NoSuchObject)?.core();
        let of = |(memory, len): (&P::Memory, u64), shape| (memory.clone(), len, shape);
        let ring = match target.side {
            Side::Send => core.send.chain.as_ref().map(|chain| of(chain.ring.memory(), chain.ring.shape())),
            Side::Receive => core.recv.chain.as_ref().map(|chain| of(chain.ring.memory(), chain.ring.shape())),
        };
        let (memory, len, (stride, slots)) = ring.ok_or(Invalid)?;
        if !RING_ACCESS.contains(access) {
            return Err(Invalid);
        }
        if !self.cx.chains.has_room_for_region(target.qp) {
            return Err(Exhausted);
        }
        let (mr, key) = self.cx.reg_mr(pd.unwrap_or(core.made().pd), 0, len, access, memory)?;
        self.cx.chains.add_region(target.qp, mr, key);
        Ok(RingRegion { mr, key, stride, slots })
    }

    /// Seals a managed send queue of which nothing was enabled yet: from now on only the image's holes are taken from its ring.
    pub fn seal_sends(&mut self, qp: u32, image: Image) -> Result<()> {
        self.seal(Target { qp, side: Side::Send }, image)
    }

    /// Seals a managed receive queue.
    pub fn seal_receives(&mut self, qp: u32, image: Image) -> Result<()> {
        self.seal(Target { qp, side: Side::Receive }, image)
    }

    fn seal(&mut self, target: Target, image: Image) -> Result<()> {
        let index = self.cx.qp(target.qp).ok_or(NoSuchObject)?;
        let core = self.qps.get_mut(index).ok_or(NoSuchObject)?.core_mut();
        let is_fresh = self.cx.chains.is_fresh(target);
        let is_sealed = match target.side {
            _ if !is_fresh => false,
            Side::Send => core.send.chain.as_mut().is_some_and(|chain| chain.ring.seal(image)),
            Side::Receive => core.recv.chain.as_mut().is_some_and(|chain| chain.ring.seal(image)),
        };
        if is_sealed { Ok(()) } else { Err(Invalid) }
    }

    /// Its groups of managed queues.
    pub fn chains(&mut self) -> DeviceChains<'_, P> {
        let Device { cx, qps, out, id } = self;
        DeviceChains(Device { cx, qps, out, id: *id })
    }
}

/// The groups of managed queues of a device.
pub struct DeviceChains<'a, P: Platform>(Device<'a, P>);

impl<P: Platform> DeviceChains<'_, P> {
    /// All of them.
    pub fn list(&self) -> Vec<ChainEntry> {
        let mut entries = self.0.cx.chains.list(self.0.out.now);
        for entry in &mut entries {
            let queues = entry.qps.iter().flat_map(|qp| self.0.list_queues(*qp));
            entry.laps = queues.map(|queue| queue.next / queue.cycle).sum();
        }
        entries
    }

    /// Stops a group: no request starts, no message is received.
    pub fn stop(&mut self, group: u32) -> Result<()> {
        self.0.cx.chains.set_stopped(group, true).map(drop)
    }

    /// Lets a group go on that was stopped.
    pub fn resume(&mut self, group: u32) -> Result<()> {
        let woken = self.0.cx.chains.set_stopped(group, false)?;
        self.0.out.chains.wake_all(woken);
        Ok(())
    }

    /// Records the requests that a group executes from now on, for `time`; returns those that were recorded from number `from` on.
    pub fn trace(&mut self, group: u32, from: u64, time: Duration) -> Result<Vec<Executed>> {
        self.0.cx.chains.trace(group, from, self.0.out.now.after(time)).ok_or(NoSuchObject)
    }

    /// Ends a group: all its queue pairs are in error at once.
    pub fn kill(&mut self, group: u32) -> Result<()> {
        let qps = self.list().into_iter().find(|entry| entry.group == group).ok_or(NoSuchObject)?.qps;
        for qp in qps {
            let index = self.0.cx.qp(qp).ok_or(NoSuchObject)?;
            if let Some(qp) = self.0.qps.get_mut(index).filter(|qp| !is_idle(qp.core().state())) {
                qp.enter(Env { index, cx: self.0.cx, out: self.0.out }, QpState::Error);
            }
        }
        Ok(())
    }
}

/// Whether the send queue, the receive queue or both may become managed.
fn may_be_managed<P: Platform>(core: &Core<P>, send: bool, receive: bool) -> bool {
    let is_early = matches!(core.state(), QpState::Reset | QpState::Init | QpState::Rtr);
    let has_queues = (send || receive) && !core.is_managed() && !(receive && core.made().srq.is_some());
    // Completions that nobody asked for would be counted.
    is_early && has_queues && core.made().qp_type != QpType::Ud && !(send && core.made().signal_all)
}

/// A queue pair that was not connected has nothing that could fail.
fn is_idle(state: QpState) -> bool {
    matches!(state, QpState::Reset | QpState::Error)
}

/// Tells the sender of a refused message that the managed receive queue takes it now. Where it does not, the sender asks again.
fn tell_refused<P: Platform>(core: &mut Core<P>, out: &mut Outputs<P::Memory>) {
    let refused = core.recv.chain.as_mut().and_then(|queue| queue.refused.take());
    if let Some(head) = refused.filter(|_| core.state().can_receive()) {
        out.packet(Packet { head: head.reply(acknowledgement(Syndrome::ACK)), body: Body::Ready });
    }
}

impl<P: Platform> QueuePairs<P> {
    /// Wakes and ends queues that others have woken or ended. Returns how many there were.
    #[inline]
    pub(super) fn see_to_chains(&mut self, contexts: &mut Slab<Context<P>>, out: &mut Outputs<P::Memory>) -> usize {
        if out.chains.has_any() { self.wake_chains(contexts, out) } else { 0 }
    }

    #[cold]
    fn wake_chains(&mut self, contexts: &mut Slab<Context<P>>, out: &mut Outputs<P::Memory>) -> usize {
        let mut count = 0;
        while let Some(index) = out.chains.take_poisoned() {
            count += 1;
            if let Some((qp, env)) = self.with(index, contexts, out)
                && qp.core().is_managed()
                && !is_idle(qp.core().state())
            {
                qp.enter(env, QpState::Error);
            }
        }
        while let Some(index) = out.chains.take_woken() {
            count += 1;
            let Some(qp) = self.get_mut(index) else { continue };
            tell_refused(qp.core_mut(), out);
            if let Some(chain) = &mut qp.core_mut().send.chain {
                chain.is_parked = false;
                out.make_ready(index, qp.core());
            }
        }
        count
    }
}
