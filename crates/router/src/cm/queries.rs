//! Address resolution of peers that are not endpoints, through the kernel's neighbour table. The owner of the manager reads the
//! table and reports the result.

use super::ConnectionManager;
use super::event::{Event, Kind};
use super::id::State;
use rdmesh_nic::Time;
use rustix::io::Errno;
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
    pub(crate) knocked: bool,
}

impl ConnectionManager {
    /// Queries in progress, by identifier.
    pub(crate) fn queries(&self) -> Vec<(u32, Query)> {
        // An identifier may have gone to another channel meanwhile.
        let present = |(number, query): (&u32, &Query)| {
            let channel = self.ids.get(number).map_or(query.channel, |id| id.channel);
            (*number, Query { channel, ..*query })
        };
        self.queries.iter().map(present).collect()
    }

    /// Whether there are queries in progress.
    pub(crate) fn has_queries(&self) -> bool {
        !self.queries.is_empty()
    }

    /// Records that a probe has been sent.
    pub(crate) fn knocked(&mut self, number: u32) {
        if let Some(query) = self.queries.get_mut(&number) {
            query.knocked = true;
        }
    }

    /// Ends a query: the peer is present, or unreachable.
    pub(crate) fn answer_query(&mut self, number: u32, found: Result<(), Errno>) {
        self.queries.remove(&number);
        let Some(id) = self.ids.get_mut(&number).filter(|id| id.state == State::AddressQuery) else { return };
        let event = match found {
            Ok(()) => {
                id.state = State::AddressResolved;
                Event::new(Kind::AddressResolved)
            }
            Err(errno) => {
                id.state = State::Bound;
                Event::new(Kind::AddressError).with_status(-errno.raw_os_error())
            }
        };
        self.post(number, &event);
    }

    /// Begins a query. For an endpoint with too many of them the peer is assumed to be present.
    pub(super) fn look_for(&mut self, number: u32, query: Query) {
        let endpoint = |number: &u32| self.ids.get(number).map(|id| id.endpoint);
        let mine = endpoint(&number);
        if self.queries.keys().filter(|other| endpoint(other) == mine).count() >= MOST_AT_ONCE {
            return self.answer_query(number, Ok(()));
        }
        self.queries.insert(number, query);
    }
}

/// Maximum number of an endpoint's queries in progress.
const MOST_AT_ONCE: usize = 64;
