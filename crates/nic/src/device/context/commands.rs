//! Commands on protection domains, memory, completion queues, shared receive queues and address handles.

use super::{Ah, Context, Cq, Pd, Srq};
use crate::command::{CommandError, CqInit, DeferredDrop, MwType, SrqAttr, SrqInit};
use crate::platform::Platform;
use rdmesh_verbs::{Access, AddressVector, Key};

type Result<T> = core::result::Result<T, CommandError>;
use CommandError::{Busy, Exhausted, Invalid, NoSuchObject};

impl<P: Platform> Context<P> {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<u32> {
        self.pds.insert(Pd::default()).ok_or(Exhausted)
    }

    /// Destroys a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<()> {
        if self.pds.get(pd).ok_or(NoSuchObject)?.users != 0 || self.keys.uses_pd(pd) {
            return Err(Busy);
        }
        self.pds.remove(pd);
        Ok(())
    }

    /// Registers memory. `iova` is the address under which it is reached. Returns handle and key; lkey and rkey are the same.
    pub fn reg_mr(&mut self, pd: u32, iova: u64, len: u64, access: Access, memory: P::Memory) -> Result<(u32, Key)> {
        self.pds.get(pd).ok_or(NoSuchObject)?;
        if !access.is_valid_for_mr() {
            return Err(Invalid);
        }
        self.keys.add_region(pd, iova, len, access, memory).ok_or(Exhausted)
    }

    /// Gives registered memory another protection domain, other access, or both. Returns its key, which stays.
    pub fn rereg_mr(&mut self, mr: u32, pd: Option<u32>, access: Option<Access>) -> Result<Key> {
        if let Some(pd) = pd {
            self.pds.get(pd).ok_or(NoSuchObject)?;
        }
        if access.is_some_and(|access| !access.is_valid_for_mr()) {
            return Err(Invalid);
        }
        self.keys.change_region(mr, pd, access).ok_or(NoSuchObject)
    }

    /// Deregisters memory. Packets on their way keep it reachable until they are done.
    pub fn dereg_mr(&mut self, mr: u32) -> Result<DeferredDrop> {
        match self.keys.region(mr) {
            None => Err(NoSuchObject),
            Some((_, 0)) => {
                self.chains.forget_region(mr);
                Ok(DeferredDrop::new(self.keys.remove(mr)))
            }
            Some(_) => Err(Invalid),
        }
    }

    /// Makes an unbound memory window.
    pub fn alloc_mw(&mut self, pd: u32, kind: MwType) -> Result<(u32, Key)> {
        self.pds.get(pd).ok_or(NoSuchObject)?;
        self.keys.add_window(pd, kind).ok_or(Exhausted)
    }

    /// Destroys a memory window, bound or not.
    pub fn dealloc_mw(&mut self, mw: u32) -> Result<()> {
        self.keys.window(mw).ok_or(NoSuchObject)?;
        self.keys.remove(mw);
        Ok(())
    }

    /// Makes a completion queue.
    pub fn create_cq(&mut self, init: CqInit<P>) -> Result<u32> {
        self.cqs.insert(Cq::new(init)).ok_or(Exhausted)
    }

    /// Puts a new ring in the place of a completion queue's; entries not yet polled move, or the command is refused.
    pub fn resize_cq(&mut self, cq: u32, init: CqInit<P>) -> Result<DeferredDrop> {
        self.cqs.get_mut(cq).ok_or(NoSuchObject)?.resize(init).map(DeferredDrop::new)
    }

    /// Destroys a completion queue that no QP uses.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<DeferredDrop> {
        if self.cqs.get(cq).ok_or(NoSuchObject)?.is_used() {
            return Err(Busy);
        }
        Ok(DeferredDrop::new(self.cqs.remove(cq)))
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, init: SrqInit<P>) -> Result<u32> {
        let pd = init.pd;
        self.pds.get(pd).ok_or(NoSuchObject)?;
        let handle = self.srqs.insert(Srq::new(init)).ok_or(Exhausted)?;
        self.enter_pd(pd);
        Ok(handle)
    }

    /// Puts a new ring (with the entries that it holds) in the place of an SRQ's, arms its limit event, or both. Requests
    /// posted move to the new ring, or the command is refused.
    pub fn modify_srq(&mut self, srq: u32, resize: Option<(P::RecvQueue, u32)>, limit: Option<u32>) -> Result<()> {
        self.srqs.get_mut(srq).ok_or(NoSuchObject)?.modify(resize, limit)
    }

    /// An SRQ's sizes and limit.
    pub fn query_srq(&self, srq: u32) -> Result<SrqAttr> {
        Ok(self.srqs.get(srq).ok_or(NoSuchObject)?.attr())
    }

    /// Destroys an SRQ that no QP uses.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<DeferredDrop> {
        if self.srqs.get(srq).ok_or(NoSuchObject)?.is_used() {
            return Err(Busy);
        }
        let srq = self.srqs.remove(srq);
        srq.iter().for_each(|srq| self.leave_pd(srq.pd()));
        Ok(DeferredDrop::new(srq))
    }

    /// Makes an address handle. In send rings it goes by its handle plus one.
    pub(crate) fn add_ah(&mut self, pd: u32, av: AddressVector) -> Result<u32> {
        self.pds.get(pd).ok_or(NoSuchObject)?;
        let handle = self.ahs.insert(Ah { pd, av }).ok_or(Exhausted)?;
        self.enter_pd(pd);
        Ok(handle)
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, ah: u32) -> Result<()> {
        let ah = self.ahs.remove(ah).ok_or(NoSuchObject)?;
        self.leave_pd(ah.pd);
        Ok(())
    }
}
