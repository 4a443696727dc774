//! How many packets may be on their way to a peer without congestion control of its own.
//!
//! Loss alone is no sign of congestion: it narrows the window only to what go-back-N can afford to send again. Loss while
//! answers take longer and longer narrows it further, and so does silence.

/// The window, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    packets: u32,
    /// Packets acknowledged since something was last lost.
    clean: u32,
}

impl SendWindow {
    pub(crate) fn new() -> Self {
        Self { packets: STEADY, clean: 0 }
    }

    /// Packets that may be on their way.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
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
        let mut window = SendWindow::new();
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
    fn loss_without_delay_leaves_the_usual_window() {
        let mut window = SendWindow::new();
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
