//! The methods that come by `ioctl()`.

use super::super::context::Context;
use super::{Scope, cq};
use rdmesh_uverbs::abi::{Advice, AdviseSge, Attributes, CHANNEL_ATTR, advise_attr, ioctl_method, ioctl_object};
use rdmesh_verbs::Access;
use rustix::io::Errno;
use zerocopy::FromBytes;

pub(super) fn method(scope: Scope<'_>, attributes: Attributes<'_>) -> Result<(), Errno> {
    match (attributes.object, attributes.method) {
        (ioctl_object::MR, ioctl_method::ADVISE_MR) => advise_mr(scope.context, attributes),
        (ioctl_object::COMP_CHANNEL, ioctl_method::CLOSE_COMP_CHANNEL) => {
            let channel = attributes.number(CHANNEL_ATTR).and_then(|n| u32::try_from(n).ok()).ok_or(Errno::INVAL)?;
            cq::close_channel(scope, channel)
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Advice on on-demand regions is checked as Linux checks it, and then there is nothing to do: the router reaches
/// pages through the program's own page tables, present or not.
fn advise_mr(context: &Context, attributes: Attributes<'_>) -> Result<(), Errno> {
    const FLUSH: u64 = 1;
    let pd = attributes.number(advise_attr::PD_HANDLE).ok_or(Errno::INVAL)?;
    let advice = attributes.number(advise_attr::ADVICE).ok_or(Errno::INVAL)?;
    let flags = attributes.number(advise_attr::FLAGS).unwrap_or(0);
    let advice = Advice::from_number(advice).ok_or(Errno::OPNOTSUPP)?;
    if flags & !FLUSH != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let list = attributes.bytes(advise_attr::SGE_LIST).ok_or(Errno::INVAL)?;
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
    let region = context.regions.find(entry.lkey).ok_or(Errno::INVAL)?;
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
