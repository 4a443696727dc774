//! Output queues of the engine: packets, events and queue pairs with work.

use super::context::Context;
use super::held::HeldBytes;
use super::inbox::Inbox;
use super::ingress::Ingress;
use crate::capture::Captures;
use crate::chain::Pending;
use crate::command::ContextId;
use crate::congestion::CongestionControl;
use crate::numbers::Numbers;
use crate::packet::{Head, Packet};
use crate::path::{LossRecovery, NativeConfig, Network, Routes, Verdicts};
use crate::platform::{Overrun, Platform};
use crate::policy::Traffic;
use crate::qp::Core;
use crate::schedule::{NumberList, OUTBOX_LIMIT, Order, Schedule, cost};
use crate::timer::{Deadlines, Time};
use crate::wire::Telemetry;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use rdmesh_verbs::{AsyncEvent, Completion, Gid, QpState, Qpn};

/// Event for the program, or for the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A completion for which `cq` was armed.
    Completion {
        /// The context of the object.
        context: ContextId,
        /// The queue, by handle.
        cq: u32,
    },
    /// An asynchronous event.
    Async {
        /// The context of the object.
        context: ContextId,
        /// The kind.
        event: AsyncEvent,
        /// Handle of the QP, CQ or SRQ that it is about, by kind of event.
        element: u32,
    },
    /// A QP's state changed, by command or through an error.
    QpState {
        /// The context of the object.
        context: ContextId,
        /// The QP, by handle.
        qp: u32,
        /// The new state.
        state: QpState,
    },
}

/// Counts of what security groups have prevented, in one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessCounters {
    /// Commands that named a peer.
    pub refused: u64,
    /// Datagrams, at the sender or at the receiver.
    pub dropped: u64,
    /// Queue pairs that were connected before the rules changed.
    pub ended: u64,
}

/// How a connection to an rdmesh router recovers from losses.
pub(crate) struct Recovery {
    /// Room for packets behind gaps, if it does so selectively.
    pub(crate) held: Option<HeldBytes>,
    /// Lanes that its packets may leave by.
    pub(crate) lanes: u8,
    /// Control of what it sends.
    pub(crate) congestion: CongestionControl,
}

pub(crate) struct Outputs<M> {
    shard: u32,
    /// Table of the host's queue pair numbers.
    numbers: Numbers,
    pub(crate) now: Time,
    /// Cost of all packets and of what else was executed, in the unit of [`cost`].
    spent: u64,
    /// Bytes of data in all packets.
    moved: u64,
    /// Packets between two QPs of this engine.
    inbox: Inbox<M>,
    /// Packets for other engines.
    outbox: VecDeque<Packet<M>>,
    events: VecDeque<Event>,
    /// QPs with something to send.
    pub(crate) schedule: Schedule,
    /// Routes to the addresses of tenant networks.
    pub(crate) routes: Arc<Routes>,
    /// Answers of their rules.
    verdicts: Verdicts,
    pub(crate) access: AccessCounters,
    /// Packet captures in progress.
    pub(crate) captures: Captures,
    pub(crate) timers: Deadlines,
    /// QPs in error, whose receive queues are watched for requests to flush.
    failed: NumberList,
    /// Managed queues that others have woken or ended.
    pub(crate) chains: Pending,
    epoch: u32,
    /// Room for packets behind gaps; none where losses are recovered by go-back-N.
    held: Option<HeldBytes>,
    /// Connections to other routers.
    native: NativeConfig,
    /// The link by which their packets arrive.
    ingress: Ingress,
}

impl<M> Outputs<M> {
    pub(crate) fn new(shard: u32, numbers: Numbers, native: NativeConfig) -> Self {
        Self {
            shard,
            numbers,
            now: Time::default(),
            spent: 0,
            moved: 0,
            inbox: Inbox::new(),
            outbox: VecDeque::with_capacity(256),
            events: VecDeque::with_capacity(64),
            schedule: Schedule::default(),
            routes: Arc::default(),
            verdicts: Verdicts::default(),
            access: AccessCounters::default(),
            captures: Captures::default(),
            timers: Deadlines::default(),
            failed: NumberList::default(),
            chains: Pending::default(),
            epoch: 0,
            held: (native.recovery == LossRecovery::Selective).then(HeldBytes::default),
            ingress: Ingress::new(&native),
            native,
        }
    }

    #[inline]
    pub(crate) fn packet(&mut self, packet: Packet<M>) {
        if self.owner(&packet) == self.shard {
            self.inbox.push(packet);
        } else {
            self.outbox.push_back(packet);
        }
    }

    /// How connections to rdmesh routers recover from losses.
    pub(crate) fn recovery(&self) -> Recovery {
        let NativeConfig { lanes, congestion, .. } = self.native;
        Recovery { held: self.held.clone(), lanes, congestion }
    }

    /// A packet of another router is handled: `bytes` on the link.
    #[inline]
    pub(crate) fn on_arrival(&mut self, received: Option<Time>, bytes: usize) {
        self.ingress.on_arrival(self.now, received, bytes, &self.numbers);
    }

    /// Load of the link by which packets of other routers arrive.
    pub(crate) fn telemetry(&self) -> Telemetry {
        self.ingress.telemetry(self.now, &self.numbers)
    }

    /// The number of this engine.
    pub(crate) fn shard(&self) -> u32 {
        self.shard
    }

    /// Table of the host's queue pair numbers.
    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Takes a packet for a QP of this engine.
    pub(crate) fn keep(&mut self, packet: Packet<M>) {
        self.inbox.push(packet);
    }

    /// All packets for QPs of this engine, if there are any; [`Outputs::give_back`] follows.
    #[inline]
    pub(crate) fn take_kept(&mut self) -> Option<Vec<Packet<M>>> {
        self.inbox.take()
    }

    /// Gives the list back whose packets have been delivered.
    #[inline]
    pub(crate) fn give_back(&mut self, packets: Vec<Packet<M>>) {
        self.inbox.give_back(packets);
    }

    /// The next packet for another engine, and which that is.
    pub(crate) fn poll_packet(&mut self) -> Option<(u32, Packet<M>)> {
        let packet = self.outbox.pop_front()?;
        Some((self.owner(&packet), packet))
    }

    /// Packets within the host that wait, for this engine or others.
    pub(crate) fn packets(&self) -> usize {
        self.inbox.len() + self.outbox.len()
    }

    /// Whether so many packets wait for other engines that no more should be made.
    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() > OUTBOX_LIMIT
    }

    /// Sets the routes. Returns whether other addresses than before may exchange packets.
    pub(crate) fn set_routes(&mut self, routes: Arc<Routes>) -> bool {
        let is_same = Arc::ptr_eq(self.routes.access(), routes.access());
        if !routes.talk_as(&self.routes) {
            self.verdicts = Verdicts::of(&routes);
        }
        self.routes = routes;
        !is_same
    }

    /// Whether an address of an endpoint may exchange packets with one of its network. Its own ones always may.
    #[inline]
    pub(crate) fn may_talk(&mut self, network: &Network, own: Gid, peer: Gid) -> bool {
        let routes = &self.routes;
        let is_free = routes.access().is_empty() || network.gids.contains(&peer);
        is_free || self.verdicts.may_talk(routes, network.vni, own, peer)
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The next event for the program.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there are packets within the host, events, or managed queues to be woken.
    pub(crate) fn has_any(&self) -> bool {
        !self.inbox.is_empty() || !self.outbox.is_empty() || !self.events.is_empty() || self.chains.has_any()
    }

    /// Cost of all packets and of what else was executed, in the unit of [`cost`].
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Bytes of data in all packets.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// The receive queue of a QP in error is watched for requests to flush.
    pub(crate) fn watch_failed(&mut self, index: u32) {
        self.failed.push_back(index);
    }

    /// The QP is no longer in error.
    pub(crate) fn forget_failed(&mut self, index: u32) {
        self.failed.remove(index);
    }

    /// The QP in error that was not looked at for longest; it is watched no longer.
    pub(crate) fn next_failed(&mut self) -> Option<u32> {
        self.failed.pop_front()
    }

    /// Whether QPs in error are watched.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// QPs in error whose receive queues are watched.
    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// The engine that a packet is for: this one, if no queue pair ever had the number.
    fn owner(&self, packet: &Packet<M>) -> u32 {
        let Head { header, shard, .. } = &packet.head;
        if header.dest == Qpn::MULTICAST { *shard } else { self.numbers.owner(header.dest).unwrap_or(self.shard) }
    }

    /// The engine's index of a QP of its own.
    pub(crate) fn index_of(&self, qpn: Qpn) -> Option<u32> {
        self.numbers.place(qpn, self.shard)
    }

    /// The QP has something to send, or to flush.
    pub(crate) fn make_ready<P: Platform<Memory = M>>(&mut self, index: u32, qp: &Core<P>) {
        self.schedule.add(if qp.is_on_wire() { Order::Wire } else { Order::Local }, index);
    }

    /// The QP has something to send to another host.
    pub(crate) fn make_wire_ready(&mut self, index: u32) {
        self.schedule.add(Order::Wire, index);
    }

    /// Whether the QP may send a packet; else it joins the order when its rates allow it.
    #[inline]
    pub(crate) fn admit(&mut self, order: Order, index: u32) -> bool {
        self.schedule.admit(order, index, self.now)
    }

    /// The QP has sent a packet of a request that moves so many bytes, and `begins` the request: that counts against its rates.
    #[inline]
    pub(crate) fn meter(&mut self, index: u32, bytes: u64, begins: bool) {
        self.schedule.meter(index, self.now, Traffic { bytes, messages: u64::from(begins) });
    }

    /// A packet with `bytes` of data was sent or executed.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.spent += cost(1, bytes);
        self.moved += bytes;
    }

    /// An epoch that no QP of this engine has used: not even a successor of the same number takes a reply to an older one.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// The last epoch of a QP of this engine.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// QPs of another engine come here, which have used epochs up to this one.
    pub(crate) fn pass_epoch(&mut self, epoch: u32) {
        self.epoch = self.epoch.max(epoch);
    }

    pub(crate) fn async_event(&mut self, context: ContextId, event: AsyncEvent, element: u32) {
        self.events.push_back(Event::Async { context, event, element });
    }

    /// Adds a completion to a CQ. On overrun the queue is in error for good (IBA 10.8.4): an event is raised once, and
    /// the caller's QP has to fail.
    pub(crate) fn complete<P: Platform<Memory = M>>(
        &mut self,
        cx: &mut Context<P>,
        context: ContextId,
        handle: u32,
        completion: &Completion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        let Some(cq) = cx.cq(handle) else { return Err(Overrun) };
        let pushed = cq.push(handle, completion, solicited);
        if cq.has_waiting() {
            self.chains.wake_all(cq.take_woken());
        }
        match pushed {
            Ok(true) => self.events.push_back(Event::Completion { context, cq: handle }),
            Ok(false) => {}
            Err(full) => {
                if full.is_first {
                    self.async_event(context, AsyncEvent::CqError, handle);
                }
                return Err(Overrun);
            }
        }
        Ok(())
    }
}
