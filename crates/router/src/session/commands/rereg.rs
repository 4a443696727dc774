//! REREG_MR: a change of a memory region's protection domain or access.

use super::super::regions::Pages;
use super::super::reply::Reply;
use super::Call;
use rdmesh_uverbs::abi::{ReregMr, ReregMrResponse};
use rdmesh_verbs::Access;
use rustix::io::Errno;

/// `enum ib_mr_rereg_flags`: other memory, another domain, other access.
const TRANSLATION: u32 = 1;
const DOMAIN: u32 = 1 << 1;
const ACCESS: u32 = 1 << 2;
const PAGE_MASK: u64 = 4095;

/// REREG_MR as in rxe (`rxe_rereg_user_mr`): the memory of a region stays the same.
pub(super) fn rereg_mr(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ReregMr = call.request()?;
    check_flags(&request)?;
    let mr = request.mr_handle;
    let region = call.scope.context.regions().get(mr).ok_or(Errno::INVAL)?;
    // Other rights than those that its registration allows would outlive the ring.
    if matches!(region.pages, Pages::Ring { .. }) {
        return Err(Errno::OPNOTSUPP);
    }
    let access = match request.flags & ACCESS {
        0 => None,
        _ => Some(Access::from_bits(request.access_flags).filter(|a| a.is_valid_for_mr()).ok_or(Errno::INVAL)?),
    };
    // Pages that are there already cannot become pages that need not be there, or the other way round.
    if access.is_some_and(|access| (access ^ region.access).contains(Access::ON_DEMAND)) {
        return Err(Errno::OPNOTSUPP);
    }
    let pd = (request.flags & DOMAIN != 0).then_some(request.pd_handle);
    let key = call.on_shard(move |shard, c| shard.engine().device(c)?.context_mut().rereg_mr(mr, pd, access))?;
    call.scope.context.regions_mut().change(mr, pd, access);
    Ok(Reply::new(&ReregMrResponse { lkey: key.0, rkey: key.0 }))
}

/// In the order of `ib_uverbs_rereg_mr`.
fn check_flags(request: &ReregMr) -> Result<(), Errno> {
    let is_torn = request.flags & TRANSLATION != 0 && (request.start ^ request.hca_va) & PAGE_MASK != 0;
    match request.flags {
        0 => Err(Errno::INVAL),
        flags if flags & !(TRANSLATION | DOMAIN | ACCESS) != 0 => Err(Errno::OPNOTSUPP),
        _ if is_torn => Err(Errno::INVAL),
        flags if flags & TRANSLATION != 0 => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }
}
