//! Congestion window: the number of packets in flight to a peer without congestion control of its own.
//!
//! Loss alone is no sign of congestion: it narrows the window only to what go-back-N can afford to send again. Loss while
//! answers take longer and longer narrows it further, and so do silence, and queues that are long against the ACK time-out:
//! a peer whose time-out they exceed sends everything again, which makes them longer.

/// The window, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    packets: u32,
    /// Packets acknowledged since the last loss.
    clean: u32,
    is_lossy: bool,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { packets: STEADY, clean: 0, is_lossy: false }
    }
}

impl SendWindow {
    /// Packets that may be on their way.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether there was no loss for long, or ever.
    pub(crate) fn is_lossless(&self) -> bool {
        !self.is_lossy || self.clean >= CLEAN
    }

    /// Records a loss that a probe has found.
    pub(crate) fn note_loss(&mut self) {
        (self.clean, self.is_lossy) = (0, true);
    }

    /// Packets were acknowledged: a window's worth of them doubles it. Beyond the usual it grows only where nothing is lost and
    /// no queue grows.
    pub(crate) fn on_ack(&mut self, packets: u32, is_inflated: bool) {
        self.clean = self.clean.saturating_add(packets);
        let most = if is_inflated || self.clean < CLEAN { STEADY } else { MOST };
        if self.packets < most {
            self.packets = (self.packets + packets).min(most);
        }
    }

    /// Something was lost, perhaps while packets wait in queues.
    pub(crate) fn on_loss(&mut self, is_inflated: bool) {
        let lossy = self.packets.min(STEADY);
        self.packets = if is_inflated { (lossy - lossy / 4).max(LEAST) } else { lossy };
        self.note_loss();
    }

    /// A round trip took too long for the peer's time-outs, because packets wait in queues.
    pub(crate) fn on_delay(&mut self) {
        self.packets = (self.packets - self.packets / 4).max(LEAST);
        self.clean = 0;
    }

    /// The peer was silent for its whole time-out.
    pub(crate) fn on_timeout(&mut self) {
        self.packets = (self.packets / 2).clamp(LEAST, STEADY);
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

    #[test]
    fn silence_narrows_and_answers_widen() {
        let mut window = SendWindow::default();
        for _ in 0..10 {
            window.on_timeout();
        }
        assert_eq!(window.packets(), LEAST);
        for _ in 0..STEADY {
            window.on_ack(4, true);
        }
        assert_eq!(window.packets(), STEADY);
        for _ in 0..CLEAN {
            window.on_ack(4, false);
        }
        assert_eq!(window.packets(), MOST);
    }

    #[test]
    fn long_queues_narrow_to_the_least() {
        let mut window = SendWindow::default();
        (0..20).for_each(|_| window.on_delay());
        assert_eq!(window.packets(), LEAST);
    }

    #[test]
    fn loss_without_delay_leaves_the_usual_window() {
        let mut window = SendWindow::default();
        window.on_ack(CLEAN, false);
        assert_eq!(window.packets(), MOST);
        for _ in 0..100 {
            window.on_loss(false);
        }
        assert_eq!(window.packets(), STEADY);
        window.on_loss(true);
        assert_eq!(window.packets(), STEADY * 3 / 4);
    }
}
