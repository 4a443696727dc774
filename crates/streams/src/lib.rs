//! Memory and messages that the two ends of an accelerated TCP connection share.
//!
//! An end is a process with `librdmesh-sockets.so`, or a relay, which stands for a process of another network namespace or host.
//!
//! * [`ends`]: how a connection is named.
//! * [`ring`]: the slot of a connection, with a ring of bytes for each direction.
//! * [`inbox`]: where one end says to the other which connections to look at.
//! * [`message`]: what is said on the Unix socket between them.
//! * [`report`]: what a process tells of its connections.
//! * [`peer`]: the process at the other end, as far as it can be woken.
//! * [`table`]: where processes of one network namespace find each other.

pub mod ends;
pub mod inbox;
pub mod message;
pub mod peer;
pub mod report;
pub mod ring;
pub mod table;

/// Name of a relay's socket in an endpoint's directory.
pub const RELAY_NAME: &str = "streams.sock";
