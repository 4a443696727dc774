//! `ioctl(RDMA_VERBS_IOCTL)`: the newer form of the ABI.
//!
//! Only what has no `write()` form and is served goes to the router. Everything else is EPROTONOSUPPORT, the kernel's
//! answer for a method that it does not have, upon which rdma-core (44 and newer alike) uses `write()`, and sysfs for
//! GIDs.
#![allow(unsafe_code)]

use super::context::borrow;
use crate::descriptors::{self, Kind};
use crate::memory;
use rdmesh_uverbs::abi::{ioctl_method, ioctl_object};
use rdmesh_uverbs::session::{IoctlAttr, IoctlHeader, MAX_MESSAGE, RequestKind};
use rustix::fd::RawFd;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub(crate) const VERBS_IOCTL: u32 = 0xc018_1b01;

/// Most attributes of a method.
const MAX_ATTRS: usize = 16;

/// `ib_uverbs_ioctl_hdr`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
struct Head {
    length: u16,
    object_id: u16,
    method_id: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
}

/// `ib_uverbs_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Attr {
    attr_id: u16,
    len: u16,
    flags: u16,
    attr_data: u16,
    data: u64,
}

const _: () = assert!(size_of::<Head>() == 24 && size_of::<Attr>() == 16);

/// Executes the method that `argument` describes.
pub(crate) fn verbs_ioctl(fd: RawFd, argument: *const libc::c_void) -> Result<(), Errno> {
    if argument.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: with this request number the argument points to this header.
    let head = unsafe { argument.cast::<Head>().read_unaligned() };
    let attrs = usize::from(head.num_attrs);
    if usize::from(head.length) != size_of::<Head>() + attrs * size_of::<Attr>() || head.reserved1 != 0 {
        return Err(Errno::INVAL);
    }
    if (head.object_id, head.method_id) != (ioctl_object::MR, ioctl_method::ADVISE_MR) || attrs > MAX_ATTRS {
        return Err(Errno::PROTONOSUPPORT);
    }
    let mut body = Vec::with_capacity(1024);
    let header = IoctlHeader { object_id: head.object_id, method_id: head.method_id, num_attrs: attrs as u32 };
    body.extend_from_slice(header.as_bytes());
    // SAFETY: the attributes follow the header, as many as it says (its length was checked).
    let first = unsafe { argument.cast::<Head>().add(1).cast::<Attr>() };
    for i in 0..attrs {
        // SAFETY: as above.
        append(&mut body, unsafe { first.add(i).read_unaligned() });
    }
    if body.len() > MAX_MESSAGE / 2 {
        return Err(Errno::INVAL);
    }
    forward(fd, &body)
}

fn forward(fd: RawFd, body: &[u8]) -> Result<(), Errno> {
    let Kind::Device(context) = descriptors::kind(fd) else { return Err(Errno::BADF) };
    let _gate = memory::gate();
    let mut state = context.lock();
    let connection = context.connection(&mut state)?;
    // SAFETY: the connection stays open while the state is locked.
    let socket = unsafe { borrow(connection) };
    state.channel.call(socket, RequestKind::Ioctl, body, &[], None).map(|_| ())
}

/// Appends an input attribute: its bytes lie in the attribute itself up to eight of them, else behind its pointer. One
/// without a length is a handle, which is sent as eight bytes.
fn append(body: &mut Vec<u8>, attr: Attr) {
    let len = if attr.len == 0 { 8 } else { attr.len };
    let inline = attr.data.to_ne_bytes();
    let bytes = if len <= 8 {
        &inline[..usize::from(len)]
    } else {
        let data = std::ptr::with_exposed_provenance::<u8>(attr.data as usize);
        // SAFETY: a longer input attribute points to `len` bytes, says the ABI.
        unsafe { std::slice::from_raw_parts(data, usize::from(len)) }
    };
    body.extend_from_slice(IoctlAttr { attr_id: attr.attr_id, len, reserved: 0 }.as_bytes());
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(8), 0);
}
