//! Fault injector: applies faults to a stream of datagrams.

use super::{Chance, Faults};
use rdmesh_nic::{Datagram, Origin, Time};
use std::time::Duration;

/// Fault injector. Its behaviour is a function of its seed and the datagrams that it is given.
pub(in crate::io) struct Injector {
    faults: Faults,
    chance: Random,
    in_burst: bool,
    held: Option<Held>,
    scratch: Vec<u8>,
    /// Faults so far.
    count: u64,
}

/// A datagram that others overtake.
struct Held {
    origin: Origin,
    traffic_class: u8,
    received: Option<Time>,
    bytes: Vec<u8>,
    overtaken_by: u64,
    until: Time,
}

impl Injector {
    /// Each of several injectors has its own `stream` of random numbers.
    pub(in crate::io) fn new(faults: Faults, stream: u64) -> Self {
        let chance = Random(faults.seed ^ stream.wrapping_mul(STREAMS));
        Self { faults, chance, in_burst: false, held: None, scratch: Vec::new(), count: 0 }
    }

    /// Applies the faults to `datagram`, and gives the resulting datagrams to `deliver`.
    pub(in crate::io) fn apply(&mut self, now: Time, datagram: &Datagram<'_>, deliver: &mut impl FnMut(&Datagram<'_>)) {
        if self.is_lost() {
            return;
        }
        let mut datagram = *datagram;
        if self.happens(self.faults.ce) {
            datagram.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let mut copy = std::mem::take(&mut self.scratch);
        if !datagram.bytes.is_empty() && self.happens(self.faults.corrupt) {
            copy.clear();
            copy.extend_from_slice(datagram.bytes);
            let bit = self.chance.below(8 * copy.len() as u64) as usize;
            copy[bit / 8] ^= 1 << (bit % 8);
            datagram.bytes = &copy;
        }
        if self.held.is_none() && self.happens(self.faults.reorder) {
            self.hold(now, &datagram);
        } else {
            deliver(&datagram);
            if self.happens(self.faults.duplicate) {
                deliver(&datagram);
            }
            if let Some(held) = &mut self.held {
                held.overtaken_by -= 1;
            }
            self.release(now, deliver);
        }
        self.scratch = copy;
    }

    /// Gives datagrams that have been held long enough to `deliver`.
    pub(in crate::io) fn release(&mut self, now: Time, deliver: &mut impl FnMut(&Datagram<'_>)) {
        if let Some(held) = self.held.take_if(|held| held.overtaken_by == 0 || now >= held.until) {
            let (origin, traffic_class, received) = (held.origin, held.traffic_class, held.received);
            deliver(&Datagram { origin, traffic_class, received, bytes: &held.bytes });
        }
    }

    /// The time at which [`Injector::release`] has something to do even if nothing arrives.
    pub(in crate::io) fn deadline(&self) -> Option<Time> {
        self.held.as_ref().map(|held| held.until)
    }

    /// Faults since this was last asked.
    pub(in crate::io) fn take_count(&mut self) -> u64 {
        std::mem::take(&mut self.count)
    }

    fn is_lost(&mut self) -> bool {
        let burst = self.faults.burst;
        if self.in_burst {
            // Of a burst of n datagrams on average, each is the last one with a chance of 1/n.
            self.in_burst = self.chance.below(burst.length.max(1).into()) != 0;
            self.count += 1;
            return true;
        }
        if self.happens(burst.begin) {
            self.in_burst = self.chance.below(burst.length.max(1).into()) != 0;
            return true;
        }
        self.happens(self.faults.loss)
    }

    fn hold(&mut self, now: Time, datagram: &Datagram<'_>) {
        self.held = Some(Held {
            origin: datagram.origin,
            traffic_class: datagram.traffic_class,
            received: datagram.received,
            bytes: datagram.bytes.to_vec(),
            overtaken_by: 1 + self.chance.below(MAX_OVERTAKERS),
            until: now.after(LONGEST_HOLD),
        });
    }

    fn happens(&mut self, chance: Chance) -> bool {
        let happens = chance.millionths() > 0 && self.chance.below(1_000_000) < chance.millionths().into();
        self.count += u64::from(happens);
        happens
    }
}

/// Numbers by chance (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(limit)) >> 64) as u64
    }
}

/// The ECN field (RFC 3168, 5).
const CONGESTION_EXPERIENCED: u8 = 3;
const MAX_OVERTAKERS: u64 = 8;
/// Maximum delay of a datagram that is to be overtaken, if no other arrives.
const LONGEST_HOLD: Duration = Duration::from_millis(1);
/// An odd number with half its bits set.
const STREAMS: u64 = 0xd6e8_feb8_6659_fd93;

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 100_000;

    /// The delivered ones of `count` numbered datagrams: their traffic classes and bytes.
    fn run(faults: &str, count: u32) -> (Vec<(u8, Vec<u8>)>, Injector) {
        let mut injector = Injector::new(faults.parse().unwrap(), 0);
        let mut arrived = Vec::new();
        for number in 0..count {
            let bytes = number.to_be_bytes();
            let origin = Origin::Host([10, 0, 0, 1].into());
            let datagram = Datagram { origin, traffic_class: 0xa8, received: None, bytes: &bytes };
            injector.apply(Time(0), &datagram, &mut |d| arrived.push((d.traffic_class, d.bytes.to_vec())));
        }
        (arrived, injector)
    }

    fn numbers(arrived: &[(u8, Vec<u8>)]) -> Vec<u32> {
        arrived.iter().map(|(_, bytes)| u32::from_be_bytes(bytes[..].try_into().unwrap())).collect()
    }

    /// Whether `found` is about `expected` per cent of all.
    fn is_about(found: usize, expected: f64) -> bool {
        (found as f64 * 100.0 / f64::from(COUNT) - expected).abs() < expected / 5.0
    }

    #[test]
    fn as_many_are_lost_as_asked_for() {
        let (arrived, mut injector) = run("loss=1%,seed=7", COUNT);
        assert!(is_about(COUNT as usize - arrived.len(), 1.0));
        assert_eq!(injector.take_count() as usize, COUNT as usize - arrived.len());
        assert!(numbers(&arrived).is_sorted());
    }

    #[test]
    fn bursts_have_the_length_asked_for() {
        let (arrived, _) = run("burst=0.1%/20,seed=7", COUNT);
        let numbers = numbers(&arrived);
        let gaps: Vec<u32> = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).filter(|&gap| gap > 0).collect();
        let mean = f64::from(gaps.iter().sum::<u32>()) / gaps.len() as f64;
        assert!((13.0..27.0).contains(&mean), "{mean}");
        assert!((60..140).contains(&gaps.len()), "{}", gaps.len());
    }

    #[test]
    fn duplicates_are_equal() {
        let (arrived, _) = run("duplicate=2%,seed=1", COUNT);
        assert!(is_about(arrived.len() - COUNT as usize, 2.0));
        assert!(numbers(&arrived).is_sorted());
    }

    #[test]
    fn overtaken_ones_arrive_a_little_later() {
        let (arrived, injector) = run("reorder=1%,seed=3", COUNT);
        let numbers = numbers(&arrived);
        assert!(numbers.len() + usize::from(injector.held.is_some()) == COUNT as usize);
        let late = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(is_about(late, 1.0), "{late}");
        let longest = numbers.iter().enumerate().map(|(at, &n)| at.abs_diff(n as usize)).max();
        assert_eq!(longest, Some(MAX_OVERTAKERS as usize));
    }

    #[test]
    fn what_is_held_comes_out_in_time() {
        let (arrived, mut injector) = run("reorder=100%", 1);
        assert_eq!(arrived.len(), 0);
        let deadline = injector.deadline().unwrap();
        let mut released = 0;
        injector.release(Time(deadline.0 - 1), &mut |_| released += 1);
        assert_eq!(released, 0);
        injector.release(deadline, &mut |_| released += 1);
        assert_eq!((released, injector.deadline()), (1, None));
    }

    #[test]
    fn corruption_flips_one_bit() {
        let (arrived, _) = run("corrupt=1%,seed=5", COUNT);
        let flipped: Vec<u32> =
            numbers(&arrived).iter().zip(0..).map(|(found, n): (&u32, u32)| (found ^ n).count_ones()).collect();
        assert!(flipped.iter().all(|&bits| bits <= 1));
        assert!(is_about(flipped.iter().filter(|&&bits| bits == 1).count(), 1.0));
    }

    #[test]
    fn marks_leave_the_rest_of_the_traffic_class() {
        let (arrived, _) = run("ce=1%,seed=5", COUNT);
        assert!(is_about(arrived.iter().filter(|(class, _)| *class == 0xab).count(), 1.0));
        assert!(arrived.iter().all(|(class, _)| [0xa8, 0xab].contains(class)));
    }

    #[test]
    fn chance_is_the_seeds() {
        let run = |faults: &str| run(faults, 1000).0;
        let faults = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,ce=5%,burst=1%/5,seed=";
        assert_eq!(run(&format!("{faults}1")), run(&format!("{faults}1")));
        assert_ne!(run(&format!("{faults}1")), run(&format!("{faults}2")));
    }
}
