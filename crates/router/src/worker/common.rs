//! State that all workers of a router share.

use super::contention::Contention;
use crate::routes::SharedRoutes;
use rdmesh_uverbs::page::{WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state.
pub(super) struct Common {
    routes: SharedRoutes,
    contention: Arc<Contention>,
    flags: WorkerFlags,
    flags_fd: OwnedFd,
    move_lock: Mutex<()>,
}

impl Common {
    /// No routes, whose hash tables use `seed`, and no contention.
    pub(super) fn new(seed: u64) -> io::Result<Self> {
        let (memory, flags_fd) = SharedMemory::create_published("rdmesh-workers", WORKERS_LEN)?;
        let flags = WorkerFlags::new(memory).ok_or(io::Errno::INVAL)?;
        let contention = Contention::new(flags.clone());
        Ok(Self { routes: SharedRoutes::new(seed), contention, flags, flags_fd, move_lock: Mutex::default() })
    }

    /// The routes to the addresses of tenant networks.
    pub(super) fn routes(&self) -> &SharedRoutes {
        &self.routes
    }

    /// Whether other programs want the processors.
    pub(super) fn contention(&self) -> &Arc<Contention> {
        &self.contention
    }

    /// State of the workers that programs see.
    pub(super) fn flags(&self) -> &WorkerFlags {
        &self.flags
    }

    /// The same, for programs.
    pub(super) fn flags_fd(&self) -> BorrowedFd<'_> {
        self.flags_fd.as_fd()
    }

    /// Held while a context moves: every worker takes part in one move at a time.
    pub(super) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.move_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
