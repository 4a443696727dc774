//! `ioctl()` methods without an equivalent `write()` command.

use super::super::context::Context;
use super::{Scope, cq};
use crate::endpoint::GID_TABLE_LEN;
use crate::endpoint::PORT;
use rdmesh_uverbs::abi::{
    Advice, AdviseSge, Attributes, CHANNEL_ATTR, GID_TYPE_ROCE_V2, GidEntry, ioctl_attr, ioctl_method, ioctl_object,
};
use rdmesh_uverbs::session::MrInfo;
use rdmesh_verbs::Access;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

pub(super) fn method(scope: Scope<'_>, attributes: Attributes<'_>) -> Result<Vec<u8>, Errno> {
    match (attributes.object, attributes.method) {
        (ioctl_object::MR, ioctl_method::ADVISE_MR) => advise_mr(scope.context, attributes).map(|()| Vec::new()),
        (ioctl_object::MR, ioctl_method::QUERY_MR) => query_mr(scope.context, attributes),
        (ioctl_object::DEVICE, ioctl_method::QUERY_GID_TABLE) => {
            Ok((0..GID_TABLE_LEN).filter_map(|index| gid_entry(&scope, index)).flat_map(bytes).collect())
        }
        (ioctl_object::DEVICE, ioctl_method::QUERY_GID_ENTRY) => query_gid_entry(&scope, attributes),
        (ioctl_object::COMP_CHANNEL, ioctl_method::CLOSE_COMP_CHANNEL) => {
            let channel = attributes.number(CHANNEL_ATTR).and_then(|n| u32::try_from(n).ok()).ok_or(Errno::INVAL)?;
            cq::close_channel(scope, channel).map(|()| Vec::new())
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Entry `index` of the GID table; none where it is empty.
fn gid_entry(scope: &Scope<'_>, index: usize) -> Option<GidEntry> {
    let gid = scope.endpoint.account.spec().gids.get(index).filter(|gid| !gid.is_zero())?;
    Some(GidEntry {
        gid: gid.0,
        gid_index: index as u32,
        port_num: PORT.into(),
        gid_type: GID_TYPE_ROCE_V2,
        netdev_ifindex: scope.context.interface(),
    })
}

fn query_gid_entry(scope: &Scope<'_>, attributes: Attributes<'_>) -> Result<Vec<u8>, Errno> {
    let index = attributes.number(ioctl_attr::gid_entry::GID_INDEX).and_then(|index| usize::try_from(index).ok());
    let index = index.filter(|index| *index < GID_TABLE_LEN).ok_or(Errno::INVAL)?;
    if attributes.number(ioctl_attr::gid_entry::PORT) != Some(PORT.into()) {
        return Err(Errno::INVAL);
    }
    gid_entry(scope, index).map(bytes).ok_or(Errno::NODATA)
}

fn query_mr(context: &Context, attributes: Attributes<'_>) -> Result<Vec<u8>, Errno> {
    let handle = attributes.number(ioctl_attr::query_mr::HANDLE).and_then(|handle| u32::try_from(handle).ok());
    let region = handle.and_then(|handle| context.regions().get(handle)).ok_or(Errno::NOENT)?;
    Ok(bytes(MrInfo { length: region.len, iova: region.iova, lkey: region.key.0, rkey: region.key.0 }))
}

fn bytes(value: impl IntoBytes + zerocopy::Immutable) -> Vec<u8> {
    value.as_bytes().to_vec()
}

/// Checks advice on on-demand regions as Linux does; there is nothing else to do: the router reaches pages through the
/// program's own page tables, present or not.
fn advise_mr(context: &Context, attributes: Attributes<'_>) -> Result<(), Errno> {
    const FLUSH: u64 = 1;
    let pd = attributes.number(ioctl_attr::advise_mr::PD_HANDLE).ok_or(Errno::INVAL)?;
    let advice = attributes.number(ioctl_attr::advise_mr::ADVICE).ok_or(Errno::INVAL)?;
    let flags = attributes.number(ioctl_attr::advise_mr::FLAGS).unwrap_or(0);
    let advice = Advice::from_number(advice).ok_or(Errno::OPNOTSUPP)?;
    if flags & !FLUSH != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let list = attributes.bytes(ioctl_attr::advise_mr::SGE_LIST).ok_or(Errno::INVAL)?;
    if list.is_empty() || !list.len().is_multiple_of(size_of::<AdviseSge>()) {
        return Err(Errno::INVAL);
    }
    let entries = list.chunks_exact(size_of::<AdviseSge>()).filter_map(|bytes| AdviseSge::read_from_bytes(bytes).ok());
    for entry in entries {
        check_entry(context, pd, advice, entry)?;
    }
    Ok(())
}

fn check_entry(context: &Context, pd: u64, advice: Advice, entry: AdviseSge) -> Result<(), Errno> {
    let region = context.regions().find(entry.lkey).ok_or(Errno::INVAL)?;
    if u64::from(region.pd) != pd || !region.access.contains(Access::ON_DEMAND) {
        return Err(Errno::INVAL);
    }
    if advice == Advice::PrefetchWrite && !region.access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::PERM);
    }
    let offset = entry.addr.checked_sub(region.iova).ok_or(Errno::FAULT)?;
    let fits = offset.checked_add(entry.length.into()).is_some_and(|end| end <= region.len);
    if fits { Ok(()) } else { Err(Errno::FAULT) }
}
