//! Round-trip time (RFC 6298 with microsecond floors).

use crate::timer::Time;
use core::time::Duration;

/// Round-trip time estimate of a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    least: u64,
    latest: u64,
}

impl Rtt {
    /// Takes one measurement.
    pub(crate) fn sample(&mut self, sent: Time, answered: Time) {
        let sample = answered.0.saturating_sub(sent.0).max(1);
        self.latest = sample;
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
                self.least = sample;
            }
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((7 * smoothed + sample) / 8);
                self.least = self.least.min(sample);
            }
        }
    }

    /// The mean, where something was measured.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(Duration::from_nanos)
    }

    /// The least that was measured.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.smoothed.map(|_| Duration::from_nanos(self.least))
    }

    /// The last that was measured.
    pub(crate) fn latest(&self) -> Option<Duration> {
        self.smoothed.map(|_| Duration::from_nanos(self.latest))
    }

    /// Time after going back in which reports of a loss can only concern packets sent before.
    pub(crate) fn echo(&self) -> Duration {
        Duration::from_nanos(self.smoothed.map_or(0, |_| self.least))
    }

    /// Whether answers take much longer than they could: packets wait somewhere.
    pub(crate) fn is_inflated(&self) -> bool {
        self.smoothed.is_some_and(|smoothed| smoothed > 2 * self.least + SLACK)
    }

    /// Whether packets wait in queues for so long that neither a full window nor a busy processor explains it.
    pub(crate) fn is_congested(&self) -> bool {
        self.queueing() > Duration::from_nanos(4 * self.least.max(LEAST_CONGESTION))
    }

    /// Queueing delay: the part of the round trip that packets spend in queues.
    pub(crate) fn queueing(&self) -> Duration {
        Duration::from_nanos(self.smoothed.map_or(0, |smoothed| smoothed - self.least.min(smoothed)))
    }

    /// Probe time-out: silence after which a probe is sent.
    pub(crate) fn probe_timeout(&self) -> Duration {
        let timeout = |smoothed| (smoothed + (4 * self.variation).max(smoothed)).min(4 * self.least + MAX_VARIATION);
        Duration::from_nanos(self.smoothed.map_or(FIRST_PROBE, timeout).max(LEAST_PROBE))
    }
}

/// Before anything was measured.
const FIRST_PROBE: u64 = 5_000_000;
/// A probe is one packet: rather one too many than a long wait because a busy processor has raised the mean.
const MAX_VARIATION: u64 = 300_000;
/// A router that shares its processor answers late without anything being lost.
const LEAST_PROBE: u64 = 200_000;
/// A quarter of the least queueing delay that is taken for congestion: a window of large packets takes that long to process.
const LEAST_CONGESTION: u64 = 200_000;
/// Differences below this say nothing about queues.
const SLACK: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_round_trip_is_learned() {
        let mut rtt = Rtt::default();
        for i in 0..100 {
            rtt.sample(Time(i * 1_000_000), Time(i * 1_000_000 + 400_000));
        }
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(400)));
        assert!(rtt.probe_timeout() >= Duration::from_micros(800) && rtt.probe_timeout() < Duration::from_millis(2));
        assert!(!rtt.is_inflated());
    }

    #[test]
    fn growing_delay_is_noticed() {
        let mut rtt = Rtt::default();
        rtt.sample(Time(0), Time(100_000));
        for _ in 0..50 {
            rtt.sample(Time(0), Time(1_000_000));
        }
        assert!(rtt.is_inflated());
        assert!(rtt.queueing() > Duration::from_micros(800) && rtt.queueing() <= Duration::from_micros(900));
        assert_eq!(rtt.echo(), Duration::from_micros(100));
    }
}
