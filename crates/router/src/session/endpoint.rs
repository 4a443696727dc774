//! State of an endpoint on the session thread: its account, registered memory and traffic.

use super::account::Account;
use super::traffic::{Told, Traffic};
use crate::memory::Arenas;

/// An endpoint that is open, as the session thread has it.
pub(super) struct Endpoint {
    pub(super) account: Account,
    /// Its programs' registered memory.
    pub(super) arenas: Arenas,
    /// Traffic of its destroyed queue pairs.
    pub(super) traffic: Traffic,
    /// The last reported values of its counters.
    pub(super) told: Option<Told>,
}

impl Endpoint {
    pub(super) fn new(account: Account) -> Self {
        let arenas = Arenas::new(account.disposal.clone());
        Self { account, arenas, traffic: Traffic::default(), told: None }
    }
}
