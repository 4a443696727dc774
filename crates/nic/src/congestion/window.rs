//! Congestion window: the number of packets in flight to a peer without congestion control of its own.
//!
//! With go-back-N, loss alone narrows the window to what can be sent again in whole. Loss while answers take longer and longer
//! narrows it further, and so do silence, and queues that are long against the ACK time-out: a peer whose time-out they exceed
//! sends everything again, which makes them longer.
//!
//! With selective retransmission, loss narrows the window only where packets also wait for long, or where the share of lost packets
//! is greater than a bad wire's: a queue is full, and the window becomes what gets through it.

use super::{Acked, Controller, Rtt};
use crate::timer::Time;

/// The window, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    packets: u32,
    /// Packets acknowledged since the last loss.
    clean: u32,
    is_lossy: bool,
    /// Growth and losses, where only lost packets are sent again; none with go-back-N.
    selective: Option<Selective>,
}

/// Growth and losses of a window with selective retransmission.
#[derive(Clone, Copy, Debug)]
struct Selective {
    /// Up to here the window grows with each packet that is acknowledged, beyond much more slowly.
    threshold: u32,
    /// Packets acknowledged since it last grew beyond.
    grown: u32,
    /// Packets acknowledged, and lost, since their share was last judged.
    acked: u32,
    lost: u32,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { packets: STEADY, clean: 0, is_lossy: false, selective: None }
    }
}

impl Controller for SendWindow {
    #[inline]
    fn window(&self) -> u32 {
        self.packets
    }

    #[inline]
    fn pacing(&self) -> Option<Time> {
        None
    }

    #[inline]
    fn is_lossless(&self) -> bool {
        !self.is_lossy || self.clean >= CLEAN
    }

    #[inline]
    fn on_sent(&mut self, _: Time, _: u64) {}

    fn on_ack(&mut self, acked: Acked, rtt: &Rtt) {
        if let Some(selective) = &mut self.selective {
            selective.acked = selective.acked.saturating_add(acked.packets);
        }
        match (rtt.queueing() > acked.longest_queue, acked.is_timed) {
            (false, _) => self.widen(acked.packets, self.is_delayed(rtt)),
            (true, true) => self.narrow(),
            (true, false) => {}
        }
    }

    fn on_loss(&mut self, lost: u32, rtt: &Rtt) {
        self.on_probed_loss();
        let Some(selective) = &mut self.selective else {
            let lossy = self.packets.min(STEADY);
            self.packets = if rtt.is_inflated() { (lossy - lossy / 4).max(LEAST) } else { lossy };
            return;
        };
        match selective.loses_much(lost) {
            // As wide as what gets through.
            Some(share) => self.narrow_by((self.packets as f32 * share) as u32),
            None if rtt.is_congested() => self.narrow_by(self.packets / 4),
            None => {}
        }
    }

    fn on_probed_loss(&mut self) {
        (self.clean, self.is_lossy) = (0, true);
    }

    fn on_timeout(&mut self) {
        self.packets = (self.packets / 2).clamp(LEAST, STEADY);
        self.clean = 0;
    }

    fn on_cnp(&mut self, _: Time, _: &Rtt, _: u32) {}

    fn set_selective(&mut self, is_selective: bool) {
        self.selective = is_selective.then_some(Selective { threshold: MOST, grown: 0, acked: 0, lost: 0 });
    }

    fn stop(&mut self) {}
}

impl SendWindow {
    /// Whether packets wait so long that the window had better not grow.
    fn is_delayed(&self, rtt: &Rtt) -> bool {
        if self.selective.is_some() { rtt.is_congested() } else { rtt.is_inflated() }
    }

    /// A window's worth of acknowledged packets doubles it. Beyond the usual it grows only where nothing is lost and no queue
    /// grows.
    fn widen(&mut self, packets: u32, is_inflated: bool) {
        self.clean = self.clean.saturating_add(packets);
        let is_clean = self.selective.is_some() || self.clean >= CLEAN;
        let most = if is_clean && !is_inflated { MOST } else { STEADY };
        if self.packets >= most {
            return;
        }
        let grown = match &mut self.selective {
            Some(selective) if self.packets >= selective.threshold => selective.grow(packets),
            _ => packets,
        };
        self.packets = (self.packets + grown).min(most);
    }

    /// A round trip took too long for the peer's time-outs, because packets wait in queues.
    fn narrow(&mut self) {
        self.narrow_by(self.packets / 4);
    }

    fn narrow_by(&mut self, packets: u32) {
        self.packets = self.packets.saturating_sub(packets).max(LEAST);
        self.clean = 0;
        if let Some(selective) = &mut self.selective {
            selective.threshold = self.packets;
        }
    }
}

impl Selective {
    /// `lost` more packets are lost: the share that is, of some that are enough to tell, where a queue must be full.
    fn loses_much(&mut self, lost: u32) -> Option<f32> {
        self.lost = self.lost.saturating_add(lost);
        if self.lost.saturating_add(self.acked) < SAMPLE {
            return None;
        }
        let (lost, acked) = (core::mem::take(&mut self.lost), core::mem::take(&mut self.acked));
        let share = lost as f32 / (lost as f32 + acked as f32);
        (share > MUCH).then_some(share)
    }

    /// So many packets were acknowledged: by how much the window grows.
    fn grow(&mut self, packets: u32) -> u32 {
        self.grown += packets;
        let by = self.grown / SLOWLY;
        self.grown %= SLOWLY;
        by
    }
}

/// Most packets, while nothing is lost.
const MOST: u32 = 256;
/// As Linux rxe, whose receive queues are made for this many.
const STEADY: u32 = 128;
const LEAST: u32 = 8;
/// Packets that are acknowledged for one by which it grows where losses have narrowed it.
const SLOWLY: u32 = 64;
/// Share of the packets that is lost: more than a bad wire loses.
const MUCH: f32 = 0.1;
/// Packets of which the share that is lost is judged.
const SAMPLE: u32 = 512;
/// Packets without a loss after which a path is taken for a clean one.
const CLEAN: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// A path whose round trips are long against the shortest, or not.
    fn path(is_inflated: bool) -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(Time(0), Time(100_000));
        (0..50).filter(|_| is_inflated).for_each(|_| rtt.sample(Time(0), Time(1_000_000)));
        assert_eq!(rtt.is_inflated(), is_inflated);
        rtt
    }

    #[test]
    fn silence_narrows_and_answers_widen() {
        let mut window = SendWindow::default();
        for _ in 0..10 {
            window.on_timeout();
        }
        assert_eq!(window.window(), LEAST);
        for _ in 0..STEADY {
            window.widen(4, true);
        }
        assert_eq!(window.window(), STEADY);
        for _ in 0..CLEAN {
            window.widen(4, false);
        }
        assert_eq!(window.window(), MOST);
    }

    #[test]
    fn long_queues_narrow_to_the_least() {
        let mut window = SendWindow::default();
        let acked = Acked { packets: 1, is_timed: true, longest_queue: Duration::from_micros(100) };
        (0..20).for_each(|_| window.on_ack(acked, &path(true)));
        assert_eq!(window.window(), LEAST);
    }

    #[test]
    fn what_a_bad_wire_loses_narrows_nothing_and_a_full_queue_does() {
        let acked = |packets| Acked { packets, is_timed: true, longest_queue: Duration::MAX };
        let mut window = SendWindow::default();
        window.set_selective(true);
        window.on_ack(acked(MOST), &path(false));
        assert_eq!(window.window(), MOST);
        for _ in 0..20 {
            window.on_ack(acked(95), &path(false));
            window.on_loss(5, &path(false));
        }
        assert_eq!(window.window(), MOST);
        for _ in 0..80 {
            window.on_ack(acked(100), &path(false));
            window.on_loss(30, &path(false));
        }
        let narrow = window.window();
        assert!(narrow < MOST / 3, "{narrow}");
        window.on_ack(acked(10 * SLOWLY), &path(false));
        assert_eq!(window.window(), narrow + 10);
    }

    #[test]
    fn loss_without_delay_leaves_the_usual_window() {
        let mut window = SendWindow::default();
        window.widen(CLEAN, false);
        assert_eq!(window.window(), MOST);
        for _ in 0..100 {
            window.on_loss(1, &path(false));
        }
        assert_eq!(window.window(), STEADY);
        window.on_loss(1, &path(true));
        assert_eq!(window.window(), STEADY * 3 / 4);
    }
}
