//! Device removal after the router's death: the last events that a program reads (IBV_EVENT_DEVICE_FATAL).
//!
//! The kernel reports that by one IBV_EVENT_DEVICE_FATAL, and every later read and command fails with EIO
//! (`ib_uverbs_event_read` after `ib_uverbs_disassociate_ucontext`). The descriptors are sockets, which end when the router
//! does: poll and epoll show them readable, and a thread that waits wakes up, with nothing replaced but the read of the end.
#![allow(unsafe_code)]

use super::{Context, completion};
use crate::descriptors;
use crate::errno::minus_one;
use crate::memory;
use libc::{c_int, c_void, size_t, ssize_t};
use rdmesh_uverbs::abi::AsyncEventDesc;
use rdmesh_uverbs::page::MAX_HANDLES;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Arc;

const EVENT_LEN: usize = size_of::<AsyncEventDesc>();
/// `IB_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;

/// Result of a program's read from `fd` after the end of its stream.
#[cold]
pub(crate) fn end_of_events(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let _gate = memory::gate();
    let Some(context) = context_of(fd) else {
        return if completion::is_channel(fd) { minus_one(Errno::IO) } else { 0 };
    };
    if context.events().is_over() {
        return minus_one(Errno::IO);
    }
    if count < EVENT_LEN {
        return minus_one(Errno::INVAL);
    }
    if !context.events().end() {
        // Another thread was faster.
        return minus_one(Errno::IO);
    }
    context.forget_queue_pairs();
    let event = AsyncEventDesc { event_type: DEVICE_FATAL, ..Default::default() };
    // SAFETY: the program hands `count` writable bytes, which are enough.
    unsafe { buffer.cast::<AsyncEventDesc>().write_unaligned(event) };
    EVENT_LEN as ssize_t
}

/// The open context of the asynchronous event descriptor `fd`. None for a context that the program has closed, whose end is not
/// reported.
fn context_of(fd: RawFd) -> Option<Arc<Context>> {
    let mut found = None;
    descriptors::for_each(|context: Arc<Context>| {
        if context.events().check(fd).is_ok() {
            found = Some(context);
        }
    });
    found
}

impl Context {
    /// Lets every later post fail, as it does where the kernel has let go of the device.
    fn forget_queue_pairs(&self) {
        (0..MAX_HANDLES).for_each(|qp| self.page().set_qp_state(qp, 0));
    }
}
