//! Lanes: the UDP source ports that a connection's packets leave by, so that a network with several paths carries them on all.
//!
//! Networks with equal paths spread flows over them by a hash of addresses and ports (ECMP, RFC 2992): packets of one lane keep
//! their path, and their order on it. A connection sends a burst by one lane, then goes to the lane on which the next burst is
//! expected to arrive first. A lane that loses much more than the others rests, and is tried again with a packet now and then:
//! its path may be broken, or full.

use crate::command::LaneCounts;
use crate::path::Lane;
use crate::timer::Time;
use alloc::vec::Vec;
use core::time::Duration;

/// Most lanes of a connection: more ports are more state in the middle of the network, and shorter trains.
pub const MOST_LANES: u8 = 16;

/// The lanes of one connection's requests.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<State>,
    current: Lane,
    /// Packets that the present burst may still have.
    left: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    in_flight: u32,
    /// About the time of a round trip; zero before the first.
    round_trip: Duration,
    /// Share of the last packets that were lost.
    loss: f32,
    /// Until when it rests; none if it does not.
    rests_until: Option<Time>,
    /// Times that it was put to rest since something arrived by it.
    rests: u32,
}

impl Lanes {
    /// `count` lanes, at least one, of which `first` is used first.
    pub(crate) fn new(count: u8, first: u32) -> Self {
        let count = count.clamp(1, MOST_LANES);
        let current = Lane((first % u32::from(count)) as u8);
        Self { lanes: alloc::vec![State::default(); count.into()], current, left: BURST }
    }

    /// Number of lanes.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Number of lanes, and of those that rest.
    pub(crate) fn counts(&self) -> LaneCounts {
        let resting = self.lanes.iter().filter(|state| state.rests_until.is_some()).count();
        LaneCounts { all: self.lanes.len() as u8, resting: resting as u8 }
    }

    /// Whether `lane` rests.
    pub(crate) fn rests(&self, lane: Lane) -> bool {
        self.lanes[lane.index()].rests_until.is_some()
    }

    /// The lane for the next packet.
    pub(crate) fn choose(&mut self, now: Time) -> Lane {
        if self.lanes.len() == 1 {
            return Lane::default();
        }
        if let Some(tried) = self.take_rested(now) {
            return tried;
        }
        if self.left == 0 || self.lanes[self.current.index()].rests_until.is_some() {
            self.current = self.best(None);
            self.left = self.burst();
        }
        self.left -= 1;
        self.current
    }

    /// The lane for a packet that was lost on `lane`: another one, if there is one that does not rest.
    pub(crate) fn choose_other(&self, lost_on: Lane) -> Lane {
        if self.lanes.len() == 1 { Lane::default() } else { self.best(Some(lost_on)) }
    }

    /// A packet leaves by `lane`.
    pub(crate) fn on_sent(&mut self, lane: Lane, packets: u32) {
        self.lanes[lane.index()].in_flight += packets;
    }

    /// Packets of `lane` are in flight no more.
    pub(crate) fn on_landed(&mut self, lane: Lane) {
        let state = &mut self.lanes[lane.index()];
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// A packet that left by `lane` has arrived.
    pub(crate) fn on_arrived(&mut self, lane: Lane, round_trip: Duration) {
        if self.lanes.len() == 1 {
            return;
        }
        let state = &mut self.lanes[lane.index()];
        state.round_trip = match state.round_trip {
            Duration::ZERO => round_trip,
            known => (known * 7 + round_trip) / 8,
        };
        state.loss -= state.loss * WEIGHT;
        if state.rests_until.take().is_some() {
            // The path works again: what was lost before says nothing of it.
            (state.rests, state.loss) = (0, 0.0);
        }
    }

    /// A packet that left by `lane` is lost.
    pub(crate) fn on_lost(&mut self, now: Time, lane: Lane) {
        if self.lanes.len() == 1 {
            return;
        }
        let state = &mut self.lanes[lane.index()];
        state.loss += (1.0 - state.loss) * WEIGHT;
        let loss = state.loss;
        let usual = self.usual_loss(lane);
        let others_work =
            self.lanes.iter().enumerate().any(|(n, other)| n != lane.index() && other.rests_until.is_none());
        let state = &mut self.lanes[lane.index()];
        if loss > BAD && loss > usual * MUCH_MORE && others_work && state.rests_until.is_none() {
            state.rests_until = Some(now.after(state.rest()));
            state.rests += 1;
        }
    }

    /// Time after which a packet is lost of whose lane nothing newer has arrived: that of the slowest lane that works.
    pub(crate) fn slowest(&self) -> Duration {
        let working = self.lanes.iter().filter(|state| state.rests_until.is_none());
        working.map(|state| state.round_trip).max().unwrap_or_default()
    }

    /// How many times that long it may take on `lane`: more before anything has arrived by it, because its path may be a longer one.
    pub(crate) fn patience(&self, lane: Lane) -> u32 {
        let state = &self.lanes[lane.index()];
        // Later a packet that shows whether the path works holds up others for as little as possible.
        let is_new = state.round_trip.is_zero() && state.rests == 0;
        if is_new { UNKNOWN } else { 1 }
    }

    /// Whether round trips on `lane` tell of the connection's congestion, and not of a path that is longer than the others.
    pub(crate) fn is_typical(&self, lane: Lane) -> bool {
        self.fastest().is_none_or(|fastest| self.lanes[lane.index()].round_trip <= fastest * 2)
    }

    /// Packets of the burst on the present lane: fewer where they take longer, so that others wait for less.
    fn burst(&self) -> u32 {
        let round_trip = self.lanes[self.current.index()].round_trip;
        let fastest = self.fastest().unwrap_or(round_trip);
        let share = fastest.as_secs_f32() / round_trip.max(fastest).as_secs_f32();
        if round_trip.is_zero() { BURST } else { ((BURST as f32 * share) as u32).max(1) }
    }

    fn fastest(&self) -> Option<Duration> {
        self.lanes.iter().map(|state| state.round_trip).filter(|time| !time.is_zero()).min()
    }

    /// A lane that has rested for long enough: one packet shows whether it works again.
    fn take_rested(&mut self, now: Time) -> Option<Lane> {
        let rested = |state: &State| state.rests_until.is_some_and(|until| until <= now);
        let lane = self.lanes.iter().position(rested)?;
        let state = &mut self.lanes[lane];
        state.rests_until = Some(now.after(state.rest()));
        state.rests += 1;
        Some(Lane(lane as u8))
    }

    /// The lane on which a packet is expected to arrive first, `but` for one. Of equal ones the next after the present one.
    fn best(&self, but: Option<Lane>) -> Lane {
        let count = self.lanes.len();
        let inf = f32::INFINITY;
        let (mut best, mut least) = (self.current, inf);
        for lane in (1..=count).map(|n| (self.current.index() + n) % count) {
            let state = &self.lanes[lane];
            let is_out = state.rests_until.is_some() || but == Some(Lane(lane as u8));
            // Queues grow with what is in flight, and so do round trips: the product follows the path's rate (Little's law).
            let expected = if is_out { inf } else { (state.in_flight + 1) as f32 * state.round_trip.as_secs_f32() };
            if expected < least {
                (best, least) = (Lane(lane as u8), expected);
            }
        }
        // All rest: any may work again.
        if least == inf { self.least_lossy(but) } else { best }
    }

    fn least_lossy(&self, but: Option<Lane>) -> Lane {
        let lanes = (0..self.lanes.len() as u8).map(Lane).filter(|lane| but != Some(*lane));
        let loss = |lane: &Lane| self.lanes[lane.index()].loss;
        lanes.min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap_or(self.current)
    }

    /// Share of lost packets on the median of the other lanes.
    fn usual_loss(&self, but: Lane) -> f32 {
        let others = self.lanes.iter().enumerate().filter(|(lane, _)| *lane != but.index());
        let mut loss: [f32; MOST_LANES as usize] = [0.0; MOST_LANES as usize];
        let mut count = 0;
        for (place, (_, state)) in loss.iter_mut().zip(others) {
            (*place, count) = (state.loss, count + 1);
        }
        let known = &mut loss[..count];
        known.sort_unstable_by(f32::total_cmp);
        known.get(count / 2).copied().unwrap_or_default()
    }
}

impl State {
    /// Each rest without an arrival is twice as long.
    fn rest(&self) -> Duration {
        (self.round_trip * REST).clamp(LEAST_REST, MOST_REST / 2).saturating_mul(1 << self.rests.min(8)).min(MOST_REST)
    }
}

/// Packets that leave by one lane before the next is chosen: a train that segmentation offload takes at once.
const BURST: u32 = 16;
/// Longer round trips than the slowest known one that a new path may have: one that is longer still is taken for broken, as it would
/// hold up what goes by the others.
const UNKNOWN: u32 = 4;
/// Weight of a packet in the share of those lost.
const WEIGHT: f32 = 1.0 / 16.0;
/// Share of lost packets from which a lane rests, if it is so many times that of the others.
const BAD: f32 = 0.25;
const MUCH_MORE: f32 = 4.0;
/// Round trips of the first rest.
const REST: u32 = 16;
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// Sends `count` packets, each of which arrives after its lane's round trip, or is lost where that is none; in flight are 64 at
    /// most. Returns how many left by each lane.
    fn send(lanes: &mut Lanes, count: u32, round_trips: &[Option<Duration>], from: Time) -> (Vec<u32>, Time) {
        let (mut sent, mut now) = (alloc::vec![0; round_trips.len()], from);
        let mut in_flight: Vec<(Time, Lane)> = Vec::new();
        for _ in 0..count {
            while in_flight.len() >= 64 {
                in_flight.sort_by_key(|(at, lane)| (*at, lane.0));
                let (at, lane) = in_flight.remove(0);
                now = now.max(at);
                lanes.on_landed(lane);
                match round_trips[lane.index()] {
                    Some(round_trip) => lanes.on_arrived(lane, round_trip),
                    None => lanes.on_lost(now, lane),
                }
            }
            let lane = lanes.choose(now);
            lanes.on_sent(lane, 1);
            sent[lane.index()] += 1;
            in_flight.push((now.after(round_trips[lane.index()].unwrap_or(200 * MICRO)), lane));
        }
        in_flight.iter().for_each(|(_, lane)| lanes.on_landed(*lane));
        (sent, now)
    }

    #[test]
    fn equal_lanes_carry_equal_shares() {
        let mut lanes = Lanes::new(4, 1);
        let (sent, _) = send(&mut lanes, 6400, &[Some(100 * MICRO); 4], Time(0));
        assert!(sent.iter().all(|n| (1400..1800).contains(n)), "{sent:?}");
    }

    #[test]
    fn a_slow_lane_carries_less() {
        let mut lanes = Lanes::new(2, 0);
        let (sent, _) = send(&mut lanes, 10_000, &[Some(100 * MICRO), Some(1000 * MICRO)], Time(0));
        assert!(sent[1] < sent[0] / 5, "{sent:?}");
    }

    #[test]
    fn a_dead_lane_rests_and_comes_back() {
        let mut lanes = Lanes::new(4, 0);
        let working = Some(100 * MICRO);
        let (sent, now) = send(&mut lanes, 10_000, &[working, None, working, working], Time(0));
        assert!(sent[1] < 200, "{sent:?}");
        // It works again: a packet tried on it shows that.
        let (_, now) = send(&mut lanes, 400_000, &[working; 4], now);
        let (sent, _) = send(&mut lanes, 6400, &[working; 4], now);
        assert!(sent[1] > 1000, "{sent:?}");
    }

    #[test]
    fn where_all_lose_none_rests() {
        let mut lanes = Lanes::new(4, 0);
        for n in 0..10_000 {
            let lane = lanes.choose(Time(n));
            if n % 5 == 0 { lanes.on_lost(Time(n), lane) } else { lanes.on_arrived(lane, 100 * MICRO) }
        }
        assert!(lanes.lanes.iter().all(|state| state.rests_until.is_none()), "{lanes:?}");
    }

    #[test]
    fn what_is_sent_again_takes_another_lane() {
        let lanes = Lanes::new(2, 0);
        assert_eq!((lanes.choose_other(Lane(0)), lanes.choose_other(Lane(1))), (Lane(1), Lane(0)));
        assert_eq!(Lanes::new(1, 7).choose_other(Lane(0)), Lane(0));
    }
}
