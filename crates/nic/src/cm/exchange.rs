//! The messages of connections: sending, retransmission, time-outs and TIME-WAIT.

use super::connection::{CmConnection, Repeat};
use super::mad::{Bytes, Kind};
use super::table::{Full, Table};
use super::types::{CmCounters, CmPath, CmState, CommId, Event, Mad};
use crate::seeded::derive;
use crate::timer::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// The connections of a host, with their messages and events that wait to be taken.
pub(super) struct Exchange {
    table: Table,
    mads: VecDeque<Mad>,
    events: VecDeque<(CommId, Event)>,
    /// The high half of all transaction IDs.
    transaction: u64,
    sent: [u64; Kind::COUNT],
    retried: [u64; Kind::COUNT],
}

impl Exchange {
    /// No connections. The seed determines their communication IDs.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            table: Table::new(seed),
            mads: VecDeque::new(),
            events: VecDeque::new(),
            transaction: derive(seed, 0) << 32,
            sent: [0; Kind::COUNT],
            retried: [0; Kind::COUNT],
        }
    }

    /// The connections.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Adds a connection of this end's; returns its ID. `make` gets the ID of the transactions that it begins.
    pub(super) fn open(&mut self, make: impl FnOnce(u64) -> CmConnection) -> u32 {
        let id = self.table.fresh_id();
        let connection = make(self.tid(id));
        let added = self.table.insert(id, connection);
        debug_assert_ne!(added, Err(Full), "only what peers ask for is limited");
        id
    }

    /// Adds a connection that a peer requests, unless too many wait for the owner already; returns its ID.
    pub(super) fn admit(&mut self, connection: CmConnection) -> Result<u32, Full> {
        let id = self.table.fresh_id();
        self.table.insert(id, connection).map(|()| id)
    }

    /// Lets `change` work on a connection.
    pub(super) fn change(&mut self, id: u32, change: impl FnOnce(&mut CmConnection)) {
        self.table.change(id, change);
    }

    /// Forgets a connection at once.
    pub(super) fn remove(&mut self, id: u32) {
        self.table.remove(id);
    }

    /// The next datagram to be sent.
    pub(super) fn poll_mad(&mut self) -> Option<Mad> {
        self.mads.pop_front()
    }

    /// The next event. Connections that the owner has destroyed have none.
    pub(super) fn poll_event(&mut self) -> Option<(CommId, Event)> {
        while let Some((id, event)) = self.events.pop_front() {
            if self.table.get(id.0).is_some_and(|c| c.is_owned) {
                return Some((id, event));
            }
        }
        None
    }

    /// The counters of what it has, and has sent; the others are those of `received`.
    pub(super) fn counters(&self, received: CmCounters) -> CmCounters {
        let (live, time_wait) = (self.table.len(), self.table.time_waits());
        CmCounters { live, time_wait, sent: self.sent, retried: self.retried, ..received }
    }

    /// The ID of the transactions that a connection begins.
    pub(super) fn tid(&self, id: u32) -> u64 {
        self.transaction | u64::from(id)
    }

    /// Sends a message once.
    pub(super) fn send(&mut self, path: CmPath, kind: Kind, bytes: Bytes) {
        self.sent[kind.index()] += 1;
        self.mads.push_back(Mad { path, bytes });
    }

    /// Tells the owner of a connection.
    pub(super) fn tell(&mut self, id: u32, event: Event) {
        if self.table.get(id).is_some_and(|c| c.is_owned) {
            self.events.push_back((CommId(id), event));
        }
    }

    /// Handles expired deadlines: repetitions and time-outs happen only here.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some(id) = self.table.due(now) {
            self.on_deadline(now, id);
        }
    }

    /// Sends a message, and repeats it until there is an answer or no retries are left.
    pub(super) fn send_until_answered(&mut self, now: Time, id: u32, state: CmState, kind: Kind, bytes: Bytes) {
        self.send_and_keep(id, state, kind, bytes);
        self.table.change(id, |c| {
            c.deadline = Some(now.after(c.timeout));
            c.last.iter_mut().for_each(|last| last.left = c.max_retries);
        });
    }

    /// Sends a message, and again when the peer shows that it did not get it.
    pub(super) fn send_and_keep(&mut self, id: u32, state: CmState, kind: Kind, bytes: Bytes) {
        let Some(path) = self.table.get(id).map(|c| c.path) else { return };
        self.keep(id, state, kind, bytes);
        self.send(path, kind, bytes);
    }

    /// As if the message had been sent.
    pub(super) fn keep(&mut self, id: u32, state: CmState, kind: Kind, bytes: Bytes) {
        self.table.change(id, |c| {
            c.rest(state);
            c.last = Some(Repeat { kind, bytes: Box::new(bytes), left: 0, timeout: c.timeout });
        });
    }

    /// Sends the last message of a connection again, if it has to be kept.
    pub(super) fn send_again(&mut self, id: u32) {
        let Some(c) = self.table.get(id) else { return };
        if let Some(last) = &c.last {
            self.retried[last.kind.index()] += 1;
            self.mads.push_back(Mad { path: c.path, bytes: *last.bytes });
        }
    }

    fn on_deadline(&mut self, now: Time, id: u32) {
        let Some(c) = self.table.get(id) else { return };
        match &c.last {
            _ if c.state == CmState::TimeWait => self.exit_time_wait(id),
            Some(last) if last.left > 0 => {
                let timeout = if c.is_orphan() { 2 * last.timeout } else { last.timeout };
                self.send_again(id);
                self.table.change(id, |c| {
                    c.deadline = Some(now.after(timeout));
                    c.last.iter_mut().for_each(|last| (last.left, last.timeout) = (last.left - 1, timeout));
                });
            }
            _ => self.give_up(now, id),
        }
    }

    fn give_up(&mut self, now: Time, id: u32) {
        let Some(c) = self.table.get(id) else { return };
        let (state, guid) = (c.state, c.local_guid);
        if state == CmState::DreqSent {
            self.tell(id, Event::DisconnectTimedOut);
            return self.enter_time_wait(now, id);
        }
        if state != CmState::SidrReqSent {
            self.send_timeout_rej(id, guid);
        }
        self.tell(id, Event::Unreachable);
        self.end(id);
    }

    /// Waits until no packet of the connection can be under way any more.
    pub(super) fn enter_time_wait(&mut self, now: Time, id: u32) {
        self.table.change(id, |c| {
            let is_answer = c.last.as_ref().is_some_and(|last| last.kind == Kind::Drep);
            let last = c.last.take().filter(|_| is_answer);
            c.rest(CmState::TimeWait);
            c.last = last;
            c.deadline = Some(now.after(c.time_wait()));
        });
        while let Some(oldest) = self.table.surplus() {
            self.exit_time_wait(oldest);
        }
    }

    fn exit_time_wait(&mut self, id: u32) {
        self.tell(id, Event::TimeWaitExit);
        self.end(id);
    }

    /// Ends a connection; only the owner's id is left, if there is an owner.
    pub(super) fn end(&mut self, id: u32) {
        if self.table.get(id).is_some_and(|c| c.is_owned) {
            self.table.change(id, |c| c.rest(CmState::Idle));
        } else {
            self.table.remove(id);
        }
    }
}

impl CmConnection {
    /// Goes to a state without timers.
    pub(super) fn rest(&mut self, state: CmState) {
        self.state = state;
        self.deadline = None;
        self.last = None;
    }
}
