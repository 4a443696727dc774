//! Requester towards another host: request packets, in order, as far as the window allows.
//!
//! When a packet is lost, sending goes back to the oldest packet without an acknowledgement (go-back-N, IBA 9.7.5.1):
//!
//! * a NAK, or an answer beyond a READ or atomic that was not answered, reports the loss;
//! * after some round trips of silence one packet is sent again as a probe; its acknowledgement shows how far the peer is;
//! * after each ACK time-out of the queue pair (IBA 9.7.6.1.3) a retry is counted, until there are none left.
//!
//! Between rdmesh routers only what is lost is sent again instead (see [`crate::transport::native`]).
//!
//! Parts: [`packets`] is what is sent; [`answers`] handles received answers, [`timers`] the time-outs, [`selective`] what differs between two routers.

mod answers;
mod packets;
mod selective;
mod timers;

pub use timers::LEAST_SILENCE;

use crate::command::CongestionState;
use crate::congestion::{Congestion, Controller, Hop, Rtt};
use crate::path::{Lane, Transmits};
use crate::platform::Platform;
use crate::schedule::{Order, TURN_COST, TURN_STEPS};
use crate::timer::{Time, Timer, TimerTable};
use crate::transport::native::{Lanes, Scoreboard, Sending};
use crate::transport::roce::Requester;
use crate::wire::Telemetry;
use alloc::boxed::Box;
use packets::{Place, Plan};
use rdmesh_verbs::{Psn, QpType, WcStatus};

/// The send side. The next PSN and the work requests on their way are the queue pair's own.
#[derive(Default)]
pub(super) struct RequesterState {
    /// Oldest PSN that is not acknowledged.
    unacked: Psn,
    /// The PSN after the greatest that was ever sent.
    highest: Psn,
    /// Packets since an acknowledgement was last asked for.
    unrequested: u32,
    congestion: Congestion,
    rtt: Rtt,
    /// A packet whose round trip is measured.
    timed: Option<(Psn, Time)>,
    /// Whether a probe is in flight: after silence one packet is sent, and its answer shows how far the peer is.
    probing: bool,
    /// Probes since the last progress.
    probes: u32,
    /// Its rates, or those above it, are used up.
    is_limited: bool,
    timers: TimerTable,
    /// From where, and when, sending last went back.
    went_back: Option<(Psn, Time)>,
    /// The packets in flight, where only what is lost is sent again.
    board: Option<Box<Scoreboard>>,
    /// Requests that have arrived again, as the peer has said.
    duplicates: u32,
    /// Of those that were sent again, how many have arrived.
    repeats: u32,
}

/// Result of an attempt to send a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There may be more.
    Done,
    /// The queue pair is blocked by an event that will make it ready again.
    Stuck,
}

impl RequesterState {
    /// Begins to send with `psn`. With lanes, and the congestion control that goes with them, retransmission is selective, until the peer
    /// shows that it cannot do that.
    pub(super) fn start(&mut self, psn: Psn, native: Option<(Lanes, Congestion)>) {
        self.unacked = psn;
        self.highest = psn;
        let (lanes, congestion) = native.unzip();
        self.congestion = congestion.unwrap_or_default();
        self.congestion.set_selective(lanes.is_some());
        self.board = lanes.map(|lanes| Box::new(Scoreboard::new(psn, lanes)));
    }

    /// A link has reported its load.
    fn on_telemetry(&mut self, now: Time, hop: Hop, telemetry: Telemetry) {
        self.congestion.on_telemetry(now, hop, telemetry, &self.rtt);
    }

    /// Congestion control, as it is now.
    pub(super) fn congestion(&self) -> CongestionState {
        CongestionState {
            control: self.congestion.control(),
            window: self.congestion.window(),
            round_trip: self.rtt.smoothed(),
        }
    }

    /// Oldest PSN that is not acknowledged.
    pub(super) fn unacked(&self) -> Psn {
        self.unacked
    }

    /// The peer, or the network before it, is congested.
    pub(super) fn on_notification(&mut self, now: Time, mtu: u32) {
        self.congestion.on_cnp(now, &self.rtt, mtu);
    }

    /// The queue pair is in error: nothing is sent any more.
    pub(super) fn fail(&mut self) {
        self.highest = self.unacked;
        self.board = None;
        self.timers.stop(Timer::Rnr);
        self.timers.stop(Timer::Slow);
        self.congestion.stop();
    }

    /// Whether anything was sent that is not acknowledged.
    fn is_waiting(&self) -> bool {
        self.unacked != self.highest
    }
}

impl<P: Platform> Requester<'_, P> {
    /// Appends request packets for one turn. Returns whether there may be more at once.
    pub(in crate::transport::roce) fn send_requests(&mut self, to: &mut Transmits) -> bool {
        let mut steps = 0;
        let end = self.out.chains.spent() + TURN_COST;
        while steps < TURN_STEPS
            && self.out.chains.spent() < end
            && to.has_turn()
            && self.may_send()
            && self.send_request(to) == Step::Done
        {
            steps += 1;
        }
        if steps != 0 {
            self.watch_progress();
        }
        // Where it is stuck, the event that it waits for makes it ready again.
        (steps == TURN_STEPS || self.out.chains.spent() >= end || !to.has_turn()) && self.may_send()
    }

    /// Whether there is a request to send, and nothing that forbids it.
    fn may_send(&mut self) -> bool {
        let (now, index) = (self.out.now, self.index);
        if !self.qp.is_sending() {
            return false;
        }
        let requester = &mut self.connection.requester;
        if requester.timers.is_set(Timer::Rnr) || requester.timers.is_ahead(Timer::Slow, now) {
            return false;
        }
        if let Some(at) = requester.congestion.pacing().filter(|at| *at > now) {
            self.out.timers.set_by(index, at);
            return false;
        }
        // What is sent again was allowed once, and its time-out does not know of rates.
        let has_lost = requester.board.as_ref().is_some_and(|board| board.has_lost());
        let is_repeated = has_lost || self.qp.send.next_psn.since(requester.highest) < 0;
        if !self.qp.can_send() && !has_lost {
            return false;
        }
        requester.is_limited = !is_repeated && !self.out.admit(Order::Wire, index);
        !requester.is_limited
    }

    fn send_request(&mut self, to: &mut Transmits) -> Step {
        if let Some(psn) = self.connection.requester.board.as_ref().and_then(|board| board.oldest_lost()) {
            return self.send_again(to, psn);
        }
        if self.qp.send.cursor == self.qp.send.window.len() && !self.exec().fetch() {
            return Step::Stuck;
        }
        let cursor = self.qp.send.cursor;
        // A step of a chain leaves nothing to send.
        if cursor == self.qp.send.window.len() {
            return if self.qp.is_sending() { Step::Done } else { Step::Stuck };
        }
        let entry = &self.qp.send.window[cursor];
        if !entry.started {
            if self.qp.must_wait(entry.wr.precedence(), cursor) {
                return Step::Stuck;
            }
            if let Err(status) = self.qp.check(cursor, self.cx.network.mtu.bytes()) {
                return self.fail_in_turn(cursor, status);
            }
            if entry.wr.op.is_local() {
                self.exec().execute_local();
                return if self.qp.is_sending() { Step::Done } else { Step::Stuck };
            }
        }
        let entry = &self.qp.send.window[cursor];
        let mut plan = self.packets().plan(entry, entry.sent);
        if !self.packets().has_window(&plan) {
            return Step::Stuck;
        }
        plan.asks = self.packets().asks(&plan);
        let place = Place {
            slot: cursor,
            sent: self.qp.send.window[cursor].sent,
            psn: self.qp.send.next_psn,
            is_repeated: false,
            lane: self.connection.choose_lane(self.out.now),
        };
        match self.packets().emit(to, &plan, &place) {
            Ok(()) => {
                let is_copied = self.send_copy(to, &plan, &place);
                self.on_request_sent(&plan, place.lane, is_copied);
                Step::Done
            }
            Err(error) if error.is_slow() && self.wait_for_own_memory() => Step::Stuck,
            Err(_) => self.fail_in_turn(cursor, WcStatus::LocalProtectionError),
        }
    }

    /// The memory of a request is slow: nothing is sent for a while. False where it has been so for too long.
    fn wait_for_own_memory(&mut self) -> bool {
        let Some(interval) = self.qp.send.slow.next(self.out.now) else { return false };
        let at = self.out.now.after(interval);
        let requester = &mut self.connection.requester;
        requester.timers.set(Timer::Slow, at);
        // The peer is silent because nothing is sent, or because what it sends has no place.
        requester.timers.stop(Timer::Retry);
        self.out.timers.set_by(self.index, at);
        true
    }

    /// Earlier requests complete first: an error waits for its turn.
    fn fail_in_turn(&mut self, cursor: usize, status: WcStatus) -> Step {
        if cursor == 0 {
            self.exec().fail_oldest(status);
        }
        Step::Stuck
    }

    fn on_request_sent(&mut self, plan: &Plan, lane: Lane, is_copied: bool) {
        let now = self.out.now;
        let send = &mut self.qp.send;
        let requester = &mut self.connection.requester;
        let psn = send.next_psn;
        let entry = &mut send.window[send.cursor];
        let begins = !entry.started;
        if begins {
            (entry.started, entry.first_psn) = (true, psn);
        }
        // Not a count of packets, as within the host: retransmission would spoil it. `unacked` says which have arrived.
        entry.outstanding = 1;
        entry.sent += plan.moves;
        send.next_psn = psn.add(plan.psns);
        if let Some(board) = &mut requester.board {
            let is_answered = entry.wr.op.is_read_or_atomic();
            board.push(now, Sending { psns: plan.psns, is_answered, is_timed: plan.asks, lane, is_copied });
        }
        self.out.spend(plan.moves);
        self.out.meter(self.index, plan.moves, begins);
        requester.unrequested = if plan.asks { 0 } else { requester.unrequested + 1 };
        if send.next_psn.since(requester.highest) > 0 {
            // Only packets that are sent once have an unambiguous round trip (Karn).
            if plan.asks && requester.timed.is_none() && requester.board.is_none() {
                requester.timed = Some((psn, now));
            }
            requester.highest = send.next_psn;
            send.slow.end();
        } else {
            self.qp.counters.retransmitted += 1;
            requester.timed = requester.timed.filter(|(timed, _)| *timed != psn);
        }
        requester.congestion.on_sent(now, plan.payload as u64 + HEADERS);
        if let Some(bytes) = plan.asked() {
            requester.congestion.on_asked(now, bytes, plan.psns);
        }
        if plan.last {
            entry.complete = true;
            send.cursor += 1;
            if self.qp.made().qp_type == QpType::Uc {
                self.on_unreliable_sent();
            }
        }
    }

    /// An unreliable connection has no acknowledgements: a message is done when it was sent.
    fn on_unreliable_sent(&mut self) {
        if !self.connection.is_acknowledged(self.qp.made().qp_type) {
            self.connection.requester.unacked = self.qp.send.next_psn;
        }
        let cursor = self.qp.send.cursor;
        self.qp.send.window[cursor - 1].outstanding = 0;
        self.exec().complete_oldest();
    }
}

/// About what the headers of a packet take, for the rate limit.
const HEADERS: u64 = 64;
