//! Deferred doorbells.
//!
//! Waking a thread on another processor costs the one that wakes 12 us on a virtual machine, as much as a dozen messages. While a
//! program handles a batch of events, wake-ups are collected, and done when it waits again: a server that answers 20 requests of
//! one client wakes that once. A lone event's answer wakes at once.

use crate::process::Link;
use arrayvec::ArrayVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Most wake-ups that are deferred.
const MOST: usize = 16;

thread_local! {
    /// Events of the batch that this thread has been given last.
    static BATCH: Cell<usize> = const { Cell::new(0) };
    static DEFERRED: RefCell<Deferred> = const { RefCell::new(Deferred(ArrayVec::new_const())) };
}

/// Waiters to be woken, which a thread that ends wakes.
struct Deferred(ArrayVec<(Arc<Link>, u32), MOST>);

/// This thread has been given so many events to handle.
pub(crate) fn begin_batch(events: usize) {
    BATCH.set(events);
}

/// Wakes a waiter of a linked process, now or at the end of the batch.
pub(crate) fn request(link: &Arc<Link>, waiter: u32) {
    let deferred = BATCH.get() > 1
        && DEFERRED.try_with(|list| list.try_borrow_mut().is_ok_and(|mut list| list.add(link, waiter))) == Ok(true);
    if !deferred {
        link.wake(waiter);
    }
}

/// Does what was deferred: this thread is about to wait.
pub(crate) fn flush() {
    BATCH.set(0);
    let _ = DEFERRED.try_with(|list| list.try_borrow_mut().map(|mut list| list.flush()));
}

/// Forgets what was deferred: after a fork it is the parent's to do.
pub(crate) fn forget() {
    BATCH.set(0);
    let _ = DEFERRED.try_with(|list| {
        list.try_borrow_mut().map(|mut list| std::mem::take(&mut list.0).into_iter().for_each(std::mem::forget))
    });
}

impl Deferred {
    /// False where the list is full, and has been done.
    fn add(&mut self, link: &Arc<Link>, waiter: u32) -> bool {
        if self.0.iter().any(|(other, id)| *id == waiter && Arc::ptr_eq(other, link)) {
            return true;
        }
        if self.0.try_push((Arc::clone(link), waiter)).is_ok() {
            return true;
        }
        self.flush();
        false
    }

    fn flush(&mut self) {
        self.0.drain(..).for_each(|(link, waiter)| link.wake(waiter));
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.flush();
    }
}
