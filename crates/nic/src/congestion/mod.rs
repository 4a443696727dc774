//! Congestion control towards RoCEv2 peers.
//!
//! * [`rtt`]: round-trip time, and the retransmission time-out.
//! * [`window`]: the congestion window alone.
//! * [`dcqcn`]: the window, and a rate after congestion notifications.

mod dcqcn;
mod rtt;
mod window;

pub(crate) use dcqcn::Dcqcn;
pub(crate) use rtt::Rtt;

use crate::timer::Time;
use core::time::Duration;

/// Congestion control of one connection: what it may have in flight, and when it may send. It is told what happens; it sets no
/// timer of its own.
pub(crate) trait Controller {
    /// Packets that may be on their way.
    fn window(&self) -> u32;

    /// Time at which the next packet may be sent, where packets are paced.
    fn pacing(&self) -> Option<Time>;

    /// Whether there was no loss for long, or ever.
    fn is_lossless(&self) -> bool;

    /// A packet of `bytes` was sent.
    fn on_sent(&mut self, now: Time, bytes: u64);

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
