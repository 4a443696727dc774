//! Asynchronous events of the device (IBA 11.6.3): of interest is the one that ends it.

use super::{Library, sys};
use rustix::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Events of a device that is open until the process ends.
pub(crate) struct Events {
    library: Arc<Library>,
    context: NonNull<sys::Context>,
}

// SAFETY: libibverbs may be called by any thread; the context is never closed.
unsafe impl Send for Events {}

impl Events {
    pub(super) fn new(library: Arc<Library>, context: NonNull<sys::Context>) -> Self {
        Self { library, context }
    }

    /// Takes an event, which must be there. Whether the device is gone: it completes nothing more.
    pub(crate) fn is_device_gone(&self) -> bool {
        let functions = &self.library.functions;
        let mut event = sys::Event::EMPTY;
        // SAFETY: an open context, and an event that is acknowledged once.
        unsafe {
            if (functions.get_async_event)(self.context.as_ptr(), &mut event) != 0 {
                return true;
            }
            (functions.ack_async_event)(&mut event);
        }
        event.kind == DEVICE_FATAL
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its descriptor stay open.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().event_fd) }
    }
}

/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: i32 = 8;
