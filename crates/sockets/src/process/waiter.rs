//! Waiters: epoll instances and threads that sleep until a connection has something for them.

use super::Process;
use crate::lock::Spin;
use rdmesh_preload::OwnFd;
use rdmesh_streams::inbox::{PLACES, Place};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A waiter of this process. Its doorbell is an eventfd; processes that are linked have it too.
pub(crate) struct Waiter {
    process: &'static Process,
    id: u32,
    doorbell: Arc<OwnFd>,
}

/// Doorbells of a process. One that is not in use any more is kept for the next waiter: linked processes have it, and know it by
/// its number.
#[derive(Default)]
pub(crate) struct Doorbells(Spin<List>);

#[derive(Default)]
struct List {
    all: Vec<Arc<OwnFd>>,
    free: Vec<u32>,
}

impl Doorbells {
    /// A waiter of `process`; none where it has as many as it can have, or no more descriptors.
    pub(crate) fn waiter(&self, process: &'static Process) -> Option<Waiter> {
        let mut list = self.0.lock();
        if let Some(id) = list.free.pop() {
            let doorbell = Arc::clone(&list.all[id as usize]);
            return Some(Waiter { process, id, doorbell });
        }
        let id = list.all.len();
        if id == PLACES {
            return None;
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let doorbell = Arc::new(OwnFd::new(fd));
        list.all.push(Arc::clone(&doorbell));
        Some(Waiter { process, id: id as u32, doorbell })
    }

    /// Doorbell of waiter `id`.
    pub(crate) fn get(&self, id: u32) -> Option<Arc<OwnFd>> {
        self.0.lock().all.get(id as usize).cloned()
    }
}

impl Waiter {
    /// Its number in this process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The process that it belongs to, which a fork leaves behind.
    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }

    /// Its place in the inbox.
    pub(crate) fn place(&self) -> Place<'_> {
        self.process.inbox().place(self.id as usize).expect("waiters have places")
    }

    /// Its doorbell.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Takes back what has been rung.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        // Fails where nothing was rung.
        let _ = rustix::io::read(self.doorbell(), &mut count);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.place().wake_up();
        self.process.doorbells().0.lock().free.push(self.id);
    }
}
