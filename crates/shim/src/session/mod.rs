//! Open devices, on the program's side.
//!
//! * [`context`]: opening uverbs, and the state of a context.
//! * [`command`]: a `write()` on the command descriptor.
//! * [`completion`]: completion channels.
//! * [`doorbell`]: the two commands that are never sent as messages.
//! * [`events`]: the descriptor of asynchronous events; [`gone`]: its contents after the router's death.
//! * [`ioctl`]: the newer form of the ABI.
//! * [`lease`]: how a device outlives its program.
//! * [`counters`]: port counters, read from the router.
//! * [`cm`]: the connection manager's device.
//! * [`filling`]: commands for which the router wants memory.
//! * [`response`]: the response buffer of a command.

pub(crate) mod cm;
mod command;
pub(crate) mod completion;
mod context;
pub(crate) mod counters;
mod doorbell;
mod events;
mod filling;
mod gone;
mod ioctl;
mod lease;
mod response;
#[cfg(test)]
mod tests;

pub(crate) use cm::CmChannel;
pub(crate) use command::{Written, write};
pub(crate) use context::{Context, open};
pub(crate) use gone::end_of_events;
pub(crate) use ioctl::verbs_ioctl;
pub(crate) use lease::Lease;

use rdmesh_preload::{channel, link};
