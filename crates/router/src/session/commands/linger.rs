//! Commands on a context's lease, by which it outlives its program.

use super::super::lease::Lease;
use super::super::regions::{Pages, Region};
use super::Scope;
use crate::memory::HostPlatform;
use rdmesh_nic::Device;
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::linger::{
    Ask, Granted, LeasedCq, LeasedQp, LeasedRegion, LingerRequest, MAX_RECORDS, ObjectKind, RingPlace,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

pub(super) fn execute(scope: Scope<'_>, request: LingerRequest, fds: &[OwnedFd]) -> Result<Vec<u8>, Errno> {
    match request {
        LingerRequest::Ask(request) => ask(scope, request, fds).map(|granted| granted.as_bytes().to_vec()),
        LingerRequest::GiveUp => {
            drop(scope.context.tenure_mut().lease_mut().take());
            Ok(Vec::new())
        }
        LingerRequest::List(ObjectKind::Region, from) => Ok(regions(&scope, from)),
        LingerRequest::List(ObjectKind::Cq, from) => on_device(&scope, move |device| records(cqs(&device, from))),
        LingerRequest::List(ObjectKind::Qp, from) => on_device(&scope, move |device| records(qps(&device, from))),
        // The connection has a context already.
        LingerRequest::Attach(_) => Err(Errno::INVAL),
    }
}

/// Makes a lease, or changes the term of the one that there is.
fn ask(scope: Scope<'_>, Ask { term }: Ask, fds: &[OwnedFd]) -> Result<Granted, Errno> {
    let account = &scope.endpoint.account;
    account.admit_term(Duration::from_millis(term))?;
    if scope.context.regions().has_private() {
        return Err(Errno::OPNOTSUPP);
    }
    let tenure = scope.context.tenure_mut();
    let mut lease = match tenure.lease_mut().take() {
        Some(lease) => lease,
        None => Lease::new(Duration::ZERO)?,
    };
    lease.set_term(Duration::from_millis(term));
    let kept = fds.first().map_or(Ok(()), |arena| lease.keep_arena(arena.as_fd(), account.share()));
    let granted = Granted { token: lease.token() };
    *tenure.lease_mut() = Some(lease);
    kept.map(|()| granted)
}

fn on_device(
    scope: &Scope<'_>,
    list: impl FnOnce(Device<'_, HostPlatform>) -> Vec<u8> + Send + 'static,
) -> Result<Vec<u8>, Errno> {
    scope.on_shard(move |shard, c| Ok(list(shard.engine().device(c)?)))
}

fn records<T: IntoBytes + Immutable>(rows: impl IntoIterator<Item = T>) -> Vec<u8> {
    rows.into_iter().flat_map(|row| row.as_bytes().to_vec()).collect()
}

fn regions(scope: &Scope<'_>, from: u32) -> Vec<u8> {
    let arena = scope.context.tenure().lease().and_then(Lease::arena).map(|(id, _)| id);
    let place = |region: &Region| match region.pages {
        Pages::Arena(id, Some(offset)) if Some(id) == arena => offset,
        _ => LeasedRegion::ELSEWHERE,
    };
    let row = |(mr, region): (u32, &Region)| LeasedRegion {
        mr,
        key: region.key.0,
        pd: region.pd,
        access: region.access.bits(),
        iova: region.iova,
        len: region.len,
        place: place(region),
    };
    records(scope.context.regions().from(from).take(MAX_RECORDS).map(row))
}

fn cqs(device: &Device<'_, HostPlatform>, from: u32) -> Vec<LeasedCq> {
    let ring = |cq| device.context().completion_queue(cq).map_or(RingPlace::default(), |queue| place(queue.extent()));
    let rows = device.context().list_cqs(from, MAX_RECORDS).into_iter();
    rows.map(|entry| LeasedCq { cq: entry.handle, cqe: entry.cqe, ring: ring(entry.handle) }).collect()
}

fn qps(device: &Device<'_, HostPlatform>, from: u32) -> Vec<LeasedQp> {
    let rings = |qp| {
        let (send, receive) = device.queues(qp).ok()?;
        Some((place(send.extent()), receive.map_or(RingPlace::default(), |queue| place(queue.extent()))))
    };
    let rows = device.list_qps(from, MAX_RECORDS).into_iter();
    let row = |entry: rdmesh_nic::QpEntry| {
        let (send, receive) = rings(entry.handle).unwrap_or_default();
        let info = &entry.info;
        let (qpn, dest_qpn) = (info.qpn.value(), info.attr.dest_qpn.value());
        LeasedQp { qp: entry.handle, qpn, state: info.state() as u32, dest_qpn, send, receive }
    };
    rows.map(row).collect()
}

fn place(Extent { offset, len }: Extent) -> RingPlace {
    RingPlace { offset, len }
}
