//! A device context, seen from the program.
//!
//! * [`context`]: opening the device, and what belongs to a context.
//! * [`command`]: a `write()` on the command descriptor.
//! * [`completion`]: completion channels.
//! * [`doorbell`]: the two commands that never become messages.
//! * [`ioctl`]: the newer form of the ABI.
//! * [`channel`]: requests and replies on the socket.

mod channel;
mod command;
pub(crate) mod completion;
mod context;
mod doorbell;
mod ioctl;
#[cfg(test)]
mod tests;

pub(crate) use command::{Written, write};
pub(crate) use context::{Context, open};
pub(crate) use ioctl::{VERBS_IOCTL, verbs_ioctl};
