//! Lease of a device: it outlives its program for a term.
//!
//! A program that closes the device gives its lease up; one that ends without that does not.

use super::Context;
use crate::memory;
use rdmesh_uverbs::session::linger::{Ask, Call, Granted};
use rdmesh_uverbs::session::{RequestKind, Token};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// The lease of an open device.
#[derive(Default)]
pub(crate) struct Lease {
    is_asked_for: AtomicBool,
}

impl Lease {
    /// Asks for a lease for `context`, or changes its term. Returns its token.
    pub(crate) fn ask(&self, context: &Context, term: Duration) -> Result<Token, Errno> {
        // Before the router has it: memory that is registered meanwhile lies in the same arena.
        let arena = memory::arena_descriptor()?;
        let term = u64::try_from(term.as_millis()).unwrap_or(u64::MAX);
        let body = Call::Ask.body(&Ask { term });
        let parse = |response: &[u8]| Granted::read_from_bytes(response).map(|granted| granted.token).ok();
        let token =
            context.link().call_with(RequestKind::Linger, &body, &[arena.as_fd()], |reply| parse(reply.response()))?;
        self.is_asked_for.store(true, Ordering::Release);
        token.ok_or(Errno::IO)
    }

    /// Gives the lease of `context` up.
    pub(crate) fn give_up(&self, context: &Context) -> Result<(), Errno> {
        context.link().call(RequestKind::Linger, &Self::farewell(), |_| ())?;
        self.is_asked_for.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether there is one.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.is_asked_for.load(Ordering::Acquire)
    }

    /// The message that gives it up.
    pub(crate) fn farewell() -> Vec<u8> {
        Call::GiveUp.body(&[] as &[u8])
    }
}
