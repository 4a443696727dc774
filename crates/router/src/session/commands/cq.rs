//! Completion channels and completion queues.

use super::super::objects::ObjectKind;
use super::super::reply::Reply;
use super::device::COMPLETION_VECTORS;
use super::{Call, Scope};
use crate::memory::HostCompletionQueue;
use crate::worker::EventSocket;
use rdmesh_nic::CqInit;
use rdmesh_uverbs::abi::{
    CreateCompChannel, CreateCompChannelResponse, CreateCq, CreateCqResponse, DestroyCq, DestroyCqResponse, ExCreateCq,
    ExCreateCqResponse, MmapInfo, ReqNotifyCq, ResizeCq, ResizeCqResponse, RxeCreateCqResponse,
};
use rdmesh_uverbs::page::Arm;
use rdmesh_uverbs::ring::CompletionRing;
use rustix::io::Errno;

/// The response carries the channel's number where the library puts the descriptor's: the library remembers the
/// former, and names the channel by it in CREATE_CQ.
pub(super) fn create_channel(call: &mut Call<'_>) -> Result<Reply, Errno> {
    call.request::<CreateCompChannel>()?;
    let charge = call.charge(ObjectKind::Channel)?;
    let (events, fd) = EventSocket::pair()?;
    let channel = call.on_shard(move |shard, c| Ok(shard.add_channel(c, events)))?;
    call.created(charge);
    call.scope.context.completions_mut().add_channel(channel);
    Ok(Reply::new(&CreateCompChannelResponse { fd: channel }).with_install(fd, 0))
}

/// The program has closed its end of `channel`.
pub(super) fn close_channel(mut scope: Scope<'_>, channel: u32) -> Result<(), Errno> {
    if !scope.context.completions_mut().close_channel(channel) {
        return Err(Errno::NOENT);
    }
    remove_unused_channel(&mut scope, channel)
}

fn remove_unused_channel(scope: &mut Scope<'_>, channel: u32) -> Result<(), Errno> {
    if !scope.context.completions().is_unused(channel) {
        return Ok(());
    }
    scope.on_shard(move |shard, c| {
        shard.remove_channel(c, channel);
        Ok(())
    })?;
    scope.context.completions_mut().remove_channel(channel);
    scope.destroyed(ObjectKind::Channel);
    Ok(())
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: CreateCq = call.request()?;
    let made = make(
        call,
        &ExCreateCq {
            user_handle: request.user_handle,
            cqe: request.cqe,
            comp_vector: request.comp_vector,
            comp_channel: request.comp_channel,
            ..Default::default()
        },
    )?;
    Ok(Reply::new(&made.base).with_driver(&made.driver))
}

pub(super) fn ex_create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ExCreateCq = call.request()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(Errno::INVAL);
    }
    let made = make(call, &request)?;
    let response = ExCreateCqResponse {
        base: made.base,
        comp_mask: 0,
        response_length: call.command.out_len.min(size_of::<ExCreateCqResponse>()) as u32,
    };
    Ok(Reply::new(&response).with_driver(&made.driver))
}

struct Made {
    base: CreateCqResponse,
    driver: RxeCreateCqResponse,
}

fn make(call: &mut Call<'_>, request: &ExCreateCq) -> Result<Made, Errno> {
    if request.comp_vector >= COMPLETION_VECTORS {
        return Err(Errno::INVAL);
    }
    let channel = u32::try_from(request.comp_channel).ok();
    if channel.is_some_and(|id| !call.scope.context.completions().has_open_channel(id)) {
        return Err(Errno::BADF);
    }
    call.needs_room::<RxeCreateCqResponse>()?;
    if request.flags & !IGNORE_OVERRUN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let ignores_overrun = request.flags & IGNORE_OVERRUN != 0;
    check_entries(call, request.cqe)?;
    let charge = call.charge(ObjectKind::Cq)?;
    let (queue, cqe, driver) = make_ring(call, request.cqe)?;
    let user_handle = request.user_handle;
    let cq_handle = call.on_shard(move |shard, c| {
        let cq = shard.engine().device(c)?.context_mut().create_cq(CqInit { queue, cqe, ignores_overrun })?;
        shard.watch_cq(c, cq, user_handle, channel);
        Ok(cq)
    })?;
    call.created(charge);
    call.scope.context.completions_mut().add_queue(cq_handle, channel);
    Ok(Made { base: CreateCqResponse { cq_handle, cqe }, driver })
}

fn check_entries(call: &Call<'_>, cqe: u32) -> Result<(), Errno> {
    if (1..=call.scope.limits.max_cqe).contains(&cqe) { Ok(()) } else { Err(Errno::INVAL) }
}

fn make_ring(call: &mut Call<'_>, cqe: u32) -> Result<(HostCompletionQueue, u32, RxeCreateCqResponse), Errno> {
    let ring = CompletionRing::create(call.scope.context.queues(), cqe)?;
    let mi = MmapInfo { offset: ring.offset, size: ring.len, pad: 0 };
    let queue = HostCompletionQueue::new(ring.ring, call.scope.context.page().clone());
    Ok((queue, ring.slots, RxeCreateCqResponse { mi }))
}

pub(super) fn resize(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ResizeCq = call.request()?;
    if !call.scope.context.completions().has_queue(request.cq_handle) {
        return Err(Errno::INVAL);
    }
    call.needs_room::<RxeCreateCqResponse>()?;
    check_entries(call, request.cqe)?;
    let (queue, cqe, driver) = make_ring(call, request.cqe)?;
    let cq = request.cq_handle;
    // Whether the entries fit depends on what had been posted.
    call.settle_cq(cq);
    let remains = call.on_shard(move |shard, c| {
        shard.engine().device(c)?.context_mut().resize_cq(cq, CqInit { queue, cqe, ignores_overrun: false })
    })?;
    call.discard(remains);
    Ok(Reply::new(&ResizeCqResponse { cqe, reserved: 0 }).with_driver(&driver))
}

/// The library arms queues without a message; this is for one that does not.
pub(super) fn request_notify(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ReqNotifyCq = call.request()?;
    if !call.scope.context.completions().has_queue(request.cq_handle) {
        return Err(Errno::INVAL);
    }
    let arm = if request.solicited_only == 0 { Arm::Any } else { Arm::Solicited };
    call.scope.context.page().arm_cq(request.cq_handle, arm);
    Ok(Reply::default())
}

pub(super) fn destroy(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let cq = call.request::<DestroyCq>()?.cq_handle;
    let ((completions, asynchronous), remains) = call.destroy_on_shard(move |shard, c| {
        let remains = shard.engine().device(c)?.context_mut().destroy_cq(cq)?;
        Ok((shard.unwatch_cq(c, cq), remains))
    })?;
    // The next queue with this handle must not find itself armed.
    call.scope.context.page().take_arm(cq, true);
    call.discard(remains);
    call.destroyed(ObjectKind::Cq);
    if let Some(channel) = call.scope.context.completions_mut().remove_queue(cq) {
        remove_unused_channel(&mut call.scope, channel)?;
    }
    Ok(Reply::new(&DestroyCqResponse { comp_events_reported: completions, async_events_reported: asynchronous }))
}

/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 1 << 1;
