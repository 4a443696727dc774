//! Commands on managed queues and their groups: the library's own, which Linux does not have.

use super::super::account::Item;
use super::super::managed::ManagedQueue;
use super::super::objects::ObjectKind;
use super::super::regions::{Pages, Region};
use super::Scope;
use crate::budget::Resource;
use crate::memory::{HostPlatform, TenantMemory};
use rdmesh_nic::{
    ChainEntry, ChainState, CommandError, Device, INLINE_COPIES, Manage as ManageQueues, ManageSend, RingInit,
};
use rdmesh_uverbs::ring::RingSlots;
use rdmesh_uverbs::session::chain::{
    ChainRequest, Enable, Group, LABEL_LEN, LabelPart, List, MAX_GROUPS, Manage, Managed, QueueSide, Register, RingKey,
    SealPart,
};
use rdmesh_verbs::Access;
use rustix::io::Errno;
use zerocopy::IntoBytes;

pub(super) fn execute(mut scope: Scope<'_>, request: ChainRequest<'_>) -> Result<Vec<u8>, Errno> {
    let done = |()| Vec::new();
    match request {
        ChainRequest::Manage(request) => manage(&mut scope, request).map(|managed| managed.as_bytes().to_vec()),
        ChainRequest::Register(request, side) => register(&mut scope, request, side).map(|key| key.as_bytes().to_vec()),
        ChainRequest::Enable(request, side) => enable(&scope, request, side).map(done),
        ChainRequest::Seal(part, side, slots) => seal(&mut scope, &part, side, slots).map(done),
        ChainRequest::Label(part, side, labels) => label(&mut scope, &part, side, labels).map(done),
        ChainRequest::List(request) => list(&scope, request),
        ChainRequest::Stop(group) => {
            scope.on_shard(move |shard, c| shard.engine().device(c)?.chains().stop(group)).map(done)
        }
        ChainRequest::Resume(group) => {
            scope.on_shard(move |shard, c| shard.engine().device(c)?.chains().resume(group)).map(done)
        }
        ChainRequest::Kill(group) => {
            scope.on_shard(move |shard, c| shard.engine().device(c)?.chains().kill(group)).map(done)
        }
    }
}

fn manage(scope: &mut Scope<'_>, request: Manage) -> Result<Managed, Errno> {
    let qp = request.qp;
    let info = scope.on_shard(move |shard, c| shard.engine().device(c)?.query_qp(qp))?;
    let has = |side| request.sides & side != 0;
    let copies_len = if has(Manage::SEND) { (INLINE_COPIES * info.caps.max_inline) as usize } else { 0 };
    let charge = scope.endpoint.account.share().take(Resource::Memory, copies_len as u64 + STATE)?;
    let copies = TenantMemory::own(copies_len);
    let (managed, lens) = scope.on_shard(move |shard, c| {
        let mut device = shard.engine().device(c)?;
        let rings = rings(&device, &request)?;
        let (managed, lens) = (describe(&rings), lens(&rings));
        let (send, receive) = rings;
        let (send, receive) = (send.map(|ring| ring.init), receive.map(|ring| ring.init));
        let send = send.map(|ring| ManageSend { ring, copies });
        device.manage_qp(qp, ManageQueues { group: request.group, send, receive })?;
        Ok((managed, lens))
    })?;
    scope.context.managed_mut().insert(qp, managed, lens, charge);
    Ok(managed)
}

/// A ring that is to be managed, and its offset in the context's queue memory.
struct Ring {
    init: RingInit<TenantMemory>,
    offset: u64,
}

/// The rings of the queues that are to be managed.
type Rings = (Option<Ring>, Option<Ring>);

fn rings(device: &Device<'_, HostPlatform>, request: &Manage) -> Result<Rings, CommandError> {
    let has = |side| request.sides & side != 0;
    let (send, receive) = device.queues(request.qp)?;
    let send = has(Manage::SEND).then(|| ring(send.slots(), request.send_cycle));
    let receive = match receive {
        _ if !has(Manage::RECEIVE) => None,
        Some(receive) => Some(ring(receive.slots(), request.receive_cycle)),
        None => return Err(CommandError::Invalid),
    };
    Ok((send, receive))
}

fn ring(slots: RingSlots, cycle: u32) -> Ring {
    let RingSlots { memory, stride, slots, offset } = slots;
    let cycle = if cycle == 0 { slots } else { cycle };
    Ring { init: RingInit { memory: TenantMemory::Ring(memory), stride, slots, cycle }, offset }
}

fn describe((send, receive): &Rings) -> Managed {
    let shape = |ring: &Option<Ring>| {
        ring.as_ref().map_or((0, 0, 0), |Ring { init, offset }| (init.stride, init.cycle, *offset))
    };
    let (send_stride, send_cycle, send_offset) = shape(send);
    let (receive_stride, receive_cycle, receive_offset) = shape(receive);
    Managed { send_stride, send_cycle, receive_stride, receive_cycle, send_offset, receive_offset }
}

/// Bytes of the rings; none of a queue that is not managed.
fn lens((send, receive): &Rings) -> [Option<u64>; 2] {
    let len = |Ring { init, .. }: &Ring| u64::from(init.stride) * u64::from(init.slots);
    [send, receive].map(|ring| ring.as_ref().map(len))
}

/// Registers a ring, which is charged as the memory region that it is.
fn register(scope: &mut Scope<'_>, request: Register, side: QueueSide) -> Result<RingKey, Errno> {
    let Register { qp, pd, access, .. } = request;
    let access = Access::from_bits(access).filter(|access| access.is_valid_for_mr()).ok_or(Errno::INVAL)?;
    let len = scope.context.managed().get(qp).and_then(|queue| queue.ring_len(side)).ok_or(Errno::INVAL)?;
    let charge = scope.charge(Item::Object(ObjectKind::Mr), 1)?;
    let bytes = scope.charge(Item::Pinned, len)?;
    let (region, pd) = scope.on_shard(move |shard, c| {
        let mut device = shard.engine().device(c)?;
        let own = device.list_qps(qp, 1).first().map(|entry| entry.pd).ok_or(CommandError::NoSuchObject)?;
        let pd = if pd == Register::OWN_PD { own } else { pd };
        let region = match side {
            QueueSide::Send => device.register_send_ring(qp, Some(pd), access)?,
            QueueSide::Receive => device.register_receive_ring(qp, Some(pd), access)?,
        };
        Ok((region, pd))
    })?;
    [charge, bytes].into_iter().for_each(|charge| scope.context.holdings_mut().add(charge));
    scope.totals.objects_created += 1;
    let row = Region { pd, key: region.key, iova: 0, len, access, pinned: len, pages: Pages::Ring { qp } };
    scope.context.regions_mut().insert(region.mr, row);
    if let Some(queue) = scope.context.managed_mut().get_mut(qp) {
        queue.add_region(region.mr);
    }
    Ok(RingKey { mr: region.mr, key: region.key.0, stride: region.stride, slots: region.slots })
}

fn enable(scope: &Scope<'_>, Enable { qp, limit, .. }: Enable, side: QueueSide) -> Result<(), Errno> {
    scope.on_shard(move |shard, c| {
        let mut device = shard.engine().device(c)?;
        match side {
            QueueSide::Send => device.enable(qp, limit),
            QueueSide::Receive => device.enable_receives(qp, limit),
        }
    })
}

fn seal(scope: &mut Scope<'_>, part: &SealPart, side: QueueSide, slots: &[u8]) -> Result<(), Errno> {
    let (qp, account) = (part.qp, scope.endpoint.account.clone());
    let queue = scope.context.managed_mut().get_mut(qp).ok_or(Errno::INVAL)?;
    let Some((image, charge)) = queue.seal(&account, side, part, slots)? else { return Ok(()) };
    scope.on_shard(move |shard, c| {
        let mut device = shard.engine().device(c)?;
        match side {
            QueueSide::Send => device.seal_sends(qp, image),
            QueueSide::Receive => device.seal_receives(qp, image),
        }
    })?;
    if let Some(queue) = scope.context.managed_mut().get_mut(qp) {
        queue.set_sealed(side, charge);
    }
    Ok(())
}

fn label(scope: &mut Scope<'_>, part: &LabelPart, side: QueueSide, labels: &[[u8; LABEL_LEN]]) -> Result<(), Errno> {
    let queue = scope.context.managed_mut().get_mut(part.qp).ok_or(Errno::INVAL)?;
    queue.label(&scope.endpoint.account, side, part.first, labels)
}

fn list(scope: &Scope<'_>, List { from, .. }: List) -> Result<Vec<u8>, Errno> {
    let entries = scope.on_shard(move |shard, c| Ok(shard.engine().device(c)?.chains().list()))?;
    let entries = entries.iter().filter(|entry| entry.group >= from).take(MAX_GROUPS);
    Ok(entries.flat_map(|entry| group(entry).as_bytes().to_vec()).collect())
}

fn group(entry: &ChainEntry) -> Group {
    let state = match entry.state {
        ChainState::Running => 0,
        ChainState::Stopped => 1,
        ChainState::Poisoned => 2,
    };
    let counts = &entry.counts;
    let group = Group {
        group: entry.group,
        state,
        qps: entry.qps.len() as u32,
        copies: counts.copies,
        atomics: counts.atomics,
        orders: counts.orders,
        steps: counts.steps,
        bytes: counts.bytes,
        soft_faults: counts.soft_faults,
        starved: entry.starved,
        ..Group::default()
    };
    let Some(fault) = entry.fault else { return group };
    Group {
        has_fault: 1,
        fault_qp: fault.qp,
        fault_side: fault.is_receive.into(),
        fault_status: fault.status as u32,
        fault_key: fault.key,
        fault_index: fault.index,
        fault_addr: fault.addr,
        ..group
    }
}

/// A queue pair has gone, and the regions over its rings with it. Returns what is left of its managed queues.
pub(super) fn forget(scope: &mut Scope<'_>, qp: u32) -> Option<ManagedQueue> {
    let queue = scope.context.managed_mut().remove(qp)?;
    for mr in queue.regions() {
        if let Some(region) = scope.context.regions_mut().remove(*mr) {
            scope.context.holdings_mut().give_back(Item::Pinned, region.pinned);
        }
        scope.destroyed(ObjectKind::Mr);
    }
    Some(queue)
}

/// Bytes that the NIC keeps of managed queues, besides copies of inline data and images: above all, copies of their slots.
const STATE: u64 = 8192;
