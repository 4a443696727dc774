//! Netlink messages of RDMA devices (NETLINK_RDMA): parsing of requests, construction of responses.
//!
//! The form of both is that of the kernel's `nldev.c`. Their contents come from [`crate::session`].
//!
//! * [`request`]: requests of a program.
//! * [`message`]: the message builder.
//! * [`describe`]: the attributes of devices, ports and their objects.

mod describe;
mod message;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use describe::{
    CmId, Device, Kind, Port, Resource, describe_chardev, describe_device, describe_port, describe_resource,
    describe_statistic, describe_status, describe_summary, describe_system, handle,
};
pub(crate) use message::Message;
pub(crate) use request::{Question, Request};

/// The device's index: there is one.
pub(crate) const DEVICE: u32 = 0;
