//! Device context: the objects of one opened device, each under a handle.

use super::slab::Slab;
use crate::command::SrqAttr;
use crate::memory::KeyTable;
use crate::path::Network;
use crate::platform::Platform;
use crate::schedule::Owner;
use rdmesh_verbs::{AddressVector, DeviceLimits};

pub(crate) struct Context<P: Platform> {
    pub(crate) network: Network,
    pub(crate) pds: Slab<Pd>,
    pub(crate) keys: KeyTable<P::Memory>,
    pub(crate) cqs: Slab<Cq<P>>,
    pub(crate) srqs: Slab<Srq<P>>,
    pub(crate) ahs: Slab<Ah>,
    /// The engine's own index of each QP, by handle.
    pub(crate) qps: Slab<u32>,
}

/// A protection domain.
#[derive(Default)]
pub(crate) struct Pd {
    /// Queue pairs, shared receive queues and address handles in it.
    pub(crate) users: u32,
}

pub(crate) struct Cq<P: Platform> {
    pub(crate) queue: P::CompletionQueue,
    /// Entries that it has room for.
    pub(crate) cqe: u32,
    pub(crate) users: u32,
    pub(crate) overrun: bool,
}

pub(crate) struct Srq<P: Platform> {
    pub(crate) pd: u32,
    pub(crate) queue: P::RecvQueue,
    pub(crate) attr: SrqAttr,
    pub(crate) users: u32,
}

pub(crate) struct Ah {
    pub(crate) pd: u32,
    pub(crate) av: AddressVector,
}

impl<P: Platform> Context<P> {
    /// One more object is in a protection domain.
    pub(crate) fn enter_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
    }

    /// One object less is in a protection domain.
    pub(crate) fn leave_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    /// The address handle that a ring names: numbers there start at 1.
    pub(crate) fn address(&self, pd: u32, ah_num: u32) -> Option<&Ah> {
        self.ahs.get(ah_num.checked_sub(1)?).filter(|ah| ah.pd == pd)
    }

    /// Account whose share of the engine its queue pairs use.
    pub(crate) fn owner(&self) -> Owner {
        Owner { vni: self.network.vni, endpoint: self.network.endpoint }
    }

    pub(crate) fn new(network: Network, limits: &DeviceLimits, seed: u64) -> Self {
        Self {
            network,
            pds: Slab::new(limits.max_pd),
            keys: KeyTable::new(limits.max_mr.saturating_add(limits.max_mw), seed),
            cqs: Slab::new(limits.max_cq),
            srqs: Slab::new(limits.max_srq),
            ahs: Slab::new(limits.max_ah),
            qps: Slab::new(limits.max_qp),
        }
    }
}
