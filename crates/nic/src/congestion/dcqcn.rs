//! DCQCN (Zhu et al., SIGCOMM 2015): the rate of a queue pair that is told of congestion by notification packets.
//!
//! The paper's timers are evaluated when something is sent or arrives, so that a queue pair needs no timer of its own.

use super::window::SendWindow;
use super::{Acked, Controller, Rtt};
use crate::timer::Time;
use core::time::Duration;

/// A window, and a rate while the network reports congestion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dcqcn {
    window: SendWindow,
    rate: Option<Rate>,
}

impl Controller for Dcqcn {
    #[inline]
    fn window(&self) -> u32 {
        self.window.window()
    }

    #[inline]
    fn pacing(&self) -> Option<Time> {
        self.rate.map(|rate| rate.next_send())
    }

    #[inline]
    fn is_lossless(&self) -> bool {
        self.window.is_lossless()
    }

    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u64) {
        if let Some(rate) = &mut self.rate {
            rate.on_sent(now, bytes);
            if rate.has_recovered(now) {
                self.rate = None;
            }
        }
    }

    fn on_ack(&mut self, acked: Acked, rtt: &Rtt) {
        self.window.on_ack(acked, rtt);
    }

    fn on_loss(&mut self, lost: u32, rtt: &Rtt) {
        self.window.on_loss(lost, rtt);
    }

    fn on_probed_loss(&mut self) {
        self.window.on_probed_loss();
    }

    fn on_timeout(&mut self) {
        self.window.on_timeout();
    }

    fn on_cnp(&mut self, now: Time, rtt: &Rtt, mtu: u32) {
        match &mut self.rate {
            Some(rate) => rate.on_notification(now),
            None => {
                // As fast as a full window in each round trip.
                let window = f64::from(self.window.window()) * f64::from(mtu);
                let round = rtt.smoothed().map_or(UNMEASURED, |rtt| rtt.as_secs_f64().max(SHORTEST));
                self.rate = Some(Rate::new(now, window / round));
            }
        }
    }

    fn set_selective(&mut self, is_selective: bool) {
        self.window.set_selective(is_selective);
    }

    fn stop(&mut self) {
        self.rate = None;
    }
}

/// The reaction point of one queue pair. There is one only after a notification, until the rate has recovered.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Bytes per second.
    current: f64,
    target: f64,
    /// The rate from before the first notification, at which there is no limit any more.
    full: f64,
    /// Estimate of the congestion, 0 to 1 (α).
    alpha: f64,
    /// Since when alpha decays and the rate grows.
    alpha_at: Time,
    rise_at: Time,
    /// Bytes sent since the byte counter last expired.
    bytes: u64,
    timer_rounds: u32,
    byte_rounds: u32,
    /// Time at which the next byte may be sent.
    free_at: Time,
}

impl Rate {
    /// After the first notification, of a queue pair that has sent at `rate` bytes per second.
    fn new(now: Time, rate: f64) -> Self {
        let full = rate.max(LEAST_RATE);
        let mut rate = Self {
            current: full,
            target: full,
            full,
            alpha: 1.0,
            alpha_at: now,
            rise_at: now,
            bytes: 0,
            timer_rounds: 0,
            byte_rounds: 0,
            free_at: now,
        };
        rate.on_notification(now);
        rate
    }

    /// A congestion notification packet arrived.
    fn on_notification(&mut self, now: Time) {
        self.advance(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(LEAST_RATE);
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.alpha_at, self.rise_at) = (now, now);
        (self.bytes, self.timer_rounds, self.byte_rounds) = (0, 0, 0);
    }

    /// `bytes` were sent.
    fn on_sent(&mut self, now: Time, bytes: u64) {
        self.advance(now);
        self.bytes += bytes;
        while self.bytes >= BYTE_ROUND {
            self.bytes -= BYTE_ROUND;
            self.byte_rounds += 1;
            self.rise();
        }
        let start = self.free_at.max(now);
        self.free_at = start.after(Duration::from_secs_f64(bytes as f64 / self.current));
    }

    /// Time at which the next packet may be sent; some may go ahead of their time, so that they can go in one train.
    fn next_send(&self) -> Time {
        Time(self.free_at.0.saturating_sub(BURST.as_nanos() as u64))
    }

    /// Whether the rate is what it was before the first notification.
    fn has_recovered(&mut self, now: Time) -> bool {
        self.advance(now);
        self.current >= self.full * 0.999
    }

    fn advance(&mut self, now: Time) {
        let round = ROUND.as_nanos() as u64;
        // A queue pair that has slept long has long recovered: no need to count every round.
        let rounds = (now.0.saturating_sub(self.alpha_at.0) / round).min(MANY_ROUNDS);
        for _ in 0..rounds {
            self.alpha *= 1.0 - GAIN;
        }
        self.alpha_at = if rounds == MANY_ROUNDS { now } else { Time(self.alpha_at.0 + rounds * round) };
        let rounds = (now.0.saturating_sub(self.rise_at.0) / round).min(MANY_ROUNDS);
        for _ in 0..rounds {
            self.timer_rounds += 1;
            self.rise();
        }
        self.rise_at = if rounds == MANY_ROUNDS { now } else { Time(self.rise_at.0 + rounds * round) };
    }

    /// Fast recovery, then additive, then hyper increase.
    fn rise(&mut self) {
        if self.timer_rounds.min(self.byte_rounds) > FAST_ROUNDS {
            self.target += HYPER;
        } else if self.timer_rounds.max(self.byte_rounds) > FAST_ROUNDS {
            self.target += ADDITIVE;
        }
        self.target = self.target.min(self.full);
        self.current = (self.current + self.target) / 2.0;
    }
}

/// Weight of a notification in alpha (g of the paper).
const GAIN: f64 = 1.0 / 256.0;
/// Rounds of fast recovery (F).
const FAST_ROUNDS: u32 = 5;
/// Bytes per second gained in a round: 40 Mb/s, and ten times that in hyper increase (R_AI, R_HAI).
const ADDITIVE: f64 = 5e6;
const HYPER: f64 = 5e7;
/// Time of a round, of alpha and of the rate.
const ROUND: Duration = Duration::from_micros(55);
/// Bytes of a round (B).
const BYTE_ROUND: u64 = 10 << 20;
/// More rounds than this change nothing that matters.
const MANY_ROUNDS: u64 = 20_000;
/// 10 Mb/s.
const LEAST_RATE: f64 = 1.25e6;
/// Burst tolerance: how far ahead of their scheduled time packets may be sent.
const BURST: Duration = Duration::from_micros(20);
/// Seconds of a round trip that was never measured.
const UNMEASURED: f64 = 100e-6;
/// Shorter than any between two hosts.
const SHORTEST: f64 = 10e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: f64 = 1.25e8;

    #[test]
    fn the_first_notification_halves_the_rate() {
        let rate = Rate::new(Time(0), 10.0 * GIGABIT);
        assert!((rate.current / GIGABIT - 5.0).abs() < 0.01, "{rate:?}");
    }

    #[test]
    fn the_rate_recovers_when_notifications_stop() {
        let mut rate = Rate::new(Time(0), 10.0 * GIGABIT);
        assert!(!rate.has_recovered(Time(100_000)));
        assert!(rate.has_recovered(Time(1_000_000_000)), "{rate:?}");
    }

    #[test]
    fn steady_notifications_hold_the_rate_down() {
        let mut rate = Rate::new(Time(0), 10.0 * GIGABIT);
        for i in 1..200 {
            rate.on_notification(Time(i * 50_000));
        }
        assert!(rate.current < GIGABIT / 2.0, "{rate:?}");
        assert!(rate.current >= LEAST_RATE);
    }

    #[test]
    fn what_is_sent_is_spread_over_time() {
        let mut rate = Rate::new(Time(0), 2.0 * GIGABIT);
        let mut now = Time(0);
        let mut sent = 0;
        while now < Time(50_000) {
            now = now.max(rate.next_send());
            rate.on_sent(now, 1000);
            sent += 1000;
        }
        let per_second = f64::from(sent) / 70e-6;
        assert!((per_second / GIGABIT - 1.0).abs() < 0.2, "{per_second}");
    }
}
