//! Address resolution of peers that are not endpoints, through the kernel's neighbour table. The owner of the manager reads the
//! table and reports the result.

use rdmesh_nic::Time;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Address resolution of a peer, in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Query {
    /// The channel of the requesting program.
    pub(crate) channel: u32,
    pub(crate) dest: Ipv4Addr,
    pub(crate) since: Time,
    /// The program's time-out.
    pub(crate) limit: Time,
    /// A probe has been sent, so that the kernel resolves the address.
    pub(crate) probed: bool,
}

/// Queries in progress, by identifier.
#[derive(Default)]
pub(super) struct Queries(BTreeMap<u32, Query>);

impl Queries {
    pub(super) fn insert(&mut self, number: u32, query: Query) {
        self.0.insert(number, query);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.0.remove(&number);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u32, &Query)> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that a probe has been sent.
    pub(super) fn probed(&mut self, number: u32) {
        if let Some(query) = self.0.get_mut(&number) {
            query.probed = true;
        }
    }
}
