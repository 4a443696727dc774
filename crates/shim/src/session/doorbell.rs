//! Doorbell commands of the data path (POST_SEND, REQ_NOTIFY_CQ), answered in shared memory.
#![allow(unsafe_code)]

use super::Context;
use crate::polling;
use rdmesh_uverbs::abi::{CommandHeader, PostSend, ReqNotifyCq, number};
use rdmesh_uverbs::page::Arm;
use rustix::io::Errno;
use zerocopy::FromBytes;

const POST_SEND: u32 = number::POST_SEND as u32;
const REQ_NOTIFY_CQ: u32 = number::REQ_NOTIFY_CQ as u32;
/// QP states in which a send may be posted begin with RTS (`enum ib_qp_state`); before, the kernel refuses.
const FIRST_SENDING_STATE: u8 = 3;

/// Answers `command` here where it is one of the data path; none where it must go to the router.
#[inline]
pub(super) fn answer(context: &Context, command: &[u8]) -> Option<Result<(), Errno>> {
    let (header, body) = CommandHeader::read_from_prefix(command).ok()?;
    match header.command {
        POST_SEND => Some(match PostSend::read_from_bytes(body) {
            Ok(request) => post_send(context, &request, header.out_words != 0),
            Err(_) => Err(Errno::INVAL),
        }),
        REQ_NOTIFY_CQ => Some(match ReqNotifyCq::read_from_bytes(body) {
            Ok(request) => request_notification(context, &request),
            Err(_) => Err(Errno::INVAL),
        }),
        _ => None,
    }
}

/// Rings the doorbell of a queue pair; writes the response where the program has room for it.
#[inline]
pub(super) fn post_send(context: &Context, request: &PostSend, has_room: bool) -> Result<(), Errno> {
    let qp = request.qp_handle;
    if request.wr_count != 0 {
        return Err(Errno::INVAL);
    }
    if context.page().qp_state(qp) < FIRST_SENDING_STATE {
        // A removed device has no queue pair states.
        return Err(if context.events().is_over() { Errno::IO } else { Errno::INVAL });
    }
    polling::posts(context.polled());
    context.page().ring(qp);
    if context.page().must_wake(context.workers()) {
        context.wake();
    }
    if request.response != 0 && has_room {
        let place = std::ptr::with_exposed_provenance_mut::<u32>(request.response as usize);
        // SAFETY: the program names four writable bytes for `bad_wr`, as the ABI of the command says.
        unsafe { place.write_unaligned(0) };
    }
    Ok(())
}

/// Arms a completion queue.
pub(super) fn request_notification(context: &Context, request: &ReqNotifyCq) -> Result<(), Errno> {
    polling::armed();
    context.page().arm_cq(request.cq_handle, if request.solicited_only != 0 { Arm::Solicited } else { Arm::Any });
    Ok(())
}
