//! How many packets may be on their way to a peer without congestion control of its own.
//!
//! Loss alone is no sign of congestion: it does not narrow the window. Loss while answers take longer and longer does, and
//! so does silence.

/// The window, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    packets: u32,
    /// Packets acknowledged since the window last grew.
    credit: u32,
}

impl SendWindow {
    pub(crate) fn new() -> Self {
        Self { packets: MOST, credit: 0 }
    }

    /// Packets that may be on their way.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Packets were acknowledged: a window's worth of them doubles it.
    pub(crate) fn on_ack(&mut self, packets: u32) {
        if self.packets == MOST {
            return;
        }
        self.credit += packets;
        let grown = self.credit / 2;
        self.credit -= grown * 2;
        self.packets = (self.packets + grown.max(1)).min(MOST);
    }

    /// Something was lost while packets wait in queues.
    pub(crate) fn on_congestion(&mut self) {
        self.packets = (self.packets - self.packets / 4).max(LEAST);
        self.credit = 0;
    }

    /// The peer was silent for its whole time-out.
    pub(crate) fn on_timeout(&mut self) {
        self.packets = (self.packets / 2).max(LEAST);
        self.credit = 0;
    }
}

/// As Linux rxe, whose receive queues are made for this many.
const MOST: u32 = 128;
const LEAST: u32 = 8;

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
        for _ in 0..MOST {
            window.on_ack(4);
        }
        assert_eq!(window.packets(), MOST);
        window.on_congestion();
        assert_eq!(window.packets(), MOST * 3 / 4);
    }
}
