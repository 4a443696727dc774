//! INVOKE_WRITE: a command of the `write()` form, its parts in attributes.

use super::bundle::Bundle;
use super::compose::Composed;
use crate::session::context::Context;
use crate::session::doorbell;
use rdmesh_uverbs::abi::ioctl_attr::invoke_write::{CORE_IN, CORE_OUT, WRITE_CMD};
use rdmesh_uverbs::abi::{EXTENDED, Method, NUMBER_MASK, PostSend, PostSendResponse, ReqNotifyCq, number};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::IntoBytes;

const POST_SEND: u32 = number::POST_SEND as u32;
const REQ_NOTIFY_CQ: u32 = number::REQ_NOTIFY_CQ as u32;

/// Answers the commands of the data path; none for another.
#[inline]
pub(super) fn answer(context: &Context, bundle: &Bundle) -> Option<Result<(), Errno>> {
    let command: u64 = bundle.read(WRITE_CMD);
    match u32::try_from(command) {
        Ok(POST_SEND) => Some(post_send(context, bundle)),
        Ok(REQ_NOTIFY_CQ) => Some(request_notification(context, bundle)),
        _ => None,
    }
}

fn post_send(context: &Context, bundle: &Bundle) -> Result<(), Errno> {
    check_room(bundle, size_of::<PostSend>(), size_of::<PostSendResponse>())?;
    doorbell::post_send(context, &bundle.read(CORE_IN), false)?;
    bundle.give_all(CORE_OUT, PostSendResponse::default().as_bytes());
    Ok(())
}

fn request_notification(context: &Context, bundle: &Bundle) -> Result<(), Errno> {
    check_room(bundle, size_of::<ReqNotifyCq>(), 0)?;
    doorbell::request_notification(context, &bundle.read(CORE_IN))
}

/// Executes any other command.
pub(super) fn execute(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    let command: u64 = bundle.read(WRITE_CMD);
    let command = u32::try_from(command).map_err(|_| Errno::INVAL)?;
    if command & !(EXTENDED | NUMBER_MASK) != 0 {
        return Err(Errno::INVAL);
    }
    let is_extended = command & EXTENDED != 0;
    let method = Method::find(command as u8, is_extended).ok_or(Errno::OPNOTSUPP)?;
    check_room(bundle, method.request, method.response)?;
    let (mut core, mut room) = (bundle.bytes(CORE_IN), bundle.len(CORE_OUT));
    if !is_extended {
        // Bytes after the struct belong to a newer version of it, never to the provider.
        let (known, unknown) = core.split_at(method.request);
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Errno::OPNOTSUPP);
        }
        (core, room) = (known, method.response);
    }
    let response = Composed::new(command, core, room, bundle)?.execute(context, bundle)?;
    if method.response != 0 || is_extended {
        bundle.give_all(CORE_OUT, &response);
    }
    Ok(())
}

fn check_room(bundle: &Bundle, request: usize, response: usize) -> Result<(), Errno> {
    let fits = bundle.len(CORE_IN) >= request && bundle.len(CORE_OUT) >= response;
    if fits { Ok(()) } else { Err(Errno::NOSPC) }
}
