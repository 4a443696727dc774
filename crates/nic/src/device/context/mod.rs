//! Device context: the objects of one opened device, each under a handle.

mod commands;

use super::cq::Cq;
use super::slab::Slab;
use super::srq::Srq;
use crate::chain::Chains;
use crate::command::{CommandError, CqEntry, PdEntry, QpInit, SrqEntry};
use crate::memory::KeyTable;
use crate::path::Network;
use crate::platform::Platform;
use crate::policy::Policy;
use crate::qp::Core;
use crate::schedule::Owner;
use alloc::vec::Vec;
use rdmesh_verbs::{AddressVector, DeviceLimits};

/// The objects of one opened device, and the commands on them that concern no queue pair.
pub struct Context<P: Platform> {
    pub(crate) network: Network,
    pub(crate) keys: KeyTable<P::Memory>,
    pub(crate) chains: Chains,
    policy: Policy,
    pds: Slab<Pd>,
    cqs: Slab<Cq<P>>,
    srqs: Slab<Srq<P>>,
    ahs: Slab<Ah>,
    /// The engine's own index of each QP, by handle.
    qps: Slab<u32>,
}

/// A protection domain.
#[derive(Default)]
struct Pd {
    /// Queue pairs, shared receive queues and address handles in it.
    users: u32,
}

/// An address handle.
struct Ah {
    pd: u32,
    av: AddressVector,
}

impl<P: Platform> Context<P> {
    pub(crate) fn new(network: Network, limits: &DeviceLimits, seed: u64) -> Self {
        Self {
            network,
            chains: Chains::default(),
            policy: Policy::default(),
            pds: Slab::new(limits.max_pd),
            keys: KeyTable::new(limits.max_mr.saturating_add(limits.max_mw), seed),
            cqs: Slab::new(limits.max_cq),
            srqs: Slab::new(limits.max_srq),
            ahs: Slab::new(limits.max_ah),
            qps: Slab::new(limits.max_qp),
        }
    }

    /// At most `limit` completion queues, from handle `from` on.
    pub fn list_cqs(&self, from: u32, limit: usize) -> Vec<CqEntry> {
        self.cqs.iter_from(from).map(|(handle, cq)| cq.entry(handle)).take(limit).collect()
    }

    /// A completion queue, as the platform made it.
    pub fn completion_queue(&self, cq: u32) -> Option<&P::CompletionQueue> {
        self.cqs.get(cq).map(Cq::queue)
    }

    /// At most `limit` protection domains, from handle `from` on.
    pub fn list_pds(&self, from: u32, limit: usize) -> Vec<PdEntry> {
        self.pds.iter_from(from).map(|(handle, pd)| PdEntry { handle, users: pd.users }).take(limit).collect()
    }

    /// Shared receive queues in the same way, without the queue pairs that receive from them.
    pub(crate) fn srq_entries(&self, from: u32, limit: usize) -> Vec<SrqEntry> {
        self.srqs.iter_from(from).map(|(handle, srq)| srq.entry(handle)).take(limit).collect()
    }

    /// The address in the handle that a ring names: numbers there start at 1.
    pub(crate) fn address(&self, pd: u32, ah_num: u32) -> Option<&AddressVector> {
        self.ahs.get(ah_num.checked_sub(1)?).filter(|ah| ah.pd == pd).map(|ah| &ah.av)
    }

    /// Its endpoint, by a number that is unique on this host.
    pub fn endpoint(&self) -> u32 {
        self.network.endpoint
    }

    /// Policy of its endpoint.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Account whose share of the engine its queue pairs use.
    pub(crate) fn owner(&self) -> Owner {
        Owner { vni: self.network.vni, endpoint: self.network.endpoint }
    }

    pub(crate) fn cq(&mut self, handle: u32) -> Option<&mut Cq<P>> {
        self.cqs.get_mut(handle)
    }

    pub(crate) fn srq(&mut self, handle: u32) -> Option<&mut Srq<P>> {
        self.srqs.get_mut(handle)
    }

    /// The engine's index of a queue pair.
    pub(crate) fn qp(&self, handle: u32) -> Option<u32> {
        self.qps.get(handle).copied()
    }

    /// A queue pair has another index now.
    pub(crate) fn place_qp(&mut self, handle: u32, index: u32) {
        if let Some(place) = self.qps.get_mut(handle) {
            *place = index;
            self.chains.place(handle, index);
        }
    }

    /// Handle and index of each queue pair, from handle `from` on.
    pub(crate) fn qps_from(&self, from: u32) -> impl Iterator<Item = (u32, u32)> {
        self.qps.iter_from(from).map(|(handle, index)| (handle, *index))
    }

    /// Whether the objects exist that a new queue pair names.
    pub(crate) fn check_qp(&self, init: &QpInit<P>) -> Result<(), CommandError> {
        let has_queues = self.cqs.get(init.send_cq).is_some() && self.cqs.get(init.recv_cq).is_some();
        if self.pds.get(init.pd).is_none() || !has_queues {
            return Err(CommandError::NoSuchObject);
        }
        match init.srq {
            Some(srq) => self.srqs.get(srq).map(|_| ()).ok_or(CommandError::NoSuchObject),
            None if init.recv.is_none() => Err(CommandError::Invalid),
            None => Ok(()),
        }
    }

    /// Adds a queue pair, which uses the objects that it names. Returns its handle.
    pub(crate) fn add_qp(&mut self, index: u32, init: &QpInit<P>) -> Option<u32> {
        let handle = self.qps.insert(index)?;
        self.enter_pd(init.pd);
        for cq in [init.send_cq, init.recv_cq] {
            self.cqs.get_mut(cq).into_iter().for_each(Cq::enter);
        }
        init.srq.and_then(|srq| self.srqs.get_mut(srq)).into_iter().for_each(Srq::enter);
        Some(handle)
    }

    /// A queue pair has gone: what it named is no longer in use by it, and windows that were bound to it are unbound.
    pub(crate) fn remove_qp(&mut self, core: &Core<P>) {
        self.forget_chain(core);
        self.qps.remove(core.made().handle);
        self.leave_pd(core.made().pd);
        self.keys.unbind_qp(core.made().qpn);
        for cq in [core.made().send_cq, core.made().recv_cq] {
            self.cqs.get_mut(cq).into_iter().for_each(Cq::leave);
        }
        core.made().srq.and_then(|srq| self.srqs.get_mut(srq)).into_iter().for_each(Srq::leave);
    }

    /// Regions over the rings of a queue pair, and what waits for it, go with it.
    fn forget_chain(&mut self, core: &Core<P>) {
        for (mr, key) in self.chains.leave(core.made().handle) {
            self.keys.remove_key(mr, key);
        }
        if let Some(chain) = &core.send.chain
            && let Some(cq) = chain.waits_for.and_then(|cq| self.cqs.get_mut(cq))
        {
            self.qps.get(core.made().handle).into_iter().for_each(|index| cq.forget(*index));
        }
    }

    /// One more object is in a protection domain.
    fn enter_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
    }

    /// One object less is in a protection domain.
    fn leave_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }
}
