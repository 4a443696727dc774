//! STUB: signatures only, being written.
#![allow(missing_docs, unused_variables, clippy::unimplemented)]
use crate::command::*;
use crate::platform::Platform;
use crate::time::Time;
use rdmesh_verbs::*;
use std::marker::PhantomData;

pub struct Config {
    pub shard: u32,
    pub shards: u32,
    pub seed: u64,
    pub limits: DeviceLimits,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A completion for which `cq` was armed.
    Completion { context: ContextId, cq: u32 },
    /// `element` is the handle of the QP, CQ or SRQ that the event is about, by kind of event.
    Async { context: ContextId, event: AsyncEvent, element: u32 },
    /// A QP's state changed (also through an error).
    QpState { context: ContextId, qp: u32, state: QpState },
}
pub struct Engine<P: Platform> {
    _p: PhantomData<P>,
}
type R<T> = Result<T, CommandError>;
impl<P: Platform> Engine<P> {
    pub fn new(config: Config) -> Self {
        unimplemented!()
    }
    pub fn open(&mut self, network: Network) -> ContextId {
        unimplemented!()
    }
    pub fn close(&mut self, c: ContextId) {
        unimplemented!()
    }
    pub fn alloc_pd(&mut self, c: ContextId) -> R<u32> {
        unimplemented!()
    }
    pub fn dealloc_pd(&mut self, c: ContextId, pd: u32) -> R<()> {
        unimplemented!()
    }
    /// `iova` is the address under which the region is reached (`hca_va`). Returns handle and key (lkey == rkey).
    pub fn reg_mr(
        &mut self,
        c: ContextId,
        pd: u32,
        iova: u64,
        len: u64,
        access: Access,
        memory: P::Memory,
    ) -> R<(u32, Key)> {
        unimplemented!()
    }
    pub fn dereg_mr(&mut self, c: ContextId, mr: u32) -> R<()> {
        unimplemented!()
    }
    pub fn alloc_mw(&mut self, c: ContextId, pd: u32, kind: MwType) -> R<(u32, Key)> {
        unimplemented!()
    }
    pub fn dealloc_mw(&mut self, c: ContextId, mw: u32) -> R<()> {
        unimplemented!()
    }
    pub fn create_cq(&mut self, c: ContextId, init: CqInit<P>) -> R<u32> {
        unimplemented!()
    }
    /// Unpolled entries move to the new ring; refused (Invalid) where they do not fit.
    pub fn resize_cq(&mut self, c: ContextId, cq: u32, init: CqInit<P>) -> R<()> {
        unimplemented!()
    }
    pub fn destroy_cq(&mut self, c: ContextId, cq: u32) -> R<()> {
        unimplemented!()
    }
    pub fn create_srq(&mut self, c: ContextId, init: SrqInit<P>) -> R<u32> {
        unimplemented!()
    }
    /// Posted entries move to the new ring, when there is one; `limit`: arm.
    pub fn modify_srq(
        &mut self,
        c: ContextId,
        srq: u32,
        resize: Option<(P::RecvQueue, u32)>,
        limit: Option<u32>,
    ) -> R<()> {
        unimplemented!()
    }
    pub fn query_srq(&self, c: ContextId, srq: u32) -> R<SrqAttr> {
        unimplemented!()
    }
    pub fn destroy_srq(&mut self, c: ContextId, srq: u32) -> R<()> {
        unimplemented!()
    }
    pub fn create_qp(&mut self, c: ContextId, init: QpInit<P>) -> R<(u32, Qpn)> {
        unimplemented!()
    }
    pub fn modify_qp(&mut self, now: Time, c: ContextId, qp: u32, attr: &QpAttr, mask: AttrMask) -> R<()> {
        unimplemented!()
    }
    pub fn query_qp(&self, c: ContextId, qp: u32) -> R<QpInfo> {
        unimplemented!()
    }
    pub fn destroy_qp(&mut self, c: ContextId, qp: u32) -> R<()> {
        unimplemented!()
    }
    pub fn create_ah(&mut self, c: ContextId, pd: u32, av: AddressVector) -> R<u32> {
        unimplemented!()
    }
    pub fn destroy_ah(&mut self, c: ContextId, ah: u32) -> R<()> {
        unimplemented!()
    }
    pub fn attach_mcast(&mut self, c: ContextId, qp: u32, gid: Gid) -> R<()> {
        unimplemented!()
    }
    pub fn detach_mcast(&mut self, c: ContextId, qp: u32, gid: Gid) -> R<()> {
        unimplemented!()
    }
    /// Handles of the context's QPs, for listings.
    pub fn qps(&self, c: ContextId) -> Vec<u32> {
        unimplemented!()
    }
}
