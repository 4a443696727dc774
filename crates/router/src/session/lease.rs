//! Leases: terms for which contexts outlive their programs.
//!
//! A context with a lease is not closed with its last connection. It *lingers*: worker and engine go on as if the program were
//! still there, everything stays charged, and the context ends with its term, with its endpoint, or by command. A process
//! that has the lease's token may take it over meanwhile.

use super::info::LeaseInfo;
use super::token::random_token;
use crate::budget::{Charge, Resource, Share};
use crate::memory::{ArenaFile, ArenaId};
use rdmesh_nic::Time;
use rdmesh_uverbs::session::Token;
use rustix::io::{self, Errno};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The connections that use a context, and its lease.
pub(super) struct Tenure {
    /// The opener's, its forked children's, and those of processes that have taken it over.
    connections: u32,
    lease: Option<Lease>,
}

/// Fate of a context that a connection has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// Others use it.
    Used,
    /// It was the last one, and there is no lease.
    Unused,
    /// It was the last one: the context lingers until then.
    Lingering(Time),
}

impl Tenure {
    /// That of a context that was opened just now.
    pub(super) fn new() -> Self {
        Self { connections: 1, lease: None }
    }

    /// One more connection uses the context. Returns the end of the term that had begun, if it lingered.
    pub(super) fn join(&mut self) -> Option<Time> {
        self.connections += 1;
        self.lease.as_mut().and_then(Lease::stop)
    }

    /// A connection uses it no more.
    pub(super) fn leave(&mut self, now: Time) -> Left {
        self.connections -= 1;
        match &mut self.lease {
            _ if self.connections != 0 => Left::Used,
            Some(lease) => Left::Lingering(lease.begin(now)),
            None => Left::Unused,
        }
    }

    /// The lease.
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The lease, to be made, changed or given up.
    pub(super) fn lease_mut(&mut self) -> &mut Option<Lease> {
        &mut self.lease
    }
}

/// The lease of a context.
pub(super) struct Lease {
    token: Token,
    term: Duration,
    /// The arena that its program gave with the question, for the process that takes the context over.
    arena: Option<Arena>,
    /// End of the term, while the context lingers.
    ends: Option<Time>,
}

/// A kept arena.
struct Arena {
    id: ArenaId,
    fd: OwnedFd,
    _charge: Charge,
}

impl Lease {
    /// A lease for this term, with a new token.
    pub(super) fn new(term: Duration) -> io::Result<Self> {
        Ok(Self { token: random_token()?, term, arena: None, ends: None })
    }

    /// Its secret.
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Whether `token` is its own, in constant time.
    pub(super) fn has_token(&self, token: &Token) -> bool {
        self.token.is_equal(token)
    }

    /// Changes the term, which begins with the end of the last connection.
    pub(super) fn set_term(&mut self, term: Duration) {
        self.term = term;
    }

    /// Keeps the arena in `file`, whose maker may not let it shrink: closing such a file never blocks.
    pub(super) fn keep_arena(&mut self, file: BorrowedFd<'_>, share: &Share) -> io::Result<()> {
        let id = ArenaFile::sent(file).map_err(|_| Errno::INVAL)?.id();
        if self.arena.as_ref().is_none_or(|kept| kept.id != id) {
            let charge = share.take(Resource::Descriptors, 1)?;
            self.arena = Some(Arena { id, fd: io::fcntl_dupfd_cloexec(file, 0)?, _charge: charge });
        }
        Ok(())
    }

    /// The kept arena, for a process that takes the context over.
    pub(super) fn arena(&self) -> Option<(ArenaId, BorrowedFd<'_>)> {
        self.arena.as_ref().map(|arena| (arena.id, arena.fd.as_fd()))
    }

    /// The last connection has ended. Returns the end of the term.
    fn begin(&mut self, now: Time) -> Time {
        let ends = now.after(self.term);
        self.ends = Some(ends);
        ends
    }

    /// A process has taken the context over. Returns the end of the term that had begun.
    fn stop(&mut self) -> Option<Time> {
        self.ends.take()
    }

    /// End of the term, while the context lingers.
    pub(super) fn ends(&self) -> Option<Time> {
        self.ends
    }

    /// Its description.
    pub(super) fn info(&self, now: Time) -> LeaseInfo {
        LeaseInfo { term: self.term, left: self.ends.map(|ends| between(now, ends)) }
    }
}

/// Contexts that linger, by the ends of their terms.
#[derive(Default)]
pub(super) struct Lingering(BTreeSet<(Time, u32)>);

impl Lingering {
    /// A context lingers until `ends`.
    pub(super) fn add(&mut self, context: u32, ends: Time) {
        self.0.insert((ends, context));
    }

    /// A context lingers no more, which would have until `ends`.
    pub(super) fn remove(&mut self, context: u32, ends: Time) {
        self.0.remove(&(ends, context));
    }

    /// A context whose term is over.
    pub(super) fn take_expired(&mut self, now: Time) -> Option<u32> {
        let (_, context) = self.0.first().copied().filter(|(ends, _)| *ends <= now)?;
        self.0.pop_first();
        Some(context)
    }

    /// Time until the next term is over.
    pub(super) fn next(&self, now: Time) -> Option<Duration> {
        self.0.first().map(|(ends, _)| between(now, *ends))
    }

    /// All of them.
    pub(super) fn contexts(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(_, context)| *context)
    }
}

fn between(now: Time, then: Time) -> Duration {
    Duration::from_nanos(then.0.saturating_sub(now.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_begins_with_the_last_connections_end_and_stops_with_the_next() {
        let mut tenure = Tenure::new();
        *tenure.lease_mut() = Some(Lease::new(Duration::from_nanos(10)).unwrap());
        assert_eq!(tenure.join(), None);
        assert_eq!((tenure.leave(Time(4)), tenure.leave(Time(5))), (Left::Used, Left::Lingering(Time(15))));
        assert_eq!((tenure.join(), tenure.join()), (Some(Time(15)), None));
        assert_eq!(tenure.lease().unwrap().ends(), None);
        tenure.lease_mut().as_mut().unwrap().set_term(Duration::from_nanos(3));
        assert_eq!((tenure.leave(Time(6)), tenure.leave(Time(20))), (Left::Used, Left::Lingering(Time(23))));
        tenure.join();
        *tenure.lease_mut() = None;
        assert_eq!(tenure.leave(Time(24)), Left::Unused);
    }

    #[test]
    fn only_its_own_token_fits() {
        let lease = Lease::new(Duration::ZERO).unwrap();
        let mut other = lease.token();
        assert!(lease.has_token(&other));
        other.0[15] ^= 1;
        assert!(!lease.has_token(&other));
    }

    #[test]
    fn terms_end_in_their_order() {
        let mut lingering = Lingering::default();
        for (context, ends) in [(7, 30), (8, 10), (9, 10)] {
            lingering.add(context, Time(ends));
        }
        assert_eq!(lingering.next(Time(4)), Some(Duration::from_nanos(6)));
        assert_eq!(lingering.take_expired(Time(9)), None);
        lingering.remove(8, Time(10));
        assert_eq!(lingering.take_expired(Time(12)), Some(9));
        assert_eq!((lingering.take_expired(Time(12)), lingering.contexts().collect()), (None, vec![7]));
        assert_eq!(lingering.next(Time(40)), Some(Duration::ZERO));
    }
}
