//! State of the thread of rdma_cm, beside what the connection manager keeps: endpoints and channels.

use super::account::{Account, BudgetCharge};
use super::device::OpenDevice;
use crate::budget::Exhausted;
use crate::io::ExternalPath;

/// An endpoint, as the thread knows it.
pub(super) struct Node {
    pub(super) account: Account,
    pub(super) devices: Vec<OpenDevice>,
}

/// A channel.
pub(super) struct CmChannel {
    /// The connection that opened it.
    pub(super) opener: u64,
    /// Connections that use it: the opener's, and its forked children's.
    pub(super) connections: u32,
    /// Its path to external peers.
    pub(super) external: Option<ExternalPath>,
    /// Its charge.
    _charge: BudgetCharge,
}

impl CmChannel {
    /// A channel of an endpoint, charged to its account; `opener` is the connection that opens it.
    pub(super) fn new(opener: u64, account: &Account) -> Result<Self, Exhausted> {
        let charge = BudgetCharge::new(account.share(), MEMORY, DESCRIPTORS)?;
        Ok(Self { opener, connections: 1, external: None, _charge: charge })
    }
}

/// Bytes of the router's memory that a channel takes.
const MEMORY: u64 = 8192;
/// Both ends of its events.
const DESCRIPTORS: u64 = 2;
