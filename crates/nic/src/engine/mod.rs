//! The engine: one shard of the NIC.

mod arrivals;
mod chain_listing;
mod chains;
mod device;
mod enforcement;
mod free;
mod groups;
mod management;
mod moving;
mod probes;
mod receive;
mod settle;
mod table;
#[cfg(test)]
mod tests;
mod transmit;

pub use crate::device::AccessCounters;
pub use chains::RingRegion;
pub use device::Device;
pub use management::{MadError, ReceivedMad};
pub use moving::MovingDevice;
pub use probes::{PathProbes, ProbeError, ProbeReply, ProbeRequest, ProbeState};
pub use receive::{Owners, WireCounters};
pub use settle::Budget;

use crate::capture::Captures;
use crate::command::{CommandError, ContextId, DeferredDrop};
use crate::device::{Context, Event, Outputs, Slab};
use crate::numbers::Numbers;
use crate::packet::Packet;
use crate::path::Integrity;
use crate::path::{NativeConfig, Network};
use crate::platform::Platform;
use crate::schedule::{FAILED_PER_POLL, Order, POLL_COST, TURNS_PER_POLL};
use crate::seeded::derive;
use crate::timer::Time;
use crate::transport::local::drop_request;
use crate::transport::{Env, Qp};
use enforcement::Enforcement;
use management::Management;
use rdmesh_verbs::{DeviceLimits, Qpn};
use table::QueuePairs;

/// Configuration of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of this engine on the host, from 0.
    pub shard: u32,
    /// Seed of numbers that must be hard to predict.
    pub seed: u64,
    /// Limits of one context.
    pub limits: DeviceLimits,
    /// Connections to other routers.
    pub native: NativeConfig,
}

/// One shard of a host's virtual NIC. See the crate's documentation for how it is driven.
pub struct Engine<P: Platform> {
    config: Config,
    contexts: Slab<Context<P>>,
    qps: QueuePairs<P>,
    integrity: Integrity,
    wire: WireCounters,
    management: Management,
    enforcement: Enforcement,
    out: Outputs<P::Memory>,
}

impl<P: Platform> Engine<P> {
    /// An engine without any context. All engines of a host share `numbers`.
    pub fn new(config: Config, numbers: Numbers) -> Self {
        Self {
            config,
            contexts: Slab::new(u32::MAX),
            qps: QueuePairs::new(),
            integrity: Integrity::new(),
            wire: WireCounters::default(),
            management: Management::default(),
            enforcement: Enforcement::default(),
            out: Outputs::new(config.shard, numbers, config.native),
        }
    }

    /// Opens a device.
    pub fn open(&mut self, network: Network) -> ContextId {
        let seed = derive(self.config.seed, 0);
        // What was given out before cannot be told from this one.
        self.config.seed = derive(self.config.seed, 1);
        let context = Context::new(network, &self.config.limits, seed);
        let handle = self.contexts.insert(context);
        ContextId(handle.expect("the table of contexts has no limit"))
    }

    /// Closes a device: all its objects are destroyed, in any state.
    pub fn close(&mut self, id: ContextId) -> Option<DeferredDrop> {
        let qps = self.device(id).ok()?.remove_qps(usize::MAX);
        let context = self.contexts.remove(id.0)?;
        Some(DeferredDrop::new((qps, context)))
    }

    /// Destroys some queue pairs of a device that is to be closed, in any state; none if none is left. Others are served between
    /// two slices.
    pub fn close_some(&mut self, id: ContextId) -> Option<DeferredDrop> {
        let qps = self.device(id).ok()?.remove_qps(CLOSED_AT_ONCE);
        (!qps.is_empty()).then(|| DeferredDrop::new(qps))
    }

    /// An open device, for commands.
    pub fn device(&mut self, id: ContextId) -> Result<Device<'_, P>, CommandError> {
        let cx = self.contexts.get_mut(id.0).ok_or(CommandError::NoSuchObject)?;
        Ok(Device { id, cx, qps: &mut self.qps, out: &mut self.out })
    }

    /// The program has posted to the send queue of `qp`. Unknown handles are ignored.
    pub fn doorbell(&mut self, id: ContextId, qp: u32) {
        let Some(index) = self.contexts.get(id.0).and_then(|cx| cx.qp(qp)) else { return };
        if let Some(qp) = self.qps.get(index) {
            self.out.make_ready(index, qp.core());
        }
    }

    /// A packet for another engine, if there is one, and which that is.
    pub fn poll_packet(&mut self) -> Option<(u32, Packet<P::Memory>)> {
        self.out.poll_packet()
    }

    /// The next event for the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.poll_event()
    }

    /// Packet captures in progress.
    pub fn captures(&mut self) -> &mut Captures {
        &mut self.out.captures
    }

    /// Time at which [`Engine::poll`] has to be called at the latest, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.out.timers.next();
        // Receive requests posted to a QP in error ring no doorbell: they are looked for.
        let watch = self.out.has_failed().then(|| self.out.now.after(FAILED_WATCH));
        let gate = self.out.schedule.deadline();
        timer.into_iter().chain(watch).chain(self.out.chains.deadline()).chain(gate).min()
    }

    /// Whether there is work to do, or output to be taken, other than by [`Engine::poll_transmit`].
    pub fn has_work(&self) -> bool {
        let out = &self.out;
        let has_turns =
            self.enforcement.is_due() || !out.schedule.is_empty(Order::Local) || !out.schedule.is_empty(Order::Arrived);
        out.has_any() || has_turns || out.schedule.has_due() || self.management.has_received()
    }

    /// Whether there is something for [`Engine::poll_transmit`].
    pub fn has_to_transmit(&self) -> bool {
        !self.out.schedule.is_empty(Order::Wire) || self.has_final_packets()
    }

    /// Does the present work, for a bounded time. Returns whether there was any.
    pub fn poll(&mut self, now: Time) -> bool {
        self.out.now = now;
        let start = self.out.spent();
        let mut worked = self.expire();
        worked |= self.enforcement.advance(&mut self.qps, &mut self.contexts, &mut self.out);
        worked |= self.drain_inbox();
        worked |= self.qps.see_to_chains(&mut self.contexts, &mut self.out) != 0;
        for _ in 0..self.out.schedule.len(Order::Arrived).min(TURNS_PER_POLL) {
            if self.out.spent() - start > POLL_COST / 2 {
                break;
            }
            worked |= self.take_arrived();
        }
        worked |= self.take_local_turns(start);
        worked | self.flush_failed()
    }

    /// Lets queue pairs send within the host: those that waited when it began, and chains that these have woken, so that a request
    /// to a chain is answered in the poll that sent it.
    fn take_local_turns(&mut self, start: u64) -> bool {
        let (mut worked, mut turns, mut taken) = (false, self.out.schedule.len(Order::Local), 0);
        while taken < turns.min(TURNS_PER_POLL) {
            taken += 1;
            // Packets for others are taken away between polls; until then no more are made. And a queue pair whose doorbell
            // rings while large messages are copied does not wait longer than this.
            if self.out.is_full() || self.out.spent() - start > POLL_COST {
                break;
            }
            let Some(index) = self.out.schedule.next(Order::Local) else { break };
            let before = self.out.spent();
            worked |= self.run(index);
            // The cost of its packets at receivers on this engine is charged to the sender.
            self.drain_inbox();
            turns += self.qps.see_to_chains(&mut self.contexts, &mut self.out);
            self.out.schedule.charge(Order::Local, index, self.out.spent() - before);
        }
        worked
    }

    fn expire(&mut self) -> bool {
        let mut worked = self.out.schedule.open_gates(self.out.now);
        self.out.chains.expire(self.out.now);
        while let Some(index) = self.out.timers.pop(self.out.now) {
            if let Some((qp, env)) = self.qp(index) {
                qp.handle_timeout(env);
                worked = true;
            }
        }
        worked
    }

    fn run(&mut self, index: u32) -> bool {
        let Some((qp, env)) = self.qp(index) else { return false };
        let worked = qp.send_locally(env);
        if let Some((qp, env)) = self.qp(index)
            && worked
            && qp.core().can_send()
        {
            env.out.make_ready(index, qp.core());
        }
        worked
    }

    fn drain_inbox(&mut self) -> bool {
        let mut worked = false;
        while let Some(mut packets) = self.out.take_kept() {
            worked = true;
            // Packets are large: they are executed where they are, and what they cause is collected elsewhere.
            for packet in &mut packets {
                self.deliver(packet);
            }
            self.out.give_back(packets);
        }
        worked
    }

    /// Delivers a packet from this host.
    fn deliver(&mut self, packet: &mut Packet<P::Memory>) {
        self.out.captures.local(self.out.now, packet);
        let Packet { head, body } = packet;
        let dest = head.header.dest;
        if head.is_reply() {
            if let Some((qp, env)) = self.out.index_of(dest).and_then(|index| self.qp(index)) {
                qp.handle_reply(env, head, body);
            }
        } else if dest == Qpn::MULTICAST {
            self.qps.deliver_to_group(head, body, &mut self.contexts, &mut self.out);
        } else {
            match self.out.index_of(dest).and_then(|index| self.qp(index)) {
                Some((qp, env)) => qp.handle_request(env, head, body),
                None => drop_request(&mut self.out, head),
            }
        }
    }

    /// Flushes what was posted to QPs in error, some of them in each poll.
    fn flush_failed(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..self.out.failed().min(FAILED_PER_POLL) {
            let Some(index) = self.out.next_failed() else { break };
            let Some((qp, env)) = self.qp(index) else { continue };
            worked |= qp.flush_receives(env);
            self.out.watch_failed(index);
        }
        worked
    }

    fn qp(&mut self, index: u32) -> Option<(&mut Qp<P>, Env<'_, P>)> {
        self.qps.with(index, &mut self.contexts, &mut self.out)
    }
}

/// Queue pairs of a device that is to be closed, destroyed at once.
const CLOSED_AT_ONCE: usize = 256;
/// Interval at which the receive queues of QPs in error are polled without other work.
const FAILED_WATCH: core::time::Duration = core::time::Duration::from_millis(10);
