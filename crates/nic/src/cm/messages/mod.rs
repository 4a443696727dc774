//! Connection manager messages as values (IBA 12.6 to 12.8, 12.11), and the positions of their fields in the datagram.

mod connect;
mod control;
mod service;

pub use connect::{PathRecord, Rep, Req};
pub use service::{SidrRep, SidrReq};

pub(super) use connect::Unfit;
pub(super) use control::{Apr, Drep, Dreq, Lap, Mra, Rej, Rejected, Rtu};

#[cfg(test)]
mod tests;
