//! Shared receive queues.

use super::super::objects::ObjectKind;
use super::super::reply::Reply;
use super::Call;
use crate::memory::HostRecvQueue;
use rdmesh_nic::{SrqAttr, SrqInit};
use rdmesh_uverbs::abi::{
    CreateSrq, CreateSrqResponse, CreateXsrq, DestroySrq, DestroySrqResponse, MmapInfo, ModifySrq, QuerySrq,
    QuerySrqResponse, RxeCreateSrqResponse, RxeModifySrq,
};
use rdmesh_uverbs::ring::RecvRing;
use rustix::io::Errno;

pub(super) fn create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: CreateSrq = call.request()?;
    let attr = SrqAttr { max_wr: request.max_wr, max_sge: request.max_sge, limit: request.srq_limit };
    make(call, request.pd_handle, request.user_handle, attr)
}

pub(super) fn create_extended(call: &mut Call<'_>) -> Result<Reply, Errno> {
    const BASIC: u32 = 0;
    const XRC: u32 = 1;
    let request: CreateXsrq = call.request()?;
    let attr = SrqAttr { max_wr: request.max_wr, max_sge: request.max_sge, limit: request.srq_limit };
    match request.srq_type {
        BASIC => make(call, request.pd_handle, request.user_handle, attr),
        // There are no XRC domains, so that none can be named.
        XRC => Err(Errno::INVAL),
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn make(call: &mut Call<'_>, pd: u32, user_handle: u64, asked: SrqAttr) -> Result<Reply, Errno> {
    call.needs_room::<RxeCreateSrqResponse>()?;
    let limits = call.scope.limits;
    let fits = (1..=limits.max_srq_wr).contains(&asked.max_wr)
        && asked.max_sge <= limits.max_srq_sge
        && asked.limit <= limits.max_srq_wr;
    if !fits {
        return Err(Errno::INVAL);
    }
    let charge = call.charge(ObjectKind::Srq)?;
    let max_sge = asked.max_sge.max(1);
    let ring = RecvRing::create(call.scope.context.queues(), asked.max_wr, max_sge)?;
    let mi = MmapInfo { offset: ring.offset, size: ring.len, pad: 0 };
    let attr = SrqAttr { max_wr: ring.slots, max_sge, limit: asked.limit };
    let init = SrqInit { pd, queue: HostRecvQueue::new(ring.ring), attr };
    let srq_handle = call.on_shard(move |shard, c| {
        let srq = shard.engine().device(c)?.context_mut().create_srq(init)?;
        shard.watch_srq(c, srq, user_handle);
        Ok(srq)
    })?;
    call.created(charge);
    let response = CreateSrqResponse { srq_handle, max_wr: attr.max_wr, max_sge, srqn: 0 };
    let driver = RxeCreateSrqResponse { mi, srq_num: srq_handle, reserved: 0 };
    Ok(Reply::new(&response).with_driver(&driver))
}

pub(super) fn modify(call: &mut Call<'_>) -> Result<Reply, Errno> {
    const MAX_WR: u32 = 1;
    const LIMIT: u32 = 2;
    let request: ModifySrq = call.request()?;
    if call.command.driver.len() < size_of::<RxeModifySrq>() {
        return Err(Errno::INVAL);
    }
    let srq = request.srq_handle;
    let present = call.on_shard(move |shard, c| shard.engine().device(c)?.context().query_srq(srq))?;
    let max_wr = (request.attr_mask & MAX_WR != 0).then_some(request.max_wr);
    let limit = (request.attr_mask & LIMIT != 0).then_some(request.srq_limit);
    let bad_size = max_wr.is_some_and(|n| n == 0 || n > call.scope.limits.max_srq_wr || n < present.limit);
    // The limit must suit the size that the queue has before this command, not the new size (rxe_srq_chk_attr).
    if bad_size || limit.is_some_and(|n| n > present.max_wr) {
        return Err(Errno::INVAL);
    }
    let Some(max_wr) = max_wr else {
        call.on_shard(move |shard, c| shard.engine().device(c)?.context_mut().modify_srq(srq, None, limit))?;
        return Ok(Reply::default());
    };
    let ring = RecvRing::create(call.scope.context.queues(), max_wr, present.max_sge)?;
    let mi = MmapInfo { offset: ring.offset, size: ring.len, pad: 0 };
    let resize = (HostRecvQueue::new(ring.ring), ring.slots);
    call.on_shard(move |shard, c| shard.engine().device(c)?.context_mut().modify_srq(srq, Some(resize), limit))?;
    Ok(Reply::default().with_mminfo(&mi))
}

pub(super) fn query(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let srq = call.request::<QuerySrq>()?.srq_handle;
    let attr = call.on_shard(move |shard, c| shard.engine().device(c)?.context().query_srq(srq))?;
    Ok(Reply::new(&QuerySrqResponse { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.limit, reserved: 0 }))
}

pub(super) fn destroy(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let srq = call.request::<DestroySrq>()?.srq_handle;
    let (events_reported, remains) = call.destroy_on_shard(move |shard, c| {
        let remains = shard.engine().device(c)?.context_mut().destroy_srq(srq)?;
        Ok((shard.unwatch_srq(c, srq), remains))
    })?;
    call.discard(remains);
    call.destroyed(ObjectKind::Srq);
    Ok(Reply::new(&DestroySrqResponse { events_reported }))
}
