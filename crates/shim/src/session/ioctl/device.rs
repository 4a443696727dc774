//! `ioctl()` methods of the context, the device and its ports.

use super::bundle::Bundle;
use super::{Body, compose, forward};
use crate::session::context::Context;
use rdmesh_uverbs::abi::{
    ExQueryPortResponse, GetContext, GetContextResponse, GidEntry, QueryPort, QueryPortResponse, ioctl_attr,
    ioctl_method, ioctl_object, number,
};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`: access flags that may be ignored are.
const CORE_SUPPORT: u64 = 1;
/// Completion vectors: one, numbered 0, for every context.
const COMPLETION_VECTORS: u32 = 1;

pub(super) fn get_context(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    let request = GetContext::default();
    let made: GetContextResponse = compose::execute(context, bundle, number::GET_CONTEXT.into(), &request)?;
    context.events().keep(made.async_fd.cast_signed());
    describe(bundle, made.num_comp_vectors);
    Ok(())
}

pub(super) fn query_context(context: &Context, bundle: &Bundle) -> Result<(), Errno> {
    if !context.events().is_made() {
        return Err(Errno::INVAL);
    }
    describe(bundle, COMPLETION_VECTORS);
    Ok(())
}

fn describe(bundle: &Bundle, completion_vectors: u32) {
    use ioctl_attr::context::{CORE_SUPPORT as SUPPORT, NUM_COMP_VECTORS};
    bundle.give_value(NUM_COMP_VECTORS, &completion_vectors);
    bundle.give_value(SUPPORT, &CORE_SUPPORT);
}

pub(super) fn alloc_async_event(context: &Context, bundle: &Bundle) -> Result<(), Errno> {
    let fd = context.events().hand_over()?;
    bundle.set_new(ioctl_attr::NEW_HANDLE, fd.cast_unsigned());
    Ok(())
}

/// Checks the event descriptor of a new object: only the context's own is valid.
pub(super) fn check_event_fd(context: &Context, bundle: &Bundle, id: u16) -> Result<(), Errno> {
    let fd: Option<RawFd> = bundle.descriptor(id)?;
    fd.map_or(Ok(()), |fd| context.events().check(fd))
}

pub(super) fn query_port(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::query_port::{PORT_NUM, RESP};
    let port: u64 = bundle.read(PORT_NUM);
    let port_num = u8::try_from(port).map_err(|_| Errno::INVAL)?;
    let request = QueryPort { port_num, ..Default::default() };
    let legacy: QueryPortResponse = compose::execute(context, bundle, number::QUERY_PORT.into(), &request)?;
    let response = ExQueryPortResponse { active_speed_ex: legacy.active_speed.into(), legacy, ..Default::default() };
    bundle.give_value(RESP, &response);
    Ok(())
}

pub(super) fn query_gid_table(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::gid_table::{ENTRY_SIZE, FLAGS, RESP_ENTRIES, RESP_NUM_ENTRIES};
    bundle.flags(FLAGS, 0)?;
    let entry_size: u64 = bundle.read(ENTRY_SIZE);
    let entry_size = usize::try_from(entry_size).ok().filter(|size| *size != 0).ok_or(Errno::INVAL)?;
    let room = bundle.len(RESP_ENTRIES);
    if room == 0 || !room.is_multiple_of(entry_size) {
        return Err(Errno::INVAL);
    }
    let mut entries = Vec::new();
    let known = forward(context, Body::new(ioctl_object::DEVICE, ioctl_method::QUERY_GID_TABLE))?;
    for entry in known.chunks_exact(size_of::<GidEntry>()) {
        // A program of another release has entries of another size.
        let end = entries.len() + entry_size;
        entries.extend_from_slice(&entry[..entry.len().min(entry_size)]);
        entries.resize(end, 0);
    }
    if entries.len() > room {
        return Err(Errno::INVAL);
    }
    bundle.give(RESP_ENTRIES, &entries);
    bundle.give_value(RESP_NUM_ENTRIES, &((entries.len() / entry_size) as u64));
    Ok(())
}

pub(super) fn query_gid_entry(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::gid_entry::{FLAGS, GID_INDEX, PORT, RESP_ENTRY};
    bundle.flags(FLAGS, 0)?;
    let mut body = Body::new(ioctl_object::DEVICE, ioctl_method::QUERY_GID_ENTRY);
    for id in [PORT, GID_INDEX] {
        body.add(id, bundle.bytes(id));
    }
    bundle.give(RESP_ENTRY, forward(context, body)?.as_bytes());
    Ok(())
}
