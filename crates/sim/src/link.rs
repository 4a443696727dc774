//! Simulated link: one direction of a path between two hosts, with loss, delay and other faults.

use crate::chance::Chance;
use crate::coverage::{Coverage, Seen};
use rdmesh_nic::Time;

/// Behaviour of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkPlan {
    /// Nanoseconds from end to end.
    pub delay: u64,
    /// Most nanoseconds more, drawn for each datagram; the order is kept.
    pub jitter: u64,
    /// Bytes a second; 0 for no limit.
    pub rate: u64,
    /// Bytes that wait before more are dropped; 0 for no limit.
    pub queue: u64,
    /// Bytes that wait before datagrams are marked "congestion experienced"; 0 for never.
    pub mark: u64,
    /// Probability that a datagram is lost.
    pub loss: f64,
    /// Bursts of loss: probability to begin one and to end it, datagram by datagram. Within, three of four are lost.
    pub burst: Option<(f64, f64)>,
    /// Probability that a datagram arrives twice.
    pub duplicate: f64,
    /// Probability that a datagram is held back for up to `span` nanoseconds, so that others overtake it.
    pub reorder: f64,
    /// See `reorder`.
    pub span: u64,
    /// Probability that bits flip.
    pub corrupt: f64,
    /// Probability that the end is missing.
    pub truncate: f64,
    /// Probability that a copy arrives much later: up to this many nanoseconds.
    pub stale: f64,
    /// See `stale`.
    pub stale_span: u64,
}

impl LinkPlan {
    /// The same link when nothing is wrong with it.
    pub fn healed(self) -> Self {
        Self { delay: self.delay, jitter: self.jitter, rate: self.rate, ..Self::default() }
    }

    /// Whether datagrams may get lost, or arrive as what they were not.
    pub fn is_lossy(&self) -> bool {
        self.queue != 0 || self.loss > 0.0 || self.burst.is_some() || self.corrupt > 0.0 || self.truncate > 0.0
    }
}

/// A link at work.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its present behaviour.
    pub plan: LinkPlan,
    /// Nothing passes.
    pub down: bool,
    busy_until: u64,
    last_arrival: u64,
    in_burst: bool,
}

/// A datagram that will arrive.
pub struct Arrival {
    /// The time.
    pub at: Time,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it was marked on the way.
    pub marked: bool,
    /// Nanoseconds that it has waited for others before it.
    pub waited: u64,
}

impl Link {
    /// An idle link.
    pub fn new(plan: LinkPlan) -> Self {
        Self { plan, down: false, busy_until: 0, last_arrival: 0, in_burst: false }
    }

    /// Sends a datagram; `overhead` are the bytes of headers that the engine does not see.
    pub fn send(&mut self, now: Time, bytes: &[u8], chance: &mut Chance, seen: &mut Coverage) -> Vec<Arrival> {
        if self.down {
            seen.count(Seen::PartitionDrop);
            return Vec::new();
        }
        let waiting = self.busy_until.saturating_sub(now.0);
        let backlog = (u128::from(waiting) * u128::from(self.plan.rate) / 1_000_000_000) as u64;
        if self.plan.queue != 0 && backlog + bytes.len() as u64 > self.plan.queue {
            seen.count(Seen::QueueDrop);
            return Vec::new();
        }
        let marked = self.plan.mark != 0 && backlog > self.plan.mark;
        let wire = bytes.len() as u64 + OVERHEAD;
        let serialisation = (wire * 1_000_000_000).checked_div(self.plan.rate).unwrap_or(0);
        self.busy_until = self.busy_until.max(now.0) + serialisation;
        if self.is_lost(chance) {
            seen.count(Seen::Lost);
            return Vec::new();
        }
        let mut at = self.busy_until + self.plan.delay;
        if self.plan.jitter != 0 {
            at += chance.between(0, self.plan.jitter);
        }
        at = at.max(self.last_arrival);
        if chance.happens(self.plan.reorder) {
            at += chance.between(1, self.plan.span.max(2));
        } else {
            self.last_arrival = at;
        }
        let mut arrivals =
            vec![Arrival { at: Time(at), bytes: self.damaged(bytes, chance, seen), marked, waited: waiting }];
        if chance.happens(self.plan.duplicate) {
            let at = Time(at + chance.between(0, self.plan.delay.max(1) * 2));
            arrivals.push(Arrival { at, bytes: bytes.to_vec(), marked, waited: waiting });
        }
        if chance.happens(self.plan.stale) {
            seen.count(Seen::Stale);
            let at = Time(at + chance.between(self.plan.stale_span / 2, self.plan.stale_span));
            arrivals.push(Arrival { at, bytes: bytes.to_vec(), marked, waited: waiting });
        }
        arrivals
    }

    fn is_lost(&mut self, chance: &mut Chance) -> bool {
        if let Some((begin, end)) = self.plan.burst {
            self.in_burst = if self.in_burst { !chance.happens(end) } else { chance.happens(begin) };
            if self.in_burst && chance.happens(0.75) {
                return true;
            }
        }
        chance.happens(self.plan.loss)
    }

    fn damaged(&self, bytes: &[u8], chance: &mut Chance, seen: &mut Coverage) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if chance.happens(self.plan.truncate) {
            seen.count(Seen::Truncated);
            bytes.truncate(chance.between(0, bytes.len() as u64) as usize);
        }
        if !bytes.is_empty() && chance.happens(self.plan.corrupt) {
            seen.count(Seen::Corrupted);
            // Few bits: every pattern of up to three is within what a CRC-32 is sure to find at these lengths.
            for _ in 0..chance.between(1, 4) {
                let at = chance.between(0, bytes.len() as u64) as usize;
                bytes[at] ^= 1 << chance.between(0, 8);
            }
        }
        bytes
    }
}

/// Bytes of Ethernet, IP and UDP around a datagram.
const OVERHEAD: u64 = 14 + 20 + 8 + 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Stream;

    #[test]
    fn a_full_queue_drops_and_a_rate_delays() {
        let plan = LinkPlan { delay: 10, rate: 1_000_000_000, queue: 2000, ..LinkPlan::default() };
        let (mut link, mut chance, mut seen) = (Link::new(plan), Chance::new(1, Stream::Network), Coverage::default());
        let mut send = || link.send(Time(0), &[0; 934], &mut chance, &mut seen).first().map(|a| a.at.0);
        assert_eq!([send(), send(), send()], [Some(1010), Some(2010), None]);
    }

    #[test]
    fn loss_is_as_likely_as_planned() {
        let plan = LinkPlan { loss: 0.1, ..LinkPlan::default() };
        let (mut link, mut chance, mut seen) = (Link::new(plan), Chance::new(3, Stream::Network), Coverage::default());
        let lost = (0..10_000).filter(|_| link.send(Time(0), &[0], &mut chance, &mut seen).is_empty()).count();
        assert!((900..1100).contains(&lost), "{lost}");
    }
}
