//! Address handles and multicast groups.

use super::super::account::Item;
use super::super::objects::ObjectKind;
use super::super::reply::Reply;
use super::super::spec::EndpointSpec;
use super::Call;
use crate::endpoint::PORT;
use crate::endpoint::{GID_TABLE_LEN, lids};
use rdmesh_uverbs::abi::{AhAttr, AttachMcast, CreateAh, CreateAhResponse, DestroyAh, RxeCreateAhResponse};
use rdmesh_verbs::{AddressVector, Gid, QpType};
use rustix::io::Errno;

/// Groups of one queue pair.
const MAX_GROUPS: usize = 1024;

/// Checks a path on a RoCE port: it must have a GRH, and a source address that exists (`rdma_fill_sgid_attr`). A path with a
/// LID alone gets both here.
pub(super) fn check_address(endpoint: &EndpointSpec, av: &mut AddressVector) -> Result<(), Errno> {
    if !av.is_global
        && let Some((sgid_index, dgid)) = lids::resolve(&endpoint.gids, av.dlid)
    {
        (av.is_global, av.sgid_index, av.dgid) = (true, sgid_index, dgid);
    }
    if av.port != PORT || !av.is_global || usize::from(av.sgid_index) >= GID_TABLE_LEN {
        return Err(Errno::INVAL);
    }
    match endpoint.gids.get(usize::from(av.sgid_index)) {
        Some(gid) if !gid.is_zero() => Ok(()),
        _ => Err(Errno::NODATA),
    }
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: CreateAh = call.request()?;
    let mut av = address_vector(&request.attr);
    check_address(call.scope.endpoint.account.spec(), &mut av)?;
    let charge = call.charge(ObjectKind::Ah)?;
    let pd = request.pd_handle;
    let made = call.on_shard(move |shard, c| shard.engine().device(c)?.create_ah(pd, av));
    let ah_handle = call.note_refusal(&av, made)?;
    call.created(charge);
    call.note_path(&av);
    // Work requests name the handle by `ah_num`, where 0 means that they carry the address themselves.
    let driver = RxeCreateAhResponse { ah_num: ah_handle + 1, reserved: 0 };
    Ok(Reply::new(&CreateAhResponse { ah_handle }).with_driver(&driver))
}

fn address_vector(attr: &AhAttr) -> AddressVector {
    AddressVector {
        dgid: Gid(attr.grh.dgid),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port: attr.port_num,
    }
}

pub(super) fn destroy(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let ah = call.request::<DestroyAh>()?.ah_handle;
    call.destroy_on_shard(move |shard, c| shard.engine().device(c)?.context_mut().destroy_ah(ah))?;
    call.destroyed(ObjectKind::Ah);
    Ok(Reply::default())
}

pub(super) fn attach_mcast(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: AttachMcast = call.request()?;
    let (qp, gid) = (request.qp_handle, Gid(request.gid));
    let info = call.on_shard(move |shard, c| shard.engine().device(c)?.query_qp(qp))?;
    let groups = call.scope.context.groups().of(qp);
    if groups.contains(&(gid, request.mlid)) {
        return Ok(Reply::default());
    }
    if info.qp_type != QpType::Ud || !gid.is_multicast() {
        return Err(Errno::INVAL);
    }
    if groups.len() >= MAX_GROUPS {
        return Err(Errno::NOMEM);
    }
    let charge = call.scope.charge(Item::Group, 1)?;
    call.on_shard(move |shard, c| shard.engine().device(c)?.attach_mcast(qp, gid))?;
    call.scope.context.holdings_mut().add(charge);
    call.scope.context.groups_mut().join(qp, (gid, request.mlid));
    Ok(Reply::default())
}

pub(super) fn detach_mcast(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: AttachMcast = call.request()?;
    let (qp, gid) = (request.qp_handle, Gid(request.gid));
    let is_last = call.scope.context.groups_mut().leave(qp, (gid, request.mlid)).ok_or(Errno::INVAL)?;
    call.scope.context.holdings_mut().give_back(Item::Group, 1);
    if is_last {
        call.on_shard(move |shard, c| shard.engine().device(c)?.detach_mcast(qp, gid))?;
    }
    Ok(Reply::default())
}
