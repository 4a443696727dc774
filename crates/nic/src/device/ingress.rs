//! Load of the link by which packets of other routers arrive, for their congestion control.

use crate::numbers::Numbers;
use crate::path::NativeConfig;
use crate::timer::Time;
use crate::wire::Telemetry;
use core::time::Duration;

/// The link, as one engine sees it.
#[derive(Debug)]
pub(crate) struct Ingress {
    /// Mb/s; 0 if that is not known.
    rate: u32,
    /// Time in which a packet is handled where there is no queue.
    wake_up: Duration,
    /// Time beyond that which the last packet has waited, in ns.
    waited: u32,
}

impl Ingress {
    /// The link of such a router.
    pub(crate) fn new(native: &NativeConfig) -> Self {
        Self { rate: native.link_rate, wake_up: native.wake_up, waited: 0 }
    }

    /// A packet of `bytes` is handled that the host received at a time, where that is known.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Time, received: Option<Time>, bytes: usize, numbers: &Numbers) {
        if let Some(received) = received {
            let waited = now.0.saturating_sub(received.after(self.wake_up).0);
            self.waited = waited.try_into().unwrap_or(u32::MAX);
        }
        // The counter is shared by all engines: without a rate it would cost without being of use.
        if self.rate != 0 {
            numbers.count_arrived(bytes as u64 + AROUND);
        }
    }

    /// The link's load now.
    pub(crate) fn telemetry(&self, now: Time, numbers: &Numbers) -> Telemetry {
        let carried = (numbers.arrived() / Telemetry::UNIT) as u32;
        Telemetry { at: now.0 as u32, carried, waited: self.waited, rate: self.rate }
    }
}

/// Bytes of a link around a datagram: UDP, IPv4 and Ethernet headers, and the gap between frames.
const AROUND: u64 = 8 + 20 + 14 + 24;
