//! Congestion window: the number of packets in flight to a peer without congestion control of its own.
//!
//! Loss alone is no sign of congestion: it narrows the window only to what go-back-N can afford to send again, and not at all
//! where only what is lost is sent again. Loss while
//! answers take longer and longer narrows it further, and so do silence, and queues that are long against the ACK time-out:
//! a peer whose time-out they exceed sends everything again, which makes them longer.

use super::{Acked, Controller, Rtt};
use crate::timer::Time;

/// The window, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    packets: u32,
    /// Packets acknowledged since the last loss.
    clean: u32,
    is_lossy: bool,
    /// A loss costs one packet, and not all behind it.
    is_selective: bool,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { packets: STEADY, clean: 0, is_lossy: false, is_selective: false }
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
        match (rtt.queueing() > acked.longest_queue, acked.is_timed) {
            (false, _) => self.widen(acked.packets, self.is_delayed(rtt)),
            (true, true) => self.narrow(),
            (true, false) => {}
        }
    }

    fn on_loss(&mut self, rtt: &Rtt) {
        let lossy = if self.is_selective { self.packets } else { self.packets.min(STEADY) };
        self.packets = if self.is_delayed(rtt) { (lossy - lossy / 4).max(LEAST) } else { lossy };
        self.on_probed_loss();
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
        self.is_selective = is_selective;
    }

    fn stop(&mut self) {}
}

impl SendWindow {
    /// Whether a loss means that there is too much on the way. Where it costs no more than itself, only a long delay says so.
    fn is_delayed(&self, rtt: &Rtt) -> bool {
        if self.is_selective { rtt.is_congested() } else { rtt.is_inflated() }
    }

    /// A window's worth of acknowledged packets doubles it. Beyond the usual it grows only where nothing is lost and no queue
    /// grows.
    fn widen(&mut self, packets: u32, is_inflated: bool) {
        self.clean = self.clean.saturating_add(packets);
        let is_clean = self.is_selective || self.clean >= CLEAN;
        let most = if is_clean && !is_inflated { MOST } else { STEADY };
        if self.packets < most {
            self.packets = (self.packets + packets).min(most);
        }
    }

    /// A round trip took too long for the peer's time-outs, because packets wait in queues.
    fn narrow(&mut self) {
        self.packets = (self.packets - self.packets / 4).max(LEAST);
        self.clean = 0;
    }
}

/// Most packets, while nothing is lost.
const MOST: u32 = 256;
/// As Linux rxe, whose receive queues are made for this many.
const STEADY: u32 = 128;
const LEAST: u32 = 8;
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
    fn loss_without_delay_leaves_the_usual_window() {
        let mut window = SendWindow::default();
        window.widen(CLEAN, false);
        assert_eq!(window.window(), MOST);
        for _ in 0..100 {
            window.on_loss(&path(false));
        }
        assert_eq!(window.window(), STEADY);
        window.on_loss(&path(true));
        assert_eq!(window.window(), STEADY * 3 / 4);
    }
}
