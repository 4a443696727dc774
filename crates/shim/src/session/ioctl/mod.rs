//! `ioctl(RDMA_VERBS_IOCTL)`: the newer form of the ABI.
//!
//! Most methods do what a command of the `write()` form does: they are converted into it, so that commands reach the router in
//! one form. The few that have no such form go to the router as they are. Methods, attributes and the errno of each refusal are
//! those of the kernel's `uverbs_ioctl.c` and rxe.
//!
//! * [`bundle`]: the attributes of a method.
//! * [`compose`]: commands made from attributes.
//! * [`invoke`]: commands in attributes.
//! * [`device`], [`objects`]: the methods.
#![allow(unsafe_code)]

mod bundle;
mod compose;
mod device;
mod invoke;
mod objects;

use super::context::Context;
use super::link::borrow;
use crate::{descriptors, memory};
use bundle::Bundle;
use rdmesh_uverbs::abi::{
    DRIVER_RXE, DestroyCqResponse, DestroyQpResponse, DestroySrqResponse, VerbsIoctl, VerbsIoctlAttr, find_method,
    ioctl_method as method, ioctl_object as object, number,
};
use rdmesh_uverbs::session::{IoctlAttr, IoctlHeader, MAX_MESSAGE, RequestKind};
use rustix::fd::RawFd;
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// The kernel's page, which all attributes must fit.
const MAX_LEN: u16 = 4096;

/// Executes the method that `argument` describes, for a descriptor of the device.
pub(crate) fn verbs_ioctl(fd: RawFd, argument: *mut libc::c_void) -> Result<(), Errno> {
    if argument.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: with this request number the argument points to this header.
    let head = unsafe { argument.cast::<VerbsIoctl>().read_unaligned() };
    let count = usize::from(head.num_attrs);
    if head.length > MAX_LEN
        || usize::from(head.length) != size_of::<VerbsIoctl>() + count * size_of::<VerbsIoctlAttr>()
    {
        return Err(Errno::INVAL);
    }
    if head.reserved1 != 0 || head.reserved2 != 0 {
        return Err(Errno::PROTONOSUPPORT);
    }
    if head.driver_id != DRIVER_RXE {
        return Err(Errno::INVAL);
    }
    let specs = find_method(head.object_id, head.method_id).ok_or(Errno::PROTONOSUPPORT)?;
    let mut bundle = Bundle::new();
    // SAFETY: the attributes follow the header, as many as it says (its length was checked).
    unsafe { bundle.parse(specs, argument.cast::<VerbsIoctl>().add(1).cast(), count)? };
    if (head.object_id, head.method_id) == (object::DEVICE, method::INVOKE_WRITE)
        && let Some(context) = descriptors::peek_as(fd)
        && let Some(result) = invoke::answer(context, &bundle)
    {
        return result;
    }
    execute(fd, head, &bundle)
}

fn execute(fd: RawFd, head: VerbsIoctl, bundle: &Bundle) -> Result<(), Errno> {
    let _gate = memory::gate();
    let Some(context) = descriptors::get::<Context>(fd) else { return Err(Errno::BADF) };
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if !context.owns(unsafe { borrow(fd) }) {
        descriptors::forget(fd);
        return Err(Errno::NOTTY);
    }
    let context = &context;
    match (head.object_id, head.method_id) {
        (object::DEVICE, method::INVOKE_WRITE) => invoke::execute(context, bundle),
        (object::DEVICE, method::QUERY_PORT) => device::query_port(context, bundle),
        (object::DEVICE, method::GET_CONTEXT) => device::get_context(context, bundle),
        (object::DEVICE, method::QUERY_CONTEXT) => device::query_context(context, bundle),
        (object::DEVICE, method::QUERY_GID_TABLE) => device::query_gid_table(context, bundle),
        (object::DEVICE, method::QUERY_GID_ENTRY) => device::query_gid_entry(context, bundle),
        (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => device::alloc_async_event(context, bundle),
        (object::PD, method::PD_DESTROY) => objects::destroy(context, bundle, number::DEALLOC_PD),
        (object::AH, method::AH_DESTROY) => objects::destroy(context, bundle, number::DESTROY_AH),
        (object::MW, method::MW_DESTROY) => objects::destroy(context, bundle, number::DEALLOC_MW),
        (object::MR, method::MR_DESTROY) => objects::destroy(context, bundle, number::DEREG_MR),
        (object::CQ, method::CQ_CREATE) => objects::create_cq(context, bundle),
        (object::CQ, method::CQ_DESTROY) => {
            objects::destroy_reporting::<DestroyCqResponse>(context, bundle, number::DESTROY_CQ)
        }
        (object::QP, method::QP_CREATE) => objects::create_qp(context, bundle),
        (object::QP, method::QP_DESTROY) => {
            objects::destroy_reporting::<DestroyQpResponse>(context, bundle, number::DESTROY_QP)
        }
        (object::SRQ, method::SRQ_CREATE) => objects::create_srq(context, bundle),
        (object::SRQ, method::SRQ_DESTROY) => {
            objects::destroy_reporting::<DestroySrqResponse>(context, bundle, number::DESTROY_SRQ)
        }
        (object::MR, method::REG_MR) => objects::reg_mr(context, bundle),
        (object::MR, method::QUERY_MR) => objects::query_mr(context, bundle),
        (object::MR, method::ADVISE_MR) => objects::advise_mr(context, bundle),
        // The framework knows these too; the device does not.
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// A method for the router.
struct Body {
    header: IoctlHeader,
    attrs: Vec<u8>,
}

impl Body {
    fn new(object_id: u16, method_id: u16) -> Self {
        Self { header: IoctlHeader { object_id, method_id, num_attrs: 0 }, attrs: Vec::new() }
    }

    fn add(&mut self, attr_id: u16, bytes: &[u8]) {
        let attr = IoctlAttr { attr_id, len: bytes.len() as u16, reserved: 0 };
        self.attrs.extend_from_slice(attr.as_bytes());
        self.attrs.extend_from_slice(bytes);
        self.attrs.resize(self.attrs.len().next_multiple_of(8), 0);
        self.header.num_attrs += 1;
    }
}

/// Sends a method to the router; returns its response.
fn forward(context: &Context, body: Body) -> Result<Vec<u8>, Errno> {
    let body = [body.header.as_bytes(), &body.attrs].concat();
    if body.len() > MAX_MESSAGE / 2 {
        return Err(Errno::INVAL);
    }
    let _gate = memory::gate();
    context.link().call(RequestKind::Ioctl, &body, |reply| reply.response().to_vec())
}
