//! HPCC (Li et al., SIGCOMM 2019): the window follows how busy the busiest hop is, as telemetry says, so that queues stay short.
//!
//! The paper's switches write telemetry into packets. Between routers over an ordinary network there are two hops with telemetry:
//! the link into the peer's host, which the peer reports ([`Telemetry`]), and for READs that into this one. A hop whose rate is not
//! known is judged by the time that packets wait before it; so is the network between, of which the round trip tells.
//!
//! Loss and silence narrow the window as they do without telemetry ([`SendWindow`]): a peer that lies about its load gains no more
//! than that allows.

use super::window::SendWindow;
use super::{Acked, Controller, Rtt};
use crate::timer::Time;
use crate::wire::Telemetry;
use core::time::Duration;

/// A window in bytes, within that of a connection without telemetry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hpcc {
    losses: SendWindow,
    /// Greatest packet so far, in bytes.
    packet: u64,
    /// Since the first telemetry that two reports can be compared of.
    load: Option<Load>,
    /// The last report of each hop, and when it came.
    hops: [Option<(Time, Telemetry)>; 2],
    lately: LeastLately,
    /// Whether the peer may report its load: until it does, little is sent, by which the base round trip is learned.
    has_telemetry: bool,
    /// Time at which the window has room for the next byte, were it spread evenly over its period.
    free_at: Option<Time>,
}

/// A link with telemetry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    /// Into the peer's host: requests wait before it.
    Peer,
    /// Into this host: data of READs waits before it.
    Own,
}

/// The algorithm's state, by the paper's names (Algorithm 1): U, W and Wc.
#[derive(Clone, Copy, Debug)]
struct Load {
    utilisation: f64,
    /// Share of the link's rate that it has carried lately.
    carried: f64,
    /// Window in bytes.
    window: f64,
    /// The window of the last round trip, from which each report computes the present one.
    reference: f64,
    updated_at: Time,
    /// As [`Between::period`].
    period: f64,
    /// Whether packets are spread over the period: where the link's rate is known, or little may be in flight.
    is_paced: bool,
}

impl Controller for Hpcc {
    fn window(&self) -> u32 {
        let losses = self.losses.window();
        if !self.has_telemetry {
            return losses;
        }
        let Some(load) = self.load else { return losses.min(FIRST) };
        // Rounded up: where that is too much, packets are paced.
        losses.min((load.window / self.packet.max(1) as f64).ceil().max(1.0) as u32)
    }

    fn read_window(&self) -> u32 {
        if self.has_telemetry { self.window() } else { self.losses.read_window() }
    }

    fn pacing(&self) -> Option<Time> {
        let (at, load) = (self.free_at?, self.load?);
        // Some go ahead of their time, in one train.
        let ahead = load.period * (BURST * self.packet as f64 / load.window).min(0.5);
        Some(Time(at.0.saturating_sub((ahead * 1e9) as u64)))
    }

    fn is_lossless(&self) -> bool {
        self.losses.is_lossless()
    }

    fn on_sent(&mut self, now: Time, bytes: u64) {
        self.packet = self.packet.max(bytes);
        self.pace(now, bytes);
    }

    fn on_asked(&mut self, now: Time, bytes: u64, packets: u32) {
        self.packet = self.packet.max(bytes.div_ceil(packets.max(1).into()));
        self.pace(now, bytes);
    }

    fn on_ack(&mut self, acked: Acked, rtt: &Rtt) {
        self.losses.on_ack(acked, rtt);
    }

    fn on_loss(&mut self, lost: u32, rtt: &Rtt) {
        self.losses.on_loss(lost, rtt);
    }

    fn on_probed_loss(&mut self) {
        self.losses.on_probed_loss();
    }

    fn on_timeout(&mut self) {
        self.losses.on_timeout();
    }

    fn on_cnp(&mut self, _: Time, _: &Rtt, _: u32) {}

    fn on_no_telemetry(&mut self) {
        self.forget();
    }

    fn on_telemetry(&mut self, now: Time, hop: Hop, telemetry: Telemetry, rtt: &Rtt) {
        let known = &mut self.hops[hop as usize];
        // Its clock comes round: what was before a long pause says nothing.
        let before = known.replace((now, telemetry)).filter(|(at, _)| now < at.after(LONGEST_SPAN));
        let (Some((at, before)), Some(latest), Some(least)) = (before, rtt.latest(), rtt.least()) else { return };
        let lately = self.lately.sample(now, latest);
        // Without a rate a queue that stays would be taken for the path's length.
        let base = if telemetry.rate == 0 { least } else { lately };
        let between = Between::new(before, telemetry, base);
        let Some(usage) = between.usage() else {
            // Too soon after the last: the next is compared with that.
            *known = Some((at, before));
            return;
        };
        let full = (f64::from(self.losses.window()) * self.packet as f64).max(1.0);
        let most = if telemetry.rate == 0 { full } else { (between.rate() * between.period).min(full) };
        let first = most.min(f64::from(FIRST) * self.packet as f64);
        let load = self.load.get_or_insert(Load::new(first, between.period, now));
        load.period = between.period;
        let is_pause = usage.span > PAUSE * load.period;
        // What has been averaged over few requests is old.
        let round_trip = if is_pause { latest } else { rtt.smoothed().unwrap_or(base) };
        load.on_usage(usage, between.of_wait(round_trip.saturating_sub(base)));
        let limits = Limits { least: self.packet as f64 / PACKETS_PER_LEAST, most: most.max(self.packet as f64) };
        load.is_paced = telemetry.rate != 0 || load.window < PACED * self.packet as f64;
        load.adjust(now, round_trip, limits);
        if is_pause && load.utilisation < IDLE {
            load.widen(first);
        }
    }

    fn set_selective(&mut self, is_selective: bool) {
        self.losses.set_selective(is_selective);
        // Only selective acknowledgements carry telemetry.
        self.forget();
        self.has_telemetry = is_selective;
    }

    fn stop(&mut self) {
        self.free_at = None;
    }
}

impl Hpcc {
    /// So many bytes are on their way, or will be: the window is spread over its period.
    fn pace(&mut self, now: Time, bytes: u64) {
        let Some(load) = self.load else { return };
        if !load.is_paced {
            self.free_at = None;
        } else {
            let gap = bytes as f64 / load.window * load.period;
            self.free_at = Some(self.free_at.unwrap_or(now).max(now).after(Duration::from_secs_f64(gap)));
        }
    }

    /// Goes on without telemetry.
    fn forget(&mut self) {
        (self.has_telemetry, self.load, self.hops, self.free_at) = (false, None, [None; 2], None);
    }
}

/// Shortest round trip of the last time: the first ones may have met a queue that is gone.
#[derive(Clone, Copy, Debug, Default)]
struct LeastLately {
    /// Of the span before the present one, and of that.
    least: [Option<Duration>; 2],
    begun: Time,
}

impl LeastLately {
    /// Takes one measurement; returns the shortest.
    fn sample(&mut self, now: Time, round_trip: Duration) -> Duration {
        let shorter = |least: Option<Duration>| least.map_or(round_trip, |least| least.min(round_trip));
        let span = LATELY.max(shorter(self.least[1]) * MANY);
        if now >= self.begun.after(span) {
            (self.least, self.begun) = ([self.least[1], None], now);
        }
        self.least[1] = Some(shorter(self.least[1]));
        shorter(self.least[0]).min(shorter(self.least[1]))
    }
}

/// Bounds of the window in bytes.
#[derive(Clone, Copy)]
struct Limits {
    least: f64,
    most: f64,
}

impl Load {
    fn new(window: f64, period: f64, now: Time) -> Self {
        Self { utilisation: 0.0, carried: 0.0, window, reference: window, updated_at: now, period, is_paced: false }
    }

    /// A hop, and the network between, are so busy.
    fn on_usage(&mut self, usage: Usage, between: f64) {
        let periods = usage.span / self.period;
        let weight = periods.min(1.0);
        let hop = match usage.carried {
            Some(carried) => {
                // Trains of packets make this vary: it is averaged over some periods, and followed as slowly. A pause counts as the
                // many periods that it is, or trains with pauses between them would seem to fill the link.
                let averaged = if periods < 1.0 { periods * GAIN } else { 1.0 - (1.0 - GAIN) / periods };
                self.carried += averaged * (carried - self.carried);
                // Before a link that is full there is a queue, which no router may see.
                let hidden = (self.carried - FULL).clamp(0.0, 1.0 - FULL) * HIDDEN;
                TARGET + (self.carried - TARGET) * GAIN + usage.queue + hidden
            }
            None => usage.queue,
        };
        self.utilisation += weight * (hop.max(between) - self.utilisation);
    }

    fn adjust(&mut self, now: Time, round_trip: Duration, limits: Limits) {
        let step = limits.most * (1.0 - TARGET) * GAIN / SHARERS;
        // Growth is multiplicative too (maxStage is 0, as in the authors' simulator): reports vary, and where only narrowing followed
        // them the window would stay below its share.
        let ratio = (self.utilisation / TARGET).max(LEAST_RATIO);
        self.window = (self.reference / ratio + step).clamp(limits.least, limits.most);
        // What the last change has brought about must have been reported.
        if now >= self.updated_at.after(round_trip.max(Duration::from_secs_f64(self.period))) {
            (self.reference, self.updated_at) = (self.window, now);
        }
    }

    /// The hop has been idle for long: no less may be in flight than from a new connection. A window of less than a packet would take
    /// long to grow, for only what is sent brings reports.
    fn widen(&mut self, first: f64) {
        self.reference = self.reference.max(first);
        self.window = self.window.max(first);
    }
}

/// How busy a hop was for some time, where 1 is as much as it carries without a queue.
struct Usage {
    /// Seconds.
    span: f64,
    /// Share of its rate that it has carried, where that is known.
    carried: Option<f64>,
    /// Share that the queue before it adds; the whole, where its rate is not known.
    queue: f64,
}

/// Two reports of a hop.
struct Between {
    before: Telemetry,
    now: Telemetry,
    base: Duration,
    /// Seconds in which a window is sent (T): the base round trip, and the time that the link takes for a train of packets, as routers
    /// send them.
    period: f64,
}

impl Between {
    fn new(before: Telemetry, now: Telemetry, base: Duration) -> Self {
        let train = if now.rate == 0 { 0.0 } else { (TRAIN / bytes_per_second(now.rate)).min(LONGEST_TRAIN) };
        Self { before, now, base, period: base.as_secs_f64() + train }
    }

    /// How busy the hop was; none where the reports are too close.
    fn usage(&self) -> Option<Usage> {
        // One that comes late is older than the last: then this is negative.
        let span = f64::from(self.now.at.wrapping_sub(self.before.at) as i32) * 1e-9;
        if span < self.period / REPORTS {
            return None;
        }
        // The lesser of both: one packet that has waited for long says nothing of a queue.
        let waited = Duration::from_nanos(self.now.waited.min(self.before.waited).into());
        if self.now.rate == 0 {
            return Some(Usage { span, carried: None, queue: self.of_wait(waited) });
        }
        let carried = f64::from(self.now.carried.wrapping_sub(self.before.carried)) * Telemetry::UNIT as f64;
        let on_the_link = carried / self.rate();
        // A router that other programs keep from its processor is late without a queue: not more has waited than it has handled since.
        let longest = on_the_link.max(self.period);
        let queue = waited.as_secs_f64().min(longest) / self.period;
        Some(Usage { span, carried: Some(on_the_link / span), queue })
    }

    /// How busy a hop of unknown rate is, before which packets wait for so long. One train, of another connection too, is no queue.
    fn of_wait(&self, waited: Duration) -> f64 {
        let base = self.base.as_secs_f64();
        let usual = (base + base.max(LEAST_JITTER.as_secs_f64())).max(self.period);
        TARGET * (base + waited.as_secs_f64()) / usual
    }

    /// Bytes a second.
    fn rate(&self) -> f64 {
        bytes_per_second(self.now.rate)
    }
}

fn bytes_per_second(megabits: u32) -> f64 {
    f64::from(megabits) * 1e6 / 8.0
}

/// Packets in flight before a connection knows its round trip: a train.
const FIRST: u32 = 16;
/// Bytes of the longest train.
const TRAIN: f64 = 65_536.0;
/// Seconds; a peer may tell any rate.
const LONGEST_TRAIN: f64 = 0.01;
/// Utilisation of the busiest hop that is aimed at (η).
const TARGET: f64 = 0.95;
/// Weight of the latest period in what a link has carried, and part of its deviation from the target that a period makes good.
const GAIN: f64 = 0.25;
/// Share of its rate from which a link is full, and how much of a queue each further part stands for.
const FULL: f64 = 0.98;
const HIDDEN: f64 = 8.0;
/// Periods without a report after which what was before says nothing, and utilisation below which the hop was idle in that time: so
/// many connections that each sends as rarely have a full link.
const PAUSE: f64 = 16.0;
const IDLE: f64 = 0.8;
/// Connections for which the sum of their additive steps stays below what the target leaves free (N).
const SHARERS: f64 = 64.0;
/// The window grows to no more than twice as much in a round trip.
const LEAST_RATIO: f64 = 0.5;
/// Longest time between two reports of which the second says something of the time between: less than half of that in which the clock
/// of reports comes round.
const LONGEST_SPAN: Duration = Duration::from_secs(1);
/// Most reports in a round trip that are looked at.
const REPORTS: f64 = 8.0;
/// Where the link's rate is not known, packets are paced where the window is no more than so many.
const PACED: f64 = 8.0;
/// Shortest span of which the shortest round trip is kept, and how many of those it has at least.
const LATELY: Duration = Duration::from_millis(5);
const MANY: u32 = 64;
/// Packets that may leave ahead of their time, as one train.
const BURST: f64 = 16.0;
/// The least window is this part of a packet: one in so many round trips.
const PACKETS_PER_LEAST: f64 = 64.0;
/// Routers share processors: differences of round trips below this say nothing.
const LEAST_JITTER: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1088;
    /// Mb/s, and bytes a second.
    const RATE: u32 = 10_000;
    const BYTES: f64 = 1.25e9;
    const ROUND_TRIP: u64 = 50_000;

    fn path() -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(Time(0), Time(ROUND_TRIP));
        rtt
    }

    fn started() -> Hpcc {
        let mut hpcc = Hpcc::default();
        hpcc.set_selective(true);
        hpcc.on_sent(Time(0), PACKET);
        hpcc
    }

    /// Connections that share a link, each of which sends its window in each round trip. Returns their shares of the last round, and
    /// the longest wait in the second half.
    fn share(mut connections: Vec<Hpcc>, rounds: u64, rate: u32) -> (Vec<f64>, Duration) {
        let (mut queue, mut carried, mut longest) = (0.0_f64, 0.0_f64, 0.0_f64);
        let capacity = BYTES * ROUND_TRIP as f64 * 1e-9;
        let mut sent = Vec::new();
        for round in 1..=rounds {
            let window = |hpcc: &Hpcc| hpcc.load.map_or(f64::from(hpcc.window()) * PACKET as f64, |load| load.window);
            // What is in flight takes longer to come back while there is a queue.
            sent = connections.iter().map(|hpcc| window(hpcc) / (1.0 + queue / capacity)).collect();
            let all = queue + sent.iter().sum::<f64>();
            carried += all.min(capacity);
            queue = all - all.min(capacity);
            let waited = queue / BYTES;
            if round > rounds / 2 {
                longest = longest.max(waited);
            }
            let now = Time(round * ROUND_TRIP);
            let telemetry = Telemetry {
                at: now.0 as u32,
                carried: (carried / Telemetry::UNIT as f64) as u64 as u32,
                waited: (waited * 1e9) as u32,
                rate,
            };
            let mut rtt = path();
            rtt.sample(Time(0), Time(ROUND_TRIP + (waited * 1e9) as u64));
            connections.iter_mut().for_each(|hpcc| hpcc.on_telemetry(now, Hop::Peer, telemetry, &rtt));
        }
        (sent, Duration::from_secs_f64(longest))
    }

    #[test]
    fn one_connection_fills_its_link_almost_and_no_queue_stays() {
        let (shares, longest) = share(vec![started()], 200, RATE);
        let used = shares[0] / (BYTES * 50e-6);
        assert!((0.9..=1.0).contains(&used), "{used}");
        assert!(longest < Duration::from_micros(5), "{longest:?}");
    }

    #[test]
    fn many_connections_share_a_link_without_a_queue() {
        let (shares, longest) = share(vec![started(); 16], 400, RATE);
        let used = shares.iter().sum::<f64>() / (BYTES * 50e-6);
        assert!((0.9..=1.02).contains(&used), "{used}");
        assert!(longest < Duration::from_micros(10), "{longest:?}");
    }

    #[test]
    fn a_narrow_connection_grows_to_its_share() {
        let mut narrow = started();
        let load = Load { window: 2000.0, reference: 2000.0, ..Load::new(2000.0, 50e-6, Time(0)) };
        narrow.load = Some(load);
        let (shares, _) = share(vec![started(), narrow], 12_000, RATE);
        let [wide, narrow] = shares[..] else { panic!("two") };
        assert!(narrow > 0.85 * wide, "{shares:?}");
    }

    #[test]
    fn a_link_of_unknown_rate_keeps_the_wait_short() {
        let (shares, longest) = share(vec![started(); 16], 400, 0);
        let used = shares.iter().sum::<f64>() / (BYTES * 50e-6);
        assert!(used > 0.9, "{used}");
        assert!(longest < Duration::from_millis(1), "{longest:?}");
    }

    #[test]
    fn a_window_of_less_than_a_packet_is_paced() {
        let mut hpcc = started();
        hpcc.load = Some(Load { is_paced: true, ..Load::new(PACKET as f64 / 4.0, 50e-6, Time(0)) });
        assert_eq!((hpcc.window(), hpcc.pacing()), (1, None));
        hpcc.on_sent(Time(1_000_000), PACKET);
        // Half a round trip ahead of its time.
        assert_eq!(hpcc.pacing(), Some(Time(1_000_000 + 4 * ROUND_TRIP - ROUND_TRIP / 2)));
    }

    #[test]
    fn trains_with_pauses_between_them_do_not_fill_a_link() {
        let mut hpcc = started();
        // A train takes this link many round trips; those of two queue pairs come through the network before it at once.
        let (rate, train) = (250, 65_536.0 / 31.25e6);
        let (mut now, mut carried) = (0, 0.0);
        let mut report = |hpcc: &mut Hpcc, after: f64, bytes: f64| {
            (now, carried) = (now + (after * 1e9) as u64, carried + bytes);
            let units = (carried / Telemetry::UNIT as f64) as u32;
            let telemetry = Telemetry { at: now as u32, carried: units, rate, ..Telemetry::default() };
            hpcc.on_telemetry(Time(now), Hop::Own, telemetry, &path());
        };
        for _ in 0..200 {
            report(&mut hpcc, 100.0 * train, 0.0);
            report(&mut hpcc, train / 7.0, 2.0 * TRAIN);
        }
        let load = hpcc.load.expect("reports");
        assert!(load.window > 0.9 * 31.25e6 * load.period, "{load:?}");
    }

    /// Window of a connection that had its least, after so many round trips in which the link was idle.
    fn window_after(round_trips: u64) -> f64 {
        let mut hpcc = started();
        hpcc.load = Some(Load { carried: 0.95, utilisation: 0.95, ..Load::new(16.0, 50e-6, Time(0)) });
        let mut rtt = path();
        // Since when its queue was full there was no request that shows what the round trip is now, but the last.
        rtt.sample(Time(0), Time(40 * ROUND_TRIP));
        rtt.sample(Time(0), Time(ROUND_TRIP));
        for at in [ROUND_TRIP, (1 + round_trips) * ROUND_TRIP] {
            hpcc.on_telemetry(
                Time(at),
                Hop::Peer,
                Telemetry { at: at as u32, rate: RATE, ..Telemetry::default() },
                &rtt,
            );
        }
        hpcc.load.expect("two reports").window
    }

    #[test]
    fn a_pause_makes_a_window_as_wide_as_a_new_connection_has_it() {
        assert_eq!(window_after(100), f64::from(FIRST) * PACKET as f64);
        // A shorter one doubles it at most.
        let doubled = window_after(2);
        assert!(doubled < 100.0, "{doubled}");
    }

    #[test]
    fn reports_count_again_after_a_pause() {
        let mut hpcc = started();
        let report = |hpcc: &mut Hpcc, at: u64| {
            let telemetry = Telemetry { at: at as u32, rate: RATE, ..Telemetry::default() };
            hpcc.on_telemetry(Time(at), Hop::Peer, telemetry, &path());
        };
        report(&mut hpcc, 1_000_000);
        report(&mut hpcc, 2_000_000);
        let before = hpcc.load.expect("two reports").updated_at;
        // Its clock of 32 bits seems to have gone backwards.
        let later = 2_000_000 + 3_000_000_000;
        report(&mut hpcc, later);
        report(&mut hpcc, later + 1_000_000);
        assert_ne!(hpcc.load.expect("two reports").updated_at, before);
    }

    #[test]
    fn a_peer_that_reports_nothing_gets_the_window_of_losses() {
        let mut hpcc = started();
        assert_eq!(hpcc.window(), FIRST);
        hpcc.on_no_telemetry();
        assert_eq!((hpcc.window(), hpcc.read_window()), (hpcc.losses.window(), hpcc.losses.read_window()));
    }

    #[test]
    fn whatever_a_peer_reports_the_window_is_within_that_without() {
        let words = [0, 1, 1 << 16, u32::MAX / 2, u32::MAX];
        let mut hpcc = started();
        let mut now = 0;
        for n in 0..words.len().pow(4) {
            let word = |place: u32| words[n / words.len().pow(place) % words.len()];
            now += 10_000;
            let telemetry = Telemetry { at: word(0), carried: word(1), waited: word(2), rate: word(3) };
            hpcc.on_telemetry(Time(now), Hop::Peer, telemetry, &path());
            assert!((1..=hpcc.losses.window()).contains(&hpcc.window()), "{telemetry:?}: {hpcc:?}");
            hpcc.on_sent(Time(now), PACKET);
            assert!(hpcc.pacing().is_none_or(|at| at < Time(now).after(Duration::from_secs(1))), "{hpcc:?}");
        }
    }
}
