//! Sockets of one worker: tunnel and plain RoCEv2.

use super::clock::Clock;
use super::control::Control;
use super::counters::Counters;
use super::external::ExternalSockets;
use super::faults::{Faults, Injector};
use super::outbox::{OpenSockets, Outbox, SocketKey};
use super::raw::{BATCH, Name, Slot};
use super::socket::Socket;
use super::tunnel::{Guard, Table, Tunnel};
use rdmesh_nic::{Datagram, ExternalId, Origin, Target, Time, Transmits};
use rustix::event::{Timespec, epoll};
use rustix::io::{self, Errno};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The sockets that one worker receives from and sends to.
pub struct Sockets {
    worker: usize,
    clock: Clock,
    /// Epoll set of the sockets that it receives from.
    poll: OwnedFd,
    receiving: Vec<Receiving>,
    open: Open,
    slots: Vec<Slot>,
    outbox: Outbox,
    injector: Option<Box<Injector>>,
    /// Passes since the sockets were last looked at.
    passes: u32,
    /// Time until which they are polled in every pass.
    busy_until: Time,
    counters: Arc<Counters>,
}

/// Sockets by purpose.
struct Open {
    tunnel: Option<Tunnel>,
    external: Vec<Arc<ExternalSockets>>,
}

/// A socket that this worker receives from.
struct Receiving {
    source: Source,
    /// Last reported number of messages that were dropped for lack of room.
    drops: u32,
}

/// Kind of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Tunnel,
    External(ExternalId, bool),
}

impl Sockets {
    pub(crate) fn new(
        worker: usize,
        clock: Clock,
        tunnel: Option<Tunnel>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let is_sealed = tunnel.as_ref().is_some_and(|tunnel| tunnel.guard.is_some());
        let transmits = if is_sealed { Transmits::for_sealing() } else { Transmits::new() };
        let mut sockets = Self {
            worker,
            clock,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            receiving: Vec::new(),
            open: Open { tunnel, external: Vec::new() },
            slots: Vec::new(),
            outbox: Outbox::new(transmits),
            injector: None,
            passes: 0,
            busy_until: Time::default(),
            counters,
        };
        if sockets.open.tunnel.is_some() {
            sockets.watch(Source::Tunnel)?;
        }
        Ok(sockets)
    }

    /// Injects faults into received datagrams, from now on; none ends them.
    pub fn set_faults(&mut self, faults: Option<Faults>) {
        self.injector = faults.map(|faults| Box::new(Injector::new(faults, self.worker as u64)));
    }

    /// Sets the table of hosts and their keys.
    pub(crate) fn set_peers(&mut self, table: &Table) {
        if let Some(guard) = self.open.guard() {
            guard.set_peers(table);
        }
    }

    /// Takes a namespace's sockets into use.
    pub fn add_external(&mut self, external: Arc<ExternalSockets>) -> io::Result<()> {
        let (id, is_ours, has_v6) = (external.id(), external.worker() == self.worker, external.socket(false).is_some());
        self.open.external.push(external);
        if is_ours {
            self.watch(Source::External(id, true))?;
            if has_v6 {
                self.watch(Source::External(id, false))?;
            }
        }
        Ok(())
    }

    /// Forgets a namespace's sockets.
    pub fn remove_external(&mut self, id: ExternalId) {
        for is_v4 in [true, false] {
            let source = Source::External(id, is_v4);
            if let Some(socket) = self.open.receiver(source) {
                // An error means that it was never watched.
                let _ = epoll::delete(&self.poll, socket);
            }
            self.receiving.retain(|receiving| receiving.source != source);
        }
        self.open.external.retain(|external| external.id() != id);
    }

    /// Gives received datagrams to `deliver`, with the present time. Returns whether there were any. Sockets that have been
    /// quiet are not asked in every pass.
    pub(crate) fn receive(&mut self, now: Time, deliver: &mut impl FnMut(Time, &Datagram<'_>)) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let is_due = now < self.busy_until || self.passes >= QUIET_PASSES;
        if self.receiving.is_empty() || !is_due {
            return false;
        }
        self.passes = 0;
        self.release_held(now, deliver);
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let Ok((ready, _)) = epoll::wait(&self.poll, &mut events, Some(&Timespec::default())) else { return false };
        let mut worked = false;
        for event in ready {
            worked |= self.receive_from(Source::of(event.data), deliver);
        }
        if worked {
            self.busy_until = now.after(BUSY);
        }
        worked
    }

    /// Has the next [`Sockets::receive`] ask the sockets, quiet or not.
    pub(crate) fn look_at_once(&mut self) {
        self.passes = QUIET_PASSES;
    }

    /// Buffer in which the engine puts trains to be sent; only while nothing is [blocked](Sockets::is_blocked).
    pub(crate) fn transmits(&mut self) -> &mut Transmits {
        self.outbox.transmits_mut()
    }

    /// Sends the trains in [`Sockets::transmits`]. Returns whether anything was sent.
    pub(crate) fn flush(&mut self, now: Time) -> bool {
        if self.outbox.transmits().is_empty() {
            return false;
        }
        self.seal();
        let worked = self.outbox.flush(&self.open, &self.counters);
        if worked {
            // Answers will come.
            self.busy_until = now.after(BUSY);
        }
        worked
    }

    /// Whether a socket has no room for the rest.
    pub(crate) fn is_blocked(&self) -> bool {
        self.outbox.blocked().is_some()
    }

    /// Readable when a socket is, or, between [`Sockets::before_sleep`] and [`Sockets::after_sleep`], when the one that
    /// had no room has some.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// The time at which there is something to do even if nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.injector.as_ref().and_then(|injector| injector.deadline())
    }

    /// The worker is about to sleep.
    pub(crate) fn before_sleep(&self) {
        self.watch_blocked(true);
    }

    /// The worker is awake, possibly because a socket is readable.
    pub(crate) fn after_sleep(&mut self) {
        self.watch_blocked(false);
        self.look_at_once();
    }

    /// Seals each train for the tunnel, once. A train that cannot be sealed is not sent.
    fn seal(&mut self) {
        let Self { open, outbox, .. } = self;
        let Some(guard) = open.guard().filter(|_| outbox.is_untouched()) else { return };
        for number in 0..outbox.transmits().trains().len() {
            let Target::Host(to) = outbox.transmits().trains()[number].target else { continue };
            let mut datagrams = outbox.transmits_mut().datagrams_mut(number);
            if !datagrams.by_ref().all(|datagram| guard.seal(to, datagram)) {
                let left = datagrams.count() as u64;
                guard.count_unsent(to, 1 + left);
                outbox.withhold(number);
            }
        }
    }

    fn release_held(&mut self, now: Time, deliver: &mut impl FnMut(Time, &Datagram<'_>)) {
        let Self { injector: Some(injector), open, .. } = self else { return };
        injector.release(now, &mut |datagram| open.admit(datagram, |datagram| deliver(now, datagram)));
    }

    fn watch(&mut self, source: Source) -> io::Result<()> {
        let socket = self.open.receiver(source).ok_or(Errno::BADF)?;
        epoll::add(&self.poll, socket, source.data(), epoll::EventFlags::IN)?;
        self.receiving.push(Receiving { source, drops: 0 });
        if self.slots.is_empty() {
            self.slots = (0..BATCH).map(|_| slot()).collect();
        }
        Ok(())
    }

    /// Begins or ends to watch for room in the socket that had none.
    fn watch_blocked(&self, begins: bool) {
        let Some(key) = self.outbox.blocked() else { return };
        let Some((socket, _)) = self.open.find(key) else { return };
        let source = match key {
            SocketKey::Tunnel(..) => None,
            SocketKey::External(id, is_v4) => Some(Source::External(id, is_v4)),
        };
        let watched = source.filter(|source| self.receiving.iter().any(|receiving| receiving.source == *source));
        // Without it the worker sleeps until something else wakes it; the engine's timers do.
        let _ = match (watched, begins) {
            (Some(source), true) => {
                epoll::modify(&self.poll, socket, source.data(), epoll::EventFlags::IN | epoll::EventFlags::OUT)
            }
            (Some(source), false) => epoll::modify(&self.poll, socket, source.data(), epoll::EventFlags::IN),
            (None, true) => epoll::add(&self.poll, socket, epoll::EventData::new_u64(ROOM), epoll::EventFlags::OUT),
            (None, false) => epoll::delete(&self.poll, socket),
        };
    }

    /// Receives the waiting datagrams of one socket, up to a limit.
    fn receive_from(&mut self, source: Option<Source>, deliver: &mut impl FnMut(Time, &Datagram<'_>)) -> bool {
        let Self { receiving, open, slots, injector, counters, clock, .. } = self;
        let Some(receiving) = receiving.iter_mut().find(|receiving| Some(receiving.source) == source) else {
            return false;
        };
        let (mut worked, mut congested) = (false, 0);
        for _ in 0..BATCHES {
            // An error other than that nothing is there belongs to a datagram that was sent.
            let Some(socket) = open.receiver(receiving.source) else { return worked };
            let Ok(count) = socket.receive(slots) else { break };
            let reader = clock.reader();
            for slot in &slots[..count] {
                let meta = slot.control.read();
                let drops = meta.drops.unwrap_or(receiving.drops);
                counters.kernel_drops.add(drops.wrapping_sub(receiving.drops).into());
                receiving.drops = drops;
                let Some(origin) = receiving.source.origin(&slot.name, meta.to) else { continue };
                if slot.is_cut {
                    counters.kernel_drops.add(1);
                    continue;
                }
                counters.received_trains.add(1);
                counters.received_bytes.add(slot.len as u64);
                let received = meta.stamp.and_then(|stamp| reader.time(stamp));
                let traffic_class = meta.traffic_class | congested;
                for bytes in slot.bytes[..slot.len].chunks(meta.segment.unwrap_or(slot.len).max(1)) {
                    counters.received_datagrams.add(1);
                    let datagram = Datagram { origin, traffic_class, received, bytes };
                    match injector {
                        None => open.admit(&datagram, |datagram| deliver(reader.now, datagram)),
                        Some(injector) => {
                            injector.apply(reader.now, &datagram, &mut |datagram| {
                                open.admit(datagram, |datagram| deliver(reader.now, datagram));
                            });
                            counters.faults.add(injector.take_count());
                        }
                    }
                }
            }
            worked |= count > 0;
            if count < slots.len() {
                break;
            }
            // As a switch does with a long queue: senders without acknowledgements have no other back-pressure.
            let is_backed_up = open.receiver(receiving.source).is_some_and(Socket::is_backed_up);
            congested = if is_backed_up { CONGESTION_EXPERIENCED } else { 0 };
        }
        worked
    }
}

impl Open {
    /// Gives a datagram to `deliver`, unless it came through the tunnel and was not sealed by another host.
    fn admit(&mut self, datagram: &Datagram<'_>, deliver: impl FnOnce(&Datagram<'_>)) {
        if let Origin::Host(from) = datagram.origin
            && let Some(guard) = self.guard()
            && !guard.open(from, datagram.bytes)
        {
            return;
        }
        deliver(datagram);
    }

    fn guard(&mut self) -> Option<&mut Guard> {
        self.tunnel.as_mut()?.guard.as_mut()
    }

    fn external(&self, id: ExternalId) -> Option<&ExternalSockets> {
        self.external.iter().find(|external| external.id() == id).map(Arc::as_ref)
    }

    fn receiver(&self, source: Source) -> Option<&Socket> {
        match source {
            Source::Tunnel => self.tunnel.as_ref().map(|tunnel| &tunnel.receiver),
            Source::External(id, is_v4) => self.external(id)?.socket(is_v4),
        }
    }
}

impl OpenSockets for Open {
    fn find(&self, key: SocketKey) -> Option<(&Socket, u32)> {
        match key {
            SocketKey::Tunnel(is_v4, lane) => {
                let tunnel = self.tunnel.as_ref()?;
                let sender = tunnel.senders.get(lane.index() % tunnel.senders.len().max(1))?;
                (tunnel.is_v4 == is_v4).then_some((sender, 0))
            }
            SocketKey::External(id, is_v4) => {
                let external = self.external(id)?;
                Some((external.socket(is_v4)?, external.scope()))
            }
        }
    }
}

impl Source {
    const TUNNEL: u64 = u64::MAX;

    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Tunnel => Self::TUNNEL,
            Self::External(id, is_v4) => u64::from(id.0) << 1 | u64::from(is_v4),
        })
    }

    fn of(data: epoll::EventData) -> Option<Self> {
        match data.u64() {
            ROOM => None,
            Self::TUNNEL => Some(Self::Tunnel),
            n => Some(Self::External(ExternalId((n >> 1) as u32), n & 1 == 1)),
        }
    }

    /// Source of a datagram, as the kernel tells it.
    fn origin(self, name: &Name, to: Option<IpAddr>) -> Option<Origin> {
        let from = name.address()?;
        match self {
            Self::Tunnel => Some(Origin::Host(from.ip())),
            Self::External(id, _) => Some(Origin::External { id, from: from.ip(), from_port: from.port(), to: to? }),
        }
    }
}

fn slot() -> Slot {
    Slot { bytes: vec![0; MAX_MESSAGE].into(), len: 0, is_cut: false, name: Name::EMPTY, control: Control::EMPTY }
}

/// The largest UDP payload.
const MAX_MESSAGE: usize = 65_535;
/// Receiving calls for one socket in one pass.
const BATCHES: usize = 4;
const EVENTS: usize = 16;
/// RFC 3168.
const CONGESTION_EXPERIENCED: u8 = 0b11;
/// Passes between two looks at sockets that have been quiet.
const QUIET_PASSES: u32 = 128;
/// Time after some traffic in which more is expected.
const BUSY: Duration = Duration::from_millis(1);
/// The event that a socket has room again.
const ROOM: u64 = u64::MAX - 1;
