//! Timers of the connection manager: retransmission, time-outs and TIME-WAIT.

use super::connection::{CmConnection, Repeat};
use super::mad::Bytes;
use super::{Cm, CmState, Event, Kind, Mad};
use crate::timer::Time;
use alloc::boxed::Box;

impl Cm {
    /// Handles expired deadlines: repetitions and time-outs happen only here.
    pub fn handle_timeout(&mut self, now: Time) {
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

    /// A message came that had come before. Where this end has answered it, the answer was lost.
    pub(super) fn on_duplicate(&mut self, kind: Kind, id: u32, is_answered: bool) {
        self.counters.duplicate[kind.index()] += 1;
        if is_answered {
            self.send_again(id);
        }
    }

    fn send_again(&mut self, id: u32) {
        let Some(c) = self.table.get(id) else { return };
        if let Some(last) = &c.last {
            self.counters.retried[last.kind.index()] += 1;
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
