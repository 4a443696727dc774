//! Congestion control towards RoCEv2 peers.
//!
//! * [`rtt`]: round-trip time, and the retransmission time-out.
//! * [`window`]: the congestion window.
//! * [`dcqcn`]: the rate after congestion notifications.

mod dcqcn;
mod rtt;
mod window;

pub(crate) use dcqcn::Dcqcn;
pub(crate) use rtt::Rtt;
pub(crate) use window::SendWindow;
