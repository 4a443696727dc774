//! Protection domains, memory regions, memory windows.

use super::super::account::Item;
use super::super::objects::ObjectKind;
use super::super::regions::{Pages, Region};
use super::super::reply::Reply;
use super::Call;
use crate::memory::{ArenaFile, Arenas, ProcessMemory, RegionError, Stretch, TenantMemory};
use rdmesh_nic::MwType;
use rdmesh_uverbs::abi::{
    AllocMw, AllocMwResponse, AllocPd, AllocPdResponse, DeallocMw, DeallocPd, DeregMr, RegMr, RegMrResponse,
};
use rdmesh_uverbs::session::{Segment, SegmentKind};
use rdmesh_uverbs::shared::MapError;
use rdmesh_verbs::Access;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

const PAGE_MASK: u64 = 4095;

pub(super) fn alloc_pd(call: &mut Call<'_>) -> Result<Reply, Errno> {
    call.request::<AllocPd>()?;
    let charge = call.charge(ObjectKind::Pd)?;
    let pd_handle = call.on_shard(|shard, c| shard.engine().device(c)?.context_mut().alloc_pd())?;
    call.created(charge);
    Ok(Reply::new(&AllocPdResponse { pd_handle }))
}

pub(super) fn dealloc_pd(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let pd = call.request::<DeallocPd>()?.pd_handle;
    call.destroy_on_shard(move |shard, c| shard.engine().device(c)?.context_mut().dealloc_pd(pd))?;
    call.destroyed(ObjectKind::Pd);
    Ok(Reply::default())
}

pub(super) fn reg_mr(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: RegMr = call.request()?;
    if (request.start ^ request.hca_va) & PAGE_MASK != 0 {
        return Err(Errno::INVAL);
    }
    let access = Access::from_bits(request.access_flags).filter(|a| a.is_valid_for_mr()).ok_or(Errno::INVAL)?;
    let charge = call.charge(ObjectKind::Mr)?;
    let is_on_demand = access.contains(Access::ON_DEMAND);
    let pinned = if is_on_demand { 0 } else { request.length };
    let bytes = call.scope.charge(Item::Pinned, pinned)?;
    refuse_mortal(call, is_on_demand)?;

    let memory = if is_on_demand && request.start == 0 && request.length == u64::MAX {
        whole_memory(call, &request)?
    } else {
        region_memory(call, &request, is_on_demand)?
    };
    let pages = pages_of(call, is_on_demand);
    let (pd, iova, len) = (request.pd_handle, request.hca_va, request.length);
    let (mr_handle, key) =
        call.on_shard(move |shard, c| shard.engine().device(c)?.context_mut().reg_mr(pd, iova, len, access, memory))?;
    call.created(charge);
    call.scope.context.holdings_mut().add(bytes);
    call.scope.context.regions_mut().insert(mr_handle, Region { pd, key, iova, len, access, pinned, pages });
    Ok(Reply::new(&RegMrResponse { mr_handle, lkey: key.0, rkey: key.0 }))
}

/// Whether the pages of the region that is to be made are private, or some of them.
fn is_private(call: &Call<'_>, is_on_demand: bool) -> bool {
    is_on_demand || call.segments.iter().any(|segment| segment.kind != SegmentKind::Arena as u32)
}

/// Private pages go with their process: a context that is to outlive it has no region with some.
fn refuse_mortal(call: &Call<'_>, is_on_demand: bool) -> Result<(), Errno> {
    let has_lease = call.scope.context.tenure().lease().is_some();
    if has_lease && is_private(call, is_on_demand) { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

/// Pages of the region that was made just now.
fn pages_of(call: &Call<'_>, is_on_demand: bool) -> Pages {
    match (call.scope.program.arena(), call.segments) {
        (Some(arena), segments) if !is_private(call, is_on_demand) => {
            Pages::Arena(arena, if let [segment] = segments { Some(segment.offset) } else { None })
        }
        _ => Pages::Private,
    }
}

/// All of the program's memory, present or not yet (implicit on-demand paging).
fn whole_memory(call: &Call<'_>, request: &RegMr) -> Result<TenantMemory, Errno> {
    if request.hca_va != 0 {
        return Err(Errno::INVAL);
    }
    Ok(TenantMemory::whole_process(process_memory(call)?))
}

fn region_memory(call: &mut Call<'_>, request: &RegMr, is_on_demand: bool) -> Result<TenantMemory, Errno> {
    let (start, len) = (request.start, request.length);
    if len == 0 || start.checked_add(len).and_then(|end| end.checked_add(PAGE_MASK)).is_none() {
        return Err(Errno::INVAL);
    }
    // Memory that is faulted in on demand is not converted: such a segment would be mapped without being charged.
    if is_on_demand && call.segments.iter().any(|s| s.kind == SegmentKind::Arena as u32) {
        return Err(Errno::INVAL);
    }
    let needs_process = call.segments.iter().any(|s| s.kind != SegmentKind::Arena as u32);
    let process = if needs_process { Some(process_memory(call)?) } else { None };
    let scope = &mut call.scope;
    // The library sends its arena once, and again where more of it has to be mapped.
    let arena = match call.fds.first() {
        Some(fd) => Some(ArenaFile::sent(fd.as_fd()).map_err(region_errno)?),
        None => scope.program.arena().map(ArenaFile::known),
    };
    let arena = arena.filter(|_| call.segments.iter().any(|s| s.kind == SegmentKind::Arena as u32));
    // Stretches of it may be there already; then the segments are of what is behind them.
    let from = Stretch::end(scope.stretches).unwrap_or(start);
    let left = start.checked_add(len).and_then(|end| end.checked_sub(from)).ok_or(Errno::INVAL)?;
    let made = scope.endpoint.arenas.region(scope.number, from, left, call.segments, arena, process);
    let made = match scope.stretches {
        [] => made,
        stretches => {
            let share = scope.endpoint.account.share();
            made.and_then(|rest| TenantMemory::joined(start, len, stretches, rest, share))
        }
    };
    if made.is_ok()
        && let Some(arena) = arena
    {
        scope.program.set_arena(arena.id());
    }
    made.map_err(region_errno)
}

/// A stretch of a guest's registration, for context `user`.
pub(in super::super) fn stretch(
    arenas: &mut Arenas,
    user: u32,
    segments: &[Segment],
    fds: &[OwnedFd],
) -> Result<Stretch, Errno> {
    let start = segments.first().ok_or(Errno::INVAL)?.addr;
    let arena = ArenaFile::sent(fds.first().ok_or(Errno::INVAL)?.as_fd()).map_err(region_errno)?;
    let len = segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len)).ok_or(Errno::INVAL)?;
    let memory = arenas.region(user, start, len, segments, Some(arena), None).map_err(region_errno)?;
    Stretch::new(start, len, memory).ok_or(Errno::INVAL)
}

fn region_errno(error: RegionError) -> Errno {
    match error {
        RegionError::Exhausted(exhausted) => exhausted.into(),
        RegionError::Unknown => Errno::NODATA,
        RegionError::TooMany => Errno::NOMEM,
        RegionError::Map(MapError::Os(errno @ (Errno::NOMEM | Errno::MFILE | Errno::NFILE))) => errno,
        RegionError::Gap | RegionError::Map(_) => Errno::INVAL,
        RegionError::NoProcess | RegionError::Missing => Errno::FAULT,
    }
}

/// The memory of the process at the other end.
fn process_memory(call: &Call<'_>) -> Result<ProcessMemory, Errno> {
    let memory = call.scope.memory.clone().unwrap_or(Err(Errno::FAULT));
    memory.map_err(|errno| if errno == Errno::NFILE { errno } else { Errno::FAULT })
}

pub(super) fn dereg_mr(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let mr = call.request::<DeregMr>()?.mr_handle;
    drop(call.destroy_on_shard(move |shard, c| shard.engine().device(c)?.context_mut().dereg_mr(mr))?);
    call.destroyed(ObjectKind::Mr);
    if let Some(region) = call.scope.context.regions_mut().remove(mr) {
        if let Pages::Ring { qp } = region.pages
            && let Some(queue) = call.scope.context.managed_mut().get_mut(qp)
        {
            queue.forget_region(mr);
        }
        call.scope.context.holdings_mut().give_back(Item::Pinned, region.pinned);
    }
    Ok(Reply::default())
}

pub(super) fn alloc_mw(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: AllocMw = call.request()?;
    let kind = match request.mw_type {
        1 => MwType::Type1,
        2 => MwType::Type2,
        _ => return Err(Errno::INVAL),
    };
    let charge = call.charge(ObjectKind::Mw)?;
    let (mw_handle, key) =
        call.on_shard(move |shard, c| shard.engine().device(c)?.context_mut().alloc_mw(request.pd_handle, kind))?;
    call.created(charge);
    Ok(Reply::new(&AllocMwResponse { mw_handle, rkey: key.0 }))
}

pub(super) fn dealloc_mw(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let mw = call.request::<DeallocMw>()?.mw_handle;
    call.destroy_on_shard(move |shard, c| shard.engine().device(c)?.context_mut().dealloc_mw(mw))?;
    call.destroyed(ObjectKind::Mw);
    Ok(Reply::default())
}
