//! Scoreboard of a requester: the packets in flight, and which of them have arrived, been answered or been lost.
//!
//! Each PSN from the oldest without an acknowledgement to the newest that was sent has an entry. A READ has one for each packet
//! of its response: all belong to the transmission of its request.

use super::lanes::Lanes;
use crate::command::LaneCounts;
use crate::path::Lane;
use crate::timer::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use rdmesh_verbs::Psn;

/// The packets of one connection's requests, oldest first.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    /// PSN of the first entry.
    base: Psn,
    entries: VecDeque<Entry>,
    /// Entries in each of the two states.
    in_flight: u32,
    lost: u32,
    /// Transmissions so far: tells which of two was later.
    transmissions: u64,
    /// The latest transmission that is known to have arrived, by lane.
    newest: Vec<Option<Arrived>>,
    lanes: Lanes,
    /// Whether packets may be known to be lost, or have been sent again: the entries have to be looked through.
    is_disturbed: bool,
    /// When to look through them next: not at each arrival.
    look_at: Time,
    /// Transmissions up to this one have narrowed the window already, if they are lost.
    counted: u64,
    /// Packets lost since.
    uncounted: u32,
    reordering: ReorderWindow,
}

/// A transmission: one packet, or a READ request with all packets of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// PSNs that it takes.
    pub(crate) psns: u32,
    /// Whether each has an answer of its own: READs and atomics.
    pub(crate) is_answered: bool,
    /// Whether the peer is to answer it at once, so that its round trip can be measured.
    pub(crate) is_timed: bool,
    /// Lane that it leaves by.
    pub(crate) lane: Lane,
    /// Whether a copy left by another lane: that it arrives, or not, says nothing of this one.
    pub(crate) is_copied: bool,
}

/// A PSN.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Time of the last transmission, and its number.
    at: Time,
    transmission: u64,
    lane: Lane,
    state: State,
    is_answered: bool,
    is_timed: bool,
    /// It was sent more than once.
    is_repeated: bool,
    is_copied: bool,
    /// The peer has executed the request, and only its answer is missing.
    is_executed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    InFlight,
    /// To be sent again.
    Lost,
    /// The peer has it behind a gap.
    Held,
    /// Acknowledged, or answered.
    Done,
}

/// A transmission that has arrived. PSNs of one transmission arrive in their order.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    transmission: u64,
    psn: Psn,
    round_trip: Duration,
}

/// Time by which packets may overtake each other: it grows where what was taken for lost arrives after all (RFC 8985, 6.2).
#[derive(Clone, Copy, Debug, Default)]
struct ReorderWindow {
    /// Quarters of a round trip beyond the first.
    quarters: u32,
    raised: Time,
}

/// Result of a look for lost packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Losses {
    /// Packets lost since the last time that this said so, if one of them was sent since: what one round trip has lost.
    pub(crate) counted: Option<u32>,
    /// Time at which to look again.
    pub(crate) again_at: Option<Time>,
}

impl Scoreboard {
    /// Nothing in flight, and `base` as the next PSN.
    pub(crate) fn new(base: Psn, lanes: Lanes) -> Self {
        Self {
            base,
            entries: VecDeque::new(),
            in_flight: 0,
            lost: 0,
            transmissions: 0,
            newest: alloc::vec![None; lanes.count()],
            lanes,
            is_disturbed: false,
            look_at: Time::default(),
            counted: 0,
            uncounted: 0,
            reordering: ReorderWindow::default(),
        }
    }

    /// Number of lanes, and of those that rest.
    pub(crate) fn lanes(&self) -> LaneCounts {
        self.lanes.counts()
    }

    /// The lane for the next packet.
    pub(crate) fn choose_lane(&mut self, now: Time) -> Lane {
        self.lanes.choose(now)
    }

    /// The lane for `psn`, which is sent again.
    pub(crate) fn choose_lane_again(&self, psn: Psn) -> Lane {
        let before = self.index(psn).map(|i| self.entries[i].lane);
        before.map_or(Lane::default(), |lane| self.choose_other_lane(lane))
    }

    /// A lane other than `lane`, if there is one that works.
    pub(crate) fn choose_other_lane(&self, lane: Lane) -> Lane {
        self.lanes.choose_other(lane)
    }

    /// Whether `lane` rests, and what leaves by it shows whether its path works again.
    pub(crate) fn rests(&self, lane: Lane) -> bool {
        self.lanes.rests(lane)
    }

    /// PSNs of which the peer may still send an answer, or that may be on their way.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether something is to be sent again.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost != 0
    }

    /// A packet was sent for the first time, with the next PSN.
    pub(crate) fn push(&mut self, now: Time, sending: Sending) {
        self.transmissions += 1;
        let Sending { psns, is_answered, is_timed, lane, is_copied } = sending;
        let entry = Entry {
            at: now,
            transmission: self.transmissions,
            lane,
            state: State::InFlight,
            is_answered,
            is_timed,
            is_repeated: false,
            is_copied,
            is_executed: false,
        };
        // Of a READ the first packet of data tells the round trip: the others wait for it.
        self.entries.push_back(entry);
        self.entries.extend((1..psns).map(|_| Entry { is_timed: false, ..entry }));
        self.in_flight += psns;
        self.lanes.on_sent(lane, psns);
    }

    /// The packets from `psn` on were sent again, by `lane`.
    pub(crate) fn repeat(&mut self, now: Time, psn: Psn, psns: u32, lane: Lane) {
        self.transmissions += 1;
        let (first, transmission) = (psn.since(self.base).max(0) as usize, self.transmissions);
        for i in first..(first + psns as usize).min(self.entries.len()) {
            if self.entries[i].state != State::Done {
                // Counted for the lane that it leaves by.
                self.set(i, State::Lost);
                let entry = &mut self.entries[i];
                (entry.at, entry.transmission, entry.is_repeated) = (now, transmission, true);
                (entry.lane, entry.is_copied) = (lane, false);
                self.set(i, State::InFlight);
            }
        }
        self.is_disturbed = true;
    }

    /// The oldest packet that is to be sent again.
    pub(crate) fn oldest_lost(&self) -> Option<Psn> {
        let first = (self.lost != 0).then(|| self.entries.iter().position(|entry| entry.state == State::Lost))??;
        Some(self.base.add(first as u32))
    }

    /// How many packets from `psn` on, and no more than `most`, are to be sent again.
    pub(crate) fn lost_from(&self, psn: Psn, most: u32) -> u32 {
        let first = psn.since(self.base).max(0) as usize;
        self.entries.iter().skip(first).take(most as usize).take_while(|entry| entry.state == State::Lost).count()
            as u32
    }

    /// Whether the peer is known to have executed a request of these PSNs, because of an answer.
    pub(crate) fn is_executed(&self, psn: Psn, psns: u32) -> bool {
        let first = psn.since(self.base);
        let entries = self.entries.iter().skip(first.max(0) as usize);
        first < 0 || entries.take(psns as usize).any(|entry| entry.is_executed || entry.state == State::Done)
    }

    /// The packet has to be sent again, whatever is known of it.
    pub(crate) fn lose(&mut self, psn: Psn) {
        if let Some(i) = self.index(psn).filter(|i| self.entries[*i].state != State::Done) {
            self.set(i, State::Lost);
            self.is_disturbed = true;
        }
    }

    /// As [`Scoreboard::lose`], because nothing at all has come for long.
    pub(crate) fn lose_to_silence(&mut self, now: Time, psn: Psn) {
        if let Some(i) = self.index(psn).filter(|i| self.entries[*i].state != State::Done) {
            self.blame(now, self.entries[i]);
        }
        self.lose(psn);
    }

    /// A transmission that is lost counts against its lane.
    fn blame(&mut self, now: Time, entry: Entry) {
        if !entry.is_copied {
            self.lanes.on_lost(now, entry.lane);
        }
    }

    /// Answers from `psn` on were not sent: they are asked for again.
    pub(crate) fn lose_answers(&mut self, psn: Psn) {
        let first = psn.since(self.base).max(0) as usize;
        for i in first..self.entries.len() {
            let entry = self.entries[i];
            if entry.is_answered && entry.state == State::InFlight {
                self.set(i, State::Lost);
            }
        }
        self.is_disturbed = true;
    }

    /// The peer has executed all requests before `end`. Returns the number of packets of which that is news, and a round trip
    /// that was measured. Without `has_repeats` nothing that was sent again has arrived since the last time.
    pub(crate) fn acknowledge(&mut self, now: Time, end: Psn, has_repeats: bool) -> (u32, Option<Time>) {
        let (mut news, mut timed) = (0, None);
        for i in 0..(end.since(self.base).max(0) as usize).min(self.entries.len()) {
            let entry = self.entries[i];
            if entry.is_answered {
                // Its answer is on its way, or lost.
                self.entries[i].is_executed = true;
                if entry.state == State::Held {
                    self.set(i, State::InFlight);
                }
            } else if entry.state != State::Done {
                news += u32::from(entry.state != State::Held);
                // What was lost, or held unreported, was answered late.
                if entry.state != State::Held {
                    timed = self.arrive(now, i, has_repeats).filter(|_| !self.is_disturbed).or(timed);
                }
                self.set(i, State::Done);
            }
        }
        (news, timed)
    }

    /// The peer has `psn` behind a gap. Returns whether that is news, and a round trip that was measured.
    pub(crate) fn hold(&mut self, now: Time, psn: Psn, has_repeats: bool) -> (bool, Option<Time>) {
        let Some(i) = self.index(psn) else { return (false, None) };
        let entry = self.entries[i];
        if !matches!(entry.state, State::InFlight | State::Lost) || entry.is_executed {
            return (false, None);
        }
        let timed = self.arrive(now, i, has_repeats);
        self.is_disturbed = true;
        if !entry.is_answered {
            self.set(i, State::Held);
            return (true, timed);
        }
        // All answers of the transmission wait for the gap.
        let transmission = entry.transmission;
        let rest = (i..self.entries.len()).take_while(|i| self.entries[*i].transmission == transmission).count();
        for i in i..i + rest {
            if self.entries[i].state != State::Done {
                self.set(i, State::Held);
            }
        }
        (true, timed)
    }

    /// The peer does not hold the request that it executes next. If it has acknowledged it before (reneging, RFC 2018, 8), it is sent
    /// again.
    pub(crate) fn take_back(&mut self, psn: Psn) {
        if self.index(psn).is_some_and(|i| self.entries[i].state == State::Held) {
            self.lose(psn);
        }
    }

    /// The answer to `psn` has come; `is_repeat` if the request was sent again before. Returns whether it was waited for, and a
    /// round trip that was measured.
    pub(crate) fn answer(&mut self, now: Time, psn: Psn, is_repeat: bool) -> (bool, Option<Time>) {
        let Some(i) = self.index(psn).filter(|i| self.entries[*i].state != State::Done) else { return (false, None) };
        let timed = self.arrive(now, i, is_repeat);
        self.set(i, State::Done);
        self.is_disturbed |= i != 0;
        (true, timed)
    }

    /// Whether the answer to `psn` is waited for.
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        self.index(psn).is_some_and(|i| self.entries[i].state != State::Done)
    }

    /// Forgets the oldest packets as far as they are done. Returns how many.
    pub(crate) fn take_done(&mut self) -> u32 {
        let done = self.entries.iter().take_while(|entry| entry.state == State::Done).count();
        self.entries.drain(..done);
        self.base = self.base.add(done as u32);
        done as u32
    }

    /// Declares packets lost that were sent before one that has arrived, by more time than packets overtake each other (RFC 8985,
    /// 6.2).
    pub(crate) fn find_lost(&mut self, now: Time, round_trip: Duration) -> Losses {
        if !self.is_disturbed {
            return Losses::default();
        }
        let latest = self.newest.iter().flatten().max_by_key(|newest| newest.transmission).copied();
        let Some(latest) = latest else { return Losses::default() };
        if now < self.look_at {
            return Losses { counted: None, again_at: Some(self.look_at) };
        }
        let span = self.reordering.span(round_trip);
        self.look_at = now.after(span / LOOKS);
        // What was sent before on another lane may only have the longer path.
        let slowest = self.lanes.slowest();
        let longest = slowest.max(latest.round_trip) + self.reordering.span(slowest.max(round_trip));
        let (mut losses, mut is_disturbed, mut is_new) = (Losses::default(), false, false);
        for i in 0..self.entries.len() {
            let entry = self.entries[i];
            is_disturbed |= entry.is_repeated || entry.state != State::InFlight;
            let psn = self.base.add(i as u32);
            let newest = self.newest[entry.lane.index()].filter(|newest| newest.is_after(&entry, psn));
            let allowance = match newest {
                Some(newest) => newest.round_trip + span,
                None if latest.is_after(&entry, psn) => longest * self.lanes.patience(entry.lane),
                None => continue,
            };
            if entry.state != State::InFlight {
                continue;
            }
            is_disturbed = true;
            let deadline = entry.at.after(allowance);
            if deadline <= now {
                self.set(i, State::Lost);
                self.blame(now, entry);
                self.uncounted += 1;
                is_new |= entry.transmission > self.counted;
            } else {
                losses.again_at = Some(losses.again_at.map_or(deadline, |at| at.min(deadline)));
            }
        }
        if is_new {
            self.counted = self.transmissions;
            losses.counted = Some(core::mem::take(&mut self.uncounted));
        }
        self.is_disturbed = is_disturbed;
        losses
    }

    /// A spurious retransmission: the packet was only late, so the reorder window widens.
    pub(crate) fn on_spurious(&mut self, now: Time, round_trip: Duration) {
        self.reordering.widen(now, round_trip);
    }

    /// Notes that a transmission of entry `i` has arrived: of one that was sent again the last, if that `may_be_repeat`, or else an
    /// earlier one. Returns its time, where there was one only.
    fn arrive(&mut self, now: Time, i: usize, may_be_repeat: bool) -> Option<Time> {
        let (entry, psn) = (self.entries[i], self.base.add(i as u32));
        let round_trip = Duration::from_nanos(now.0.saturating_sub(entry.at.0));
        // An earlier transmission was only late (what RFC 8985, 6.2, step 2, guesses from the round trip).
        let is_earlier = entry.is_repeated && !may_be_repeat;
        if entry.state == State::Lost || is_earlier {
            self.reordering.widen(now, round_trip);
        }
        let newest = &mut self.newest[entry.lane.index()];
        let is_newer = newest.is_none_or(|newest| match entry.transmission == newest.transmission {
            true => psn.since(newest.psn) > 0,
            false => entry.transmission > newest.transmission,
        });
        if is_newer && !is_earlier {
            *newest = Some(Arrived { transmission: entry.transmission, psn, round_trip });
        }
        if !entry.is_copied && !is_earlier {
            self.lanes.on_arrived(entry.lane, round_trip);
        }
        (entry.is_timed && !entry.is_repeated && self.lanes.is_typical(entry.lane)).then_some(entry.at)
    }

    fn set(&mut self, i: usize, state: State) {
        let Entry { state: before, lane, .. } = self.entries[i];
        match (before == State::InFlight, state == State::InFlight) {
            (true, false) => self.lanes.on_landed(lane),
            (false, true) => self.lanes.on_sent(lane, 1),
            _ => {}
        }
        self.count(before, u32::wrapping_sub);
        self.entries[i].state = state;
        self.count(state, u32::wrapping_add);
    }

    fn count(&mut self, state: State, change: fn(u32, u32) -> u32) {
        match state {
            State::InFlight => self.in_flight = change(self.in_flight, 1),
            State::Lost => self.lost = change(self.lost, 1),
            State::Held | State::Done => {}
        }
    }

    fn index(&self, psn: Psn) -> Option<usize> {
        let at = psn.since(self.base);
        (0..self.entries.len() as i32).contains(&at).then_some(at as usize)
    }
}

impl Arrived {
    /// Whether it left after the last transmission of `entry`, whose number is `psn`.
    fn is_after(&self, entry: &Entry, psn: Psn) -> bool {
        entry.transmission < self.transmission || (entry.transmission == self.transmission && psn.since(self.psn) < 0)
    }
}

impl ReorderWindow {
    fn span(self, round_trip: Duration) -> Duration {
        (round_trip / 4 * (1 + self.quarters)).clamp(LEAST_SPAN, MOST_SPAN)
    }

    /// At most once in a round trip; and it narrows again when that has not happened for long.
    fn widen(&mut self, now: Time, round_trip: Duration) {
        let since = Duration::from_nanos(now.0.saturating_sub(self.raised.0));
        if since > round_trip * CALM {
            self.quarters = 0;
        }
        if since > round_trip {
            self.quarters = (2 * self.quarters + 1).min(MOST_QUARTERS);
            self.raised = now;
        }
    }
}

/// Least time by which packets may overtake each other: an acknowledgement may have been sent amid a batch.
const LEAST_SPAN: Duration = Duration::from_micros(5);
const MOST_SPAN: Duration = Duration::from_millis(100);
/// Looks for lost packets in the least time by which a loss is noticed: each costs as much as many arrivals.
const LOOKS: u32 = 4;
/// Two round trips.
const MOST_QUARTERS: u32 = 7;
/// Round trips without a spurious retransmission after which the window is the least again.
const CALM: u32 = 16;

#[cfg(test)]
mod tests;
