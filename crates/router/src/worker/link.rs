//! State of a worker that other threads see: its queues, and whether it sleeps.

use super::stats::Counters;
use super::wait;
use crate::io::{self as net, Mailbox};
use crate::memory::TenantMemory;
use crossbeam_queue::ArrayQueue;
use rdmesh_nic::Packet;
use rdmesh_uverbs::page::{WORKER_PAGE_LEN, WorkerPage};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// State that other threads share with a worker.
pub(super) struct Link {
    /// Commands sent, or about to be, and not executed.
    pub(super) waiting: AtomicUsize,
    pub(super) packets: ArrayQueue<Packet<TenantMemory>>,
    /// Datagrams that other workers received.
    pub(super) mailbox: Mailbox,
    pub(super) inbox: OwnedFd,
    pub(super) page: WorkerPage,
    pub(super) page_fd: OwnedFd,
    pub(super) stop: AtomicBool,
    pub(super) counters: Counters,
    pub(super) io: Arc<net::Counters>,
}

impl Link {
    /// One of `workers`.
    pub(super) fn new(workers: usize) -> io::Result<Self> {
        let (memory, page_fd) = SharedMemory::create_published("rdmesh-worker", WORKER_PAGE_LEN)?;
        Ok(Self {
            waiting: AtomicUsize::new(0),
            packets: ArrayQueue::new(PACKETS),
            // A worker alone gets all its datagrams itself.
            mailbox: Mailbox::new(if workers > 1 { DATAGRAMS } else { 0 }),
            inbox: wait::new_eventfd()?,
            page: WorkerPage::new(memory).ok_or(io::Errno::INVAL)?,
            page_fd,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
            io: Arc::default(),
        })
    }
}

/// Packets that may wait for a worker.
const PACKETS: usize = 1024;
/// Datagrams that may.
pub(super) const DATAGRAMS: usize = 256;
