//! Doorbell commands of the data path (POST_SEND, REQ_NOTIFY_CQ), answered in shared memory.
#![allow(unsafe_code)]

use super::Context;
use crate::polling;
use rdmesh_uverbs::abi::number;
use rdmesh_uverbs::page::Arm;
use rustix::io::Errno;

const POST_SEND: u32 = number::POST_SEND as u32;
const REQ_NOTIFY_CQ: u32 = number::REQ_NOTIFY_CQ as u32;
/// `ib_uverbs_cmd_hdr` and `ib_uverbs_post_send`.
const POST_SEND_LEN: usize = 32;
/// `ib_uverbs_cmd_hdr` and `ib_uverbs_req_notify_cq`.
const REQ_NOTIFY_LEN: usize = 16;
/// QP states in which a send may be posted begin with RTS (`enum ib_qp_state`); before, the kernel refuses.
const FIRST_SENDING_STATE: u8 = 3;

/// Answers `command` here where it is one of the data path; none where it must go to the router.
#[inline]
pub(super) fn answer(context: &Context, command: &[u8]) -> Option<Result<(), Errno>> {
    match word(command, 0)? {
        POST_SEND if command.len() == POST_SEND_LEN => Some(post_send(context, command)),
        REQ_NOTIFY_CQ if command.len() == REQ_NOTIFY_LEN => Some(request_notification(context, command)),
        POST_SEND | REQ_NOTIFY_CQ => Some(Err(Errno::INVAL)),
        _ => None,
    }
}

#[inline]
fn post_send(context: &Context, command: &[u8]) -> Result<(), Errno> {
    let (Some(qp), Some(0)) = (word(command, 16), word(command, 20)) else { return Err(Errno::INVAL) };
    if context.page().qp_state(qp) < FIRST_SENDING_STATE {
        // A removed device has no queue pair states.
        return Err(if context.events().is_over() { Errno::IO } else { Errno::INVAL });
    }
    polling::posts(context);
    context.page().ring(qp);
    if context.page().must_wake(context.worker()) {
        context.wake();
    }
    let response = u64::from(word(command, 8).unwrap_or(0)) | u64::from(word(command, 12).unwrap_or(0)) << 32;
    if response != 0 && command[6] != 0 {
        // SAFETY: the program names four writable bytes for `bad_wr`, as the ABI of the command says.
        unsafe { std::ptr::with_exposed_provenance_mut::<u32>(response as usize).write_unaligned(0) };
    }
    Ok(())
}

fn request_notification(context: &Context, command: &[u8]) -> Result<(), Errno> {
    let (Some(cq), Some(solicited)) = (word(command, 8), word(command, 12)) else { return Err(Errno::INVAL) };
    polling::armed();
    context.page().arm_cq(cq, if solicited != 0 { Arm::Solicited } else { Arm::Any });
    Ok(())
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
