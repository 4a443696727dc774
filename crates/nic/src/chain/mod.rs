//! State of chains: managed queues, their rings and images, and the groups that they form.
//!
//! A *managed* queue executes the work requests in its ring up to a limit that ENABLE raises, lap after lap, and takes no
//! notice of doorbells (`crates/chain` has the rules, and a model of them).
//!
//! * [`queue`]: the two kinds of managed queue; [`ring`]: copies of their slots; [`image`]: what of a slot may change.
//! * [`groups`]: limits, and groups of queues that end together.
//! * [`audit`]: counts, pace, and the requests executed last.
//! * [`pending`]: queues that others have woken or ended.
//! * [`command`]: vocabulary of the commands.

mod audit;
mod command;
mod groups;
mod image;
mod pending;
mod queue;
mod ring;

pub use audit::{Executed, TRACE_BYTES};
pub use command::{ChainEntry, ChainFault, ChainQueue, ChainSlot, ChainState, ChainWait, Manage, ManageSend, RingInit};
pub(crate) use groups::{Chains, Enable, Side, Target};
pub use image::Image;
pub(crate) use pending::Pending;
pub(crate) use queue::{ManagedReceive, ManagedSend};
pub(crate) use ring::RING_ACCESS;

/// Requests with inline data whose copies a managed queue has room for.
pub const INLINE_COPIES: u32 = 64;
