//! Outbox of a worker: trains that wait to be sent.

use super::control::Control;
use super::counters::Counters;
use super::raw::{BATCH, Message, Name};
use super::socket::Socket;
use arrayvec::ArrayVec;
use rdmesh_nic::{ExternalId, Lane, ROCE_PORT, TUNNEL_PORT, Target, Train, Transmits};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The sockets that there are.
pub(super) trait OpenSockets {
    /// The socket for `key`, and the interface of its link-local addresses.
    fn find(&self, key: SocketKey) -> Option<(&Socket, u32)>;
}

/// Trains to be sent.
pub(super) trait Trains {
    fn trains(&self) -> &[Train];
    fn bytes(&self, train: &Train) -> &[u8];
    fn clear(&mut self);
}

impl Trains for Transmits {
    fn trains(&self) -> &[Train] {
        self.trains()
    }

    fn bytes(&self, train: &Train) -> &[u8] {
        self.bytes(train)
    }

    fn clear(&mut self) {
        self.clear();
    }
}

/// Socket for a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SocketKey {
    /// To another router, by this lane. Whether that is over IPv4.
    Tunnel(bool, Lane),
    /// To an external peer. Whether that is over IPv4.
    External(ExternalId, bool),
}

/// Trains, and how far they have been sent.
pub(super) struct Outbox<T = Transmits> {
    transmits: T,
    at: Position,
    /// The socket that has no room for more.
    blocked: Option<SocketKey>,
    /// The train that has to be sent datagram by datagram, and the sockets where that goes for all.
    split: Option<usize>,
    unsegmented: Vec<SocketKey>,
    /// Trains that must not be sent, a bit for each.
    withheld: u64,
    logged: Vec<Errno>,
}

/// A place in the trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Position {
    train: usize,
    /// Bytes of it that are done.
    offset: usize,
}

/// Messages for one call, and the position after each.
type Batch<'a> = (ArrayVec<Message<'a>, BATCH>, ArrayVec<Position, BATCH>);

impl<T: Trains> Outbox<T> {
    /// The trains.
    pub(super) fn transmits(&self) -> &T {
        &self.transmits
    }

    /// The trains, to be added to or sealed.
    pub(super) fn transmits_mut(&mut self) -> &mut T {
        &mut self.transmits
    }

    pub(super) fn new(transmits: T) -> Self {
        Self {
            transmits,
            at: Position::default(),
            blocked: None,
            split: None,
            unsegmented: Vec::new(),
            withheld: 0,
            logged: Vec::new(),
        }
    }

    /// The socket that has no room for the rest.
    pub(super) fn blocked(&self) -> Option<SocketKey> {
        self.blocked
    }

    /// The train with this number is not to be sent.
    pub(super) fn withhold(&mut self, train: usize) {
        self.withheld |= 1u64.checked_shl(train as u32).unwrap_or_default();
    }

    /// Whether sending has not begun yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.at == Position::default() && self.blocked.is_none()
    }

    /// Sends as much as the sockets take. Returns whether anything was sent.
    pub(super) fn flush(&mut self, sockets: &impl OpenSockets, counters: &Counters) -> bool {
        self.blocked = None;
        let mut worked = false;
        while self.at.train < self.transmits.trains().len() {
            if self.is_withheld(self.at.train) {
                self.drop_train(counters);
                continue;
            }
            let key = SocketKey::of(&self.transmits.trains()[self.at.train]);
            let Some((socket, scope)) = sockets.find(key) else {
                // It has been closed since.
                self.drop_train(counters);
                continue;
            };
            let (messages, after) = self.gather(key, scope);
            let result = socket.send(&messages);
            drop(messages);
            match result {
                Ok(sent) => {
                    let position = sent.checked_sub(1).map_or(self.at, |last| after[last]);
                    counters.sent_trains.add(sent as u64);
                    self.advance(position, |bytes, datagrams| {
                        counters.sent_bytes.add(bytes);
                        counters.sent_datagrams.add(datagrams);
                    });
                    worked = true;
                }
                // A tenant controls the network behind an external socket, so others must not wait for it: the train is dropped,
                // which the transport treats as loss.
                Err(Errno::AGAIN) if matches!(key, SocketKey::External(..)) => self.drop_train(counters),
                Err(Errno::AGAIN) => {
                    self.blocked = Some(key);
                    counters.blocked.add(1);
                    return worked;
                }
                Err(error) => self.failed(key, error, after[0], counters),
            }
        }
        self.transmits.clear();
        self.at = Position::default();
        (self.split, self.withheld) = (None, 0);
        worked
    }

    fn is_withheld(&self, train: usize) -> bool {
        self.withheld.checked_shr(train as u32).unwrap_or_default() & 1 != 0
    }

    /// The next messages, all of them for the socket of `key`.
    fn gather(&self, key: SocketKey, scope: u32) -> Batch<'_> {
        let (mut messages, mut after) = (ArrayVec::new(), ArrayVec::new());
        let mut at = self.at;
        while let Some(train) = self.transmits.trains().get(at.train)
            && SocketKey::of(train) == key
            && !self.is_withheld(at.train)
            && !messages.is_full()
        {
            let (message, next) = self.message(train, at, scope);
            messages.push(message);
            after.push(next);
            at = next;
        }
        (messages, after)
    }

    /// The message at `at`, and what comes after it.
    fn message(&self, train: &Train, at: Position, scope: u32) -> (Message<'_>, Position) {
        let bytes = &self.transmits.bytes(train)[at.offset..];
        let key = SocketKey::of(train);
        let is_whole = at.offset == 0 && self.split != Some(at.train) && !self.unsegmented.contains(&key);
        let is_segmented = is_whole && train.count() > 1;
        let bytes = if is_whole { bytes } else { &bytes[..bytes.len().min(train.segment.max(1))] };
        let mut control = Control::EMPTY;
        if train.traffic_class != 0 {
            control.push_traffic_class(key.is_v4(), train.traffic_class);
        }
        if is_segmented {
            control.push_segment(train.segment as u16);
        }
        if let Target::External { from, .. } = train.target {
            control.push_source(from);
        }
        let offset = at.offset + bytes.len();
        let next = if offset >= train.len || key.needs_segmentation() && !is_whole {
            Position { train: at.train + 1, offset: 0 }
        } else {
            Position { offset, ..at }
        };
        (Message { bytes, name: Name::new(address(&train.target, scope)), control }, next)
    }

    /// Goes on to `position`; `count` gets the bytes and datagrams up to there.
    fn advance(&mut self, position: Position, count: impl FnOnce(u64, u64)) {
        let trains = self.transmits.trains();
        let datagrams = |train: &Train, bytes: usize| bytes.div_ceil(train.segment.max(1));
        let mut sum = (0, 0);
        for (number, train) in trains.iter().enumerate().take(position.train + 1).skip(self.at.train) {
            let from = if number == self.at.train { self.at.offset } else { 0 };
            let to = if number == position.train { position.offset } else { train.len };
            sum.0 += to - from;
            sum.1 += datagrams(train, to) - datagrams(train, from);
        }
        count(sum.0 as u64, sum.1 as u64);
        self.at = position;
    }

    /// The first message of a batch, after which comes `next`, could not be sent.
    fn failed(&mut self, key: SocketKey, error: Errno, next: Position, counters: &Counters) {
        let train = &self.transmits.trains()[self.at.train];
        let was_segmented = train.count() > 1 && self.at.offset == 0 && next.train > self.at.train;
        let can_split = was_segmented && self.split != Some(self.at.train) && !self.unsegmented.contains(&key);
        if can_split && matches!(error, Errno::IO | Errno::INVAL | Errno::MSGSIZE | Errno::OPNOTSUPP) {
            // The kernel reports by EIO that an interface does not support segmentation at all.
            if error == Errno::IO && self.unsegmented.len() < MAX_UNSEGMENTED {
                self.unsegmented.push(key);
            }
            self.split = Some(self.at.train);
            return;
        }
        if !self.logged.contains(&error) {
            self.logged.push(error);
            let target = train.target;
            tracing::warn!(%error, ?target, "cannot send a datagram; more with this error are only counted");
        }
        self.advance(next, |_, datagrams| counters.send_errors.add(datagrams));
    }

    fn drop_train(&mut self, counters: &Counters) {
        let next = Position { train: self.at.train + 1, offset: 0 };
        self.advance(next, |_, datagrams| counters.send_errors.add(datagrams));
    }
}

impl SocketKey {
    fn of(train: &Train) -> Self {
        match &train.target {
            Target::Host(to) => Self::Tunnel(to.is_ipv4(), train.lane),
            Target::External { id, from, .. } => Self::External(*id, from.is_ipv4()),
        }
    }

    fn is_v4(self) -> bool {
        let (Self::Tunnel(is_v4, _) | Self::External(_, is_v4)) = self;
        is_v4
    }

    /// Only the datagrams of a segmented message get the identifications that their invariant CRCs cover: sent one by
    /// one, all but the first of a train would be refused by their receiver. Datagrams that are not sent count as lost.
    fn needs_segmentation(self) -> bool {
        matches!(self, Self::External(_, true))
    }
}

fn address(target: &Target, scope: u32) -> SocketAddr {
    match *target {
        Target::Host(to) => SocketAddr::new(to, TUNNEL_PORT),
        Target::External { to: IpAddr::V6(to), .. } if is_link_local(to) => {
            SocketAddr::V6(SocketAddrV6::new(to, ROCE_PORT, 0, scope))
        }
        Target::External { to, .. } => SocketAddr::new(to, ROCE_PORT),
    }
}

fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || ip.is_multicast()
}

/// Sockets that are remembered to be unable to segment; beyond that, each train is tried.
const MAX_UNSEGMENTED: usize = 64;
