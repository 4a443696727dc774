//! Congestion control of reliable connections.
//!
//! * [`rtt`]: round-trip time, and the retransmission time-out.
//! * [`window`]: the congestion window alone.
//! * [`dcqcn`]: the window, and a rate after congestion notifications.
//! * [`hpcc`]: between routers by choice: a window that follows telemetry.

mod dcqcn;
mod hpcc;
mod rtt;
mod window;

pub(crate) use hpcc::Hop;
pub(crate) use rtt::Rtt;

use crate::timer::Time;
use crate::wire::Telemetry;
use alloc::boxed::Box;
use core::time::Duration;
use dcqcn::Dcqcn;
use hpcc::Hpcc;

/// Congestion control of reliable connections between routers. External peers know only DCQCN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CongestionControl {
    /// A window that narrows where many packets are lost, or wait for long.
    #[default]
    Window,
    /// HPCC: a window that follows the load of links, as routers report it.
    Hpcc,
}

/// Congestion control of one connection: what it may have in flight, and when it may send. It is told what happens; it sets no
/// timer of its own.
pub(crate) trait Controller {
    /// Packets that may be on their way.
    fn window(&self) -> u32;

    /// Packets of READ responses that may be on their way, where nothing is lost: the receive queues that are made for requests do not
    /// hold them up.
    fn read_window(&self) -> u32 {
        self.window() * 2
    }

    /// Time at which the next packet may be sent, where packets are paced.
    fn pacing(&self) -> Option<Time>;

    /// Whether there was no loss for long, or ever.
    fn is_lossless(&self) -> bool;

    /// A packet of `bytes` was sent.
    fn on_sent(&mut self, now: Time, bytes: u64);

    /// READ responses of `bytes` in so many packets were asked for.
    fn on_asked(&mut self, _now: Time, _bytes: u64, _packets: u32) {}

    /// Packets were acknowledged.
    fn on_ack(&mut self, acked: Acked, rtt: &Rtt);

    /// So many packets were lost, as the peer reports: at most once in a round trip.
    fn on_loss(&mut self, lost: u32, rtt: &Rtt);

    /// A packet was lost, as the answer to a probe shows.
    fn on_probed_loss(&mut self);

    /// The peer was silent for its whole time-out.
    fn on_timeout(&mut self);

    /// A congestion notification packet arrived, on a path with packets of at most `mtu` bytes.
    fn on_cnp(&mut self, now: Time, rtt: &Rtt, mtu: u32);

    /// The peer does not report its load.
    fn on_no_telemetry(&mut self) {}

    /// A hop has reported its load.
    fn on_telemetry(&mut self, _now: Time, _hop: Hop, _telemetry: Telemetry, _rtt: &Rtt) {}

    /// A loss costs one packet, or all behind it.
    fn set_selective(&mut self, is_selective: bool);

    /// Sending has ended: pacing begins anew with the next packet, if there is one.
    fn stop(&mut self);
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) packets: u32,
    /// Whether the round trip of one of them was measured.
    pub(crate) is_timed: bool,
    /// Time that packets may wait in queues before the peer takes them for lost.
    pub(crate) longest_queue: Duration,
}

/// Congestion control of a connection, as was chosen.
#[derive(Debug)]
pub(crate) enum Congestion {
    Dcqcn(Dcqcn),
    Hpcc(Box<Hpcc>),
}

impl Default for Congestion {
    fn default() -> Self {
        Self::Dcqcn(Dcqcn::default())
    }
}

impl Congestion {
    /// That of a connection to another router.
    pub(crate) fn new(control: CongestionControl) -> Self {
        match control {
            CongestionControl::Window => Self::default(),
            CongestionControl::Hpcc => Self::Hpcc(Box::default()),
        }
    }

    /// The algorithm that was chosen for the connection.
    pub(crate) fn control(&self) -> CongestionControl {
        match self {
            Self::Dcqcn(_) => CongestionControl::Window,
            Self::Hpcc(_) => CongestionControl::Hpcc,
        }
    }

    /// Whether it follows telemetry.
    pub(crate) fn wants_telemetry(&self) -> bool {
        matches!(self, Self::Hpcc(_))
    }
}

/// Calls the method of the one that was chosen.
macro_rules! chosen {
    ($of:expr, $control:ident => $call:expr) => {
        match $of {
            Congestion::Dcqcn($control) => $call,
            Congestion::Hpcc($control) => $call,
        }
    };
}

impl Controller for Congestion {
    #[inline]
    fn window(&self) -> u32 {
        chosen!(self, control => control.window())
    }

    #[inline]
    fn read_window(&self) -> u32 {
        chosen!(self, control => control.read_window())
    }

    #[inline]
    fn pacing(&self) -> Option<Time> {
        chosen!(self, control => control.pacing())
    }

    #[inline]
    fn is_lossless(&self) -> bool {
        chosen!(self, control => control.is_lossless())
    }

    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u64) {
        chosen!(self, control => control.on_sent(now, bytes));
    }

    fn on_asked(&mut self, now: Time, bytes: u64, packets: u32) {
        chosen!(self, control => control.on_asked(now, bytes, packets));
    }

    fn on_ack(&mut self, acked: Acked, rtt: &Rtt) {
        chosen!(self, control => control.on_ack(acked, rtt));
    }

    fn on_loss(&mut self, lost: u32, rtt: &Rtt) {
        chosen!(self, control => control.on_loss(lost, rtt));
    }

    fn on_probed_loss(&mut self) {
        chosen!(self, control => control.on_probed_loss());
    }

    fn on_timeout(&mut self) {
        chosen!(self, control => control.on_timeout());
    }

    fn on_cnp(&mut self, now: Time, rtt: &Rtt, mtu: u32) {
        chosen!(self, control => control.on_cnp(now, rtt, mtu));
    }

    fn on_no_telemetry(&mut self) {
        chosen!(self, control => control.on_no_telemetry());
    }

    fn on_telemetry(&mut self, now: Time, hop: Hop, telemetry: Telemetry, rtt: &Rtt) {
        chosen!(self, control => control.on_telemetry(now, hop, telemetry, rtt));
    }

    fn set_selective(&mut self, is_selective: bool) {
        chosen!(self, control => control.set_selective(is_selective));
    }

    fn stop(&mut self) {
        chosen!(self, control => control.stop());
    }
}
