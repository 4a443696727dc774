//! How fast a queue pair may send to a peer that speaks RoCEv2.
//!
//! * [`rtt`]: round-trip time, and how long to wait for an answer.
//! * [`window`]: how many packets may be on their way.
//! * [`dcqcn`]: the rate after congestion notifications.

mod dcqcn;
mod rtt;
mod window;

pub(crate) use dcqcn::Dcqcn;
pub(crate) use rtt::Rtt;
pub(crate) use window::SendWindow;
