//! Packet captures in progress.

use super::Engine;
use crate::capture::{Capture, CaptureFilter, Captured};
use crate::platform::Platform;

impl<P: Platform> Engine<P> {
    /// Begins to copy the packets that `filter` describes. Returns a number for [`Engine::poll_capture`].
    pub fn start_capture(&mut self, filter: CaptureFilter) -> u32 {
        let id = self.out.captures.iter().map(|capture| capture.id + 1).max().unwrap_or(0);
        self.out.captures.push(Capture::new(id, filter));
        id
    }

    /// The next copy of a packet.
    pub fn poll_capture(&mut self, id: u32) -> Option<Captured> {
        self.out.captures.iter_mut().find(|capture| capture.id == id)?.next()
    }

    /// Ends a capture. Returns how many packets were not copied because the copies were not read in time.
    pub fn stop_capture(&mut self, id: u32) -> u64 {
        let Some(at) = self.out.captures.iter().position(|capture| capture.id == id) else { return 0 };
        self.out.captures.swap_remove(at).lost()
    }
}
