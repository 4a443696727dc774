//! Commands on protection domains, memory, completion queues, shared receive queues and address handles.

use super::Engine;
use crate::command::{CommandError, ContextId, CqInit, MwType, Remains, SrqAttr, SrqInit};
use crate::device::{Ah, Cq, Pd, Srq};
use crate::platform::{CompletionQueue, Platform, RecvQueue};
use rdmesh_verbs::{Access, AddressVector, Key};

type Result<T> = std::result::Result<T, CommandError>;
use CommandError::{Busy, Exhausted, Invalid, NoSuchObject};

impl<P: Platform> Engine<P> {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self, id: ContextId) -> Result<u32> {
        self.context_mut(id)?.pds.insert(Pd::default()).ok_or(Exhausted)
    }

    /// Destroys a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, id: ContextId, pd: u32) -> Result<()> {
        let cx = self.context_mut(id)?;
        if cx.pds.get(pd).ok_or(NoSuchObject)?.users != 0 || cx.keys.uses_pd(pd) {
            return Err(Busy);
        }
        cx.pds.remove(pd);
        Ok(())
    }

    /// Registers memory. `iova` is the address under which it is reached. Returns handle and key; lkey and rkey are the same.
    pub fn reg_mr(
        &mut self,
        id: ContextId,
        pd: u32,
        iova: u64,
        len: u64,
        access: Access,
        memory: P::Memory,
    ) -> Result<(u32, Key)> {
        let cx = self.context_mut(id)?;
        cx.pds.get(pd).ok_or(NoSuchObject)?;
        if !access.is_valid_for_mr() {
            return Err(Invalid);
        }
        cx.keys.add_region(pd, iova, len, access, memory).ok_or(Exhausted)
    }

    /// Gives registered memory another protection domain, other access, or both. Returns its key, which stays.
    pub fn rereg_mr(&mut self, id: ContextId, mr: u32, pd: Option<u32>, access: Option<Access>) -> Result<Key> {
        let cx = self.context_mut(id)?;
        if let Some(pd) = pd {
            cx.pds.get(pd).ok_or(NoSuchObject)?;
        }
        if access.is_some_and(|access| !access.is_valid_for_mr()) {
            return Err(Invalid);
        }
        cx.keys.change_region(mr, pd, access).ok_or(NoSuchObject)
    }

    /// Deregisters memory. Packets on their way keep it reachable until they are done.
    pub fn dereg_mr(&mut self, id: ContextId, mr: u32) -> Result<Remains> {
        let cx = self.context_mut(id)?;
        match cx.keys.region(mr) {
            None => Err(NoSuchObject),
            Some((_, 0)) => Ok(Remains::new(cx.keys.remove(mr))),
            Some(_) => Err(Invalid),
        }
    }

    /// Makes an unbound memory window.
    pub fn alloc_mw(&mut self, id: ContextId, pd: u32, kind: MwType) -> Result<(u32, Key)> {
        let cx = self.context_mut(id)?;
        cx.pds.get(pd).ok_or(NoSuchObject)?;
        cx.keys.add_window(pd, kind).ok_or(Exhausted)
    }

    /// Destroys a memory window, bound or not.
    pub fn dealloc_mw(&mut self, id: ContextId, mw: u32) -> Result<()> {
        let cx = self.context_mut(id)?;
        cx.keys.window(mw).ok_or(NoSuchObject)?;
        cx.keys.remove(mw);
        Ok(())
    }

    /// Makes a completion queue.
    pub fn create_cq(&mut self, id: ContextId, init: CqInit<P>) -> Result<u32> {
        let cq = Cq { queue: init.queue, cqe: init.cqe, users: 0, overrun: false };
        self.context_mut(id)?.cqs.insert(cq).ok_or(Exhausted)
    }

    /// Puts a new ring in the place of a completion queue's; entries not yet polled move, or the command is refused.
    pub fn resize_cq(&mut self, id: ContextId, cq: u32, mut init: CqInit<P>) -> Result<Remains> {
        let cq = self.context_mut(id)?.cqs.get_mut(cq).ok_or(NoSuchObject)?;
        if cq.queue.len() > init.cqe {
            return Err(Invalid);
        }
        cq.queue.move_into(&mut init.queue).map_err(|_| Invalid)?;
        cq.cqe = init.cqe;
        Ok(Remains::new(std::mem::replace(&mut cq.queue, init.queue)))
    }

    /// Destroys a completion queue that no QP uses.
    pub fn destroy_cq(&mut self, id: ContextId, cq: u32) -> Result<Remains> {
        let cx = self.context_mut(id)?;
        if cx.cqs.get(cq).ok_or(NoSuchObject)?.users != 0 {
            return Err(Busy);
        }
        Ok(Remains::new(cx.cqs.remove(cq)))
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, id: ContextId, init: SrqInit<P>) -> Result<u32> {
        let cx = self.context_mut(id)?;
        cx.pds.get(init.pd).ok_or(NoSuchObject)?;
        let srq = Srq { pd: init.pd, queue: init.queue, attr: init.attr, users: 0 };
        let handle = cx.srqs.insert(srq).ok_or(Exhausted)?;
        cx.enter_pd(init.pd);
        Ok(handle)
    }

    /// Puts a new ring (with the entries that it holds) in the place of an SRQ's, arms its limit event, or both. Requests
    /// posted move to the new ring, or the command is refused.
    pub fn modify_srq(
        &mut self,
        id: ContextId,
        srq: u32,
        resize: Option<(P::RecvQueue, u32)>,
        limit: Option<u32>,
    ) -> Result<()> {
        let srq = self.context_mut(id)?.srqs.get_mut(srq).ok_or(NoSuchObject)?;
        let max_wr = resize.as_ref().map_or(srq.attr.max_wr, |(_, max_wr)| *max_wr);
        if limit.is_some_and(|limit| limit > max_wr) {
            return Err(Invalid);
        }
        if let Some((mut queue, max_wr)) = resize {
            srq.queue.move_into(&mut queue).map_err(|_| Invalid)?;
            srq.queue = queue;
            srq.attr.max_wr = max_wr;
        }
        if let Some(limit) = limit {
            srq.attr.limit = limit;
        }
        Ok(())
    }

    /// An SRQ's sizes and limit.
    pub fn query_srq(&self, id: ContextId, srq: u32) -> Result<SrqAttr> {
        Ok(self.context(id)?.srqs.get(srq).ok_or(NoSuchObject)?.attr)
    }

    /// Destroys an SRQ that no QP uses.
    pub fn destroy_srq(&mut self, id: ContextId, srq: u32) -> Result<Remains> {
        let cx = self.context_mut(id)?;
        if cx.srqs.get(srq).ok_or(NoSuchObject)?.users != 0 {
            return Err(Busy);
        }
        let srq = cx.srqs.remove(srq);
        srq.iter().for_each(|srq| cx.leave_pd(srq.pd));
        Ok(Remains::new(srq))
    }

    /// Makes an address handle. In send rings it goes by its handle plus one.
    pub fn create_ah(&mut self, id: ContextId, pd: u32, av: AddressVector) -> Result<u32> {
        let cx = self.context_mut(id)?;
        cx.pds.get(pd).ok_or(NoSuchObject)?;
        let handle = cx.ahs.insert(Ah { pd, av }).ok_or(Exhausted)?;
        cx.enter_pd(pd);
        Ok(handle)
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, id: ContextId, ah: u32) -> Result<()> {
        let cx = self.context_mut(id)?;
        let ah = cx.ahs.remove(ah).ok_or(NoSuchObject)?;
        cx.leave_pd(ah.pd);
        Ok(())
    }
}
