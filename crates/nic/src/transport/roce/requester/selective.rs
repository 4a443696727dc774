//! Requester towards an rdmesh router: of the packets in flight, only those that are lost are sent again.
//!
//! Requests are acknowledged in order by selective acknowledgements, READs and atomics by their own answers, which may come in any
//! order. Of a READ whose request has arrived, only the packets that are missing are asked for again.

use super::Step;
use super::packets::{Place, Plan};
use crate::command::LaneCounts;
use crate::congestion::{Controller, Hop};
use crate::memory::{CopyError, scatter_bytes};
use crate::path::{Lane, Transmits};
use crate::platform::Platform;
use crate::timer::{Time, Timer};
use crate::transport::native::Losses;
use crate::transport::roce::Requester;
use crate::wire::{Header, Op, SelectiveAck, Telemetry};
use rdmesh_verbs::{Psn, SendOp, WcStatus};

impl<P: Platform> Requester<'_, P> {
    /// Takes a selective acknowledgement, whose PSN is that of the next request that the peer expects.
    pub(super) fn selective_ack(&mut self, header: &Header, payload: &[u8]) {
        let (now, end, round_trip) = (self.out.now, header.psn, self.connection.requester.round_trip());
        let requester = &mut self.connection.requester;
        let payload = match header.has_telemetry {
            true => match Telemetry::decode(payload) {
                Ok((telemetry, rest)) => {
                    requester.on_telemetry(now, Hop::Peer, telemetry);
                    rest
                }
                Err(_) => return,
            },
            false => {
                requester.congestion.on_no_telemetry();
                payload
            }
        };
        let (Some(board), Ok(ack)) = (&mut requester.board, SelectiveAck::decode(payload)) else { return };
        let has_repeats = ack.repeats != requester.repeats;
        requester.repeats = ack.repeats;
        let (mut news, mut timed) = board.acknowledge(now, end, has_repeats);
        if ack.marked().next() != Some(0) {
            board.take_back(end);
        }
        for ahead in ack.marked() {
            let (is_news, held) = board.hold(now, end.add(ahead), has_repeats);
            (news, timed) = (news + u32::from(is_news), held.or(timed));
        }
        if ack.duplicates.wrapping_sub(requester.duplicates) as i32 > 0 {
            requester.duplicates = ack.duplicates;
            board.on_spurious(now, round_trip);
        }
        self.on_arrived(news, timed);
    }

    /// The peer has executed all requests before `end`, as an answer says.
    pub(super) fn acknowledge_selectively(&mut self, end: Psn) {
        let now = self.out.now;
        let Some(board) = &mut self.connection.requester.board else { return };
        let (news, timed) = board.acknowledge(now, end, true);
        self.on_arrived(news, timed);
    }

    /// Takes the answer to the READ or atomic with `psn`: a packet of data, or the original value of an atomic.
    pub(super) fn answered_selectively(&mut self, header: &Header, data: &[u8]) {
        let (psn, is_read) = (header.psn, matches!(header.op, Op::ReadResponse { .. }));
        let is_awaited = self.connection.requester.board.as_ref().is_some_and(|board| board.awaits(psn));
        let Some((slot, packet)) = self.packets().find_request(psn).filter(|_| is_awaited) else { return };
        let mtu = u64::from(self.qp.attr.path_mtu.bytes());
        let entry = &self.qp.send.window[slot];
        let at = u64::from(packet) * mtu;
        let expected = match (entry.wr.op, is_read) {
            (SendOp::Read { .. }, true) => (entry.total - at.min(entry.total)).min(mtu),
            // Annex A19 answers them with the response of an empty READ.
            (SendOp::AtomicWrite { .. } | SendOp::Flush { .. }, true) => 0,
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, false) => entry.total,
            _ => return,
        };
        let copied = match data.len() as u64 == expected {
            true if data.is_empty() => Ok(()),
            true => scatter_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, at, data).map_err(Some),
            false => Err(None),
        };
        match copied {
            Ok(()) => {
                let now = self.out.now;
                if is_read && self.connection.requester.congestion.wants_telemetry() {
                    let telemetry = self.out.telemetry();
                    self.connection.requester.on_telemetry(now, Hop::Own, telemetry);
                }
                let Some(board) = &mut self.connection.requester.board else { return };
                let (is_news, timed) = board.answer(now, psn, header.is_repeated);
                self.on_arrived(u32::from(is_news), timed);
            }
            // It is asked for again: the peer keeps what it must not execute twice.
            Err(Some(error)) if error.is_slow() && self.wait_for_own_memory() => self.connection.requester.lose(psn),
            // Earlier requests complete first: this one's answer is asked for again, and fails again.
            Err(_) if slot != 0 => {}
            Err(None) => self.exec().fail_oldest(WcStatus::BadResponse),
            Err(Some(CopyError::Length)) => self.exec().fail_oldest(WcStatus::LocalLengthError),
            Err(Some(_)) => self.exec().fail_oldest(WcStatus::LocalProtectionError),
        }
    }

    /// Goes back to the oldest packet after each loss from now on: the peer takes packets only in order.
    pub(super) fn end_selection(&mut self) {
        let requester = &mut self.connection.requester;
        if requester.board.take().is_some() {
            requester.congestion.set_selective(false);
            requester.timers.stop(Timer::Reorder);
            self.go_back();
            self.out.make_wire_ready(self.index);
        }
    }

    /// Looks for packets that are lost: after an arrival, and when others are overdue.
    pub(super) fn find_lost(&mut self) {
        let now = self.out.now;
        let requester = &mut self.connection.requester;
        let round_trip = requester.round_trip();
        let Some(board) = &mut requester.board else { return };
        let Losses { counted, again_at } = board.find_lost(now, round_trip);
        if let Some(lost) = counted {
            requester.congestion.on_loss(lost, &requester.rtt);
        }
        match again_at {
            Some(at) => requester.timers.set(Timer::Reorder, at),
            None => requester.timers.stop(Timer::Reorder),
        }
        if board.has_lost() {
            self.out.make_wire_ready(self.index);
        }
        self.rearm();
    }

    /// Sends the lost packet with `psn` again.
    pub(super) fn send_again(&mut self, to: &mut Transmits, psn: Psn) -> Step {
        let lane =
            self.connection.requester.board.as_ref().map_or(Lane::default(), |board| board.choose_lane_again(psn));
        let Some((plan, place)) = self.packets().plan_again(psn, lane) else { return Step::Stuck };
        let is_full = self.packets().on_their_way() + plan.psns > self.connection.requester.congestion.window();
        if is_full && self.packets().on_their_way() != 0 && psn != self.connection.requester.unacked {
            return Step::Stuck;
        }
        match self.packets().emit(to, &plan, &place) {
            Ok(()) => {
                self.on_sent_again(&plan, &place);
                Step::Done
            }
            Err(error) if error.is_slow() && self.wait_for_own_memory() => Step::Stuck,
            Err(_) if place.slot == 0 => {
                self.exec().fail_oldest(WcStatus::LocalProtectionError);
                Step::Stuck
            }
            Err(_) => Step::Stuck,
        }
    }

    /// Where packets are lost, sends the request of a READ or atomic twice: it is short, and while it is missing nothing behind it
    /// is answered. Returns whether it did.
    pub(super) fn send_copy(&mut self, to: &mut Transmits, plan: &Plan, place: &Place) -> bool {
        let requester = &self.connection.requester;
        let is_short = plan.payload <= SHORT && self.qp.send.window[place.slot].wr.op.is_read_or_atomic();
        if !is_short || !requester.is_selective() || requester.congestion.is_lossless() || !to.has_room() {
            return false;
        }
        // By another lane, where there are several. What shows whether a lane works again has none.
        let lane = match &requester.board {
            Some(board) if board.rests(place.lane) => return false,
            Some(board) => board.choose_other_lane(place.lane),
            None => place.lane,
        };
        let Place { slot, sent, psn, is_repeated, .. } = *place;
        // Its memory was read just now: the copy is sent too, or is not needed.
        self.packets().emit(to, plan, &Place { slot, sent, psn, is_repeated, lane }).is_ok()
    }

    fn on_sent_again(&mut self, plan: &Plan, place: &Place) {
        let now = self.out.now;
        self.out.spend(plan.moves);
        self.out.meter(self.index, plan.moves, false);
        self.qp.counters.retransmitted += 1;
        let requester = &mut self.connection.requester;
        requester.congestion.on_sent(now, plan.payload as u64 + super::HEADERS);
        if let Some(bytes) = plan.asked() {
            requester.congestion.on_asked(now, bytes, plan.psns);
        }
        if let Some(board) = &mut requester.board {
            board.repeat(now, place.psn, plan.psns, place.lane);
        }
    }

    /// So many packets have arrived of which that was not known; the round trip of one that was sent at a time `timed` is known.
    fn on_arrived(&mut self, news: u32, timed: Option<Time>) {
        let now = self.out.now;
        let requester = &mut self.connection.requester;
        if let Some(sent) = timed {
            requester.rtt.sample(sent, now);
        }
        let mut done = requester.board.as_mut().map_or(0, |board| board.take_done());
        // The request for which the receiver was not ready has been executed all the same.
        if done != 0 && requester.timers.is_set(Timer::Rnr) {
            requester.timers.stop(Timer::Rnr);
        }
        if news != 0 {
            self.on_progress(news);
        }
        // Request by request: each completes with its own last packet.
        while done != 0
            && let Some(entry) = self.qp.send.window.oldest()
            && entry.started
        {
            let before = self.connection.requester.unacked;
            self.advance(done);
            let advanced = self.connection.requester.unacked.after(before);
            done = done.saturating_sub(advanced);
            if advanced == 0 || !self.qp.is_sending() {
                break;
            }
        }
        self.find_lost();
    }
}

impl super::RequesterState {
    /// About the time of a round trip.
    fn round_trip(&self) -> core::time::Duration {
        self.rtt.smoothed().unwrap_or(FIRST_ROUND_TRIP)
    }

    /// An answer has come that was not waited for: what was taken for lost was only late.
    pub(super) fn on_late_answer(&mut self, now: Time) {
        let round_trip = self.round_trip();
        if let Some(board) = &mut self.board {
            board.on_spurious(now, round_trip);
        }
    }

    /// The peer has not taken the request with `psn`, nor answered any from there on: they are sent again, when that is allowed.
    pub(super) fn lose_from(&mut self, psn: Psn) {
        if let Some(board) = &mut self.board {
            board.lose(psn);
            board.lose_answers(psn);
        }
    }

    /// The packet with `psn` is to be sent again, or its answer to be asked for again.
    pub(super) fn lose(&mut self, psn: Psn) {
        if let Some(board) = &mut self.board {
            board.lose(psn);
        }
    }

    /// Lanes that requests leave by; none without selective retransmission.
    pub(in crate::transport::roce) fn lanes(&self) -> LaneCounts {
        self.board.as_ref().map(|board| board.lanes()).unwrap_or_default()
    }

    /// The lane for the next packet; none where all leave by the connection's own.
    pub(in crate::transport::roce) fn choose_lane(&mut self, now: Time) -> Option<Lane> {
        self.board.as_mut().map(|board| board.choose_lane(now))
    }

    /// Nothing has come for long: the packet with `psn` is to be sent again.
    pub(super) fn lose_to_silence(&mut self, now: Time, psn: Psn) {
        if let Some(board) = &mut self.board {
            board.lose_to_silence(now, psn);
        }
    }

    /// Whether only what is lost is sent again.
    pub(super) fn is_selective(&self) -> bool {
        self.board.is_some()
    }
}

/// Bytes of the payload of a request that may be sent twice: that of an ATOMIC WRITE.
const SHORT: usize = 8;
/// Before anything was measured.
const FIRST_ROUND_TRIP: core::time::Duration = core::time::Duration::from_millis(1);
