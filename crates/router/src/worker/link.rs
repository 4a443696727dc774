//! State of a worker that other threads see: its queues, and whether it sleeps.

use super::stats::Counters;
use super::wait;
use crate::io::{self as net, Mailbox};
use crate::memory::TenantMemory;
use crossbeam_queue::ArrayQueue;
use rdmesh_nic::Packet;
use rdmesh_uverbs::page::WorkerFlags;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// State that other threads share with a worker.
pub(super) struct Link {
    /// Commands sent, or about to be, and not executed.
    pub(super) waiting: AtomicUsize,
    pub(super) packets: ArrayQueue<Packet<TenantMemory>>,
    /// Datagrams that other workers received.
    pub(super) mailbox: Mailbox,
    pub(super) inbox: OwnedFd,
    /// Its number, and where programs see whether it sleeps.
    number: u32,
    flags: WorkerFlags,
    pub(super) stop: AtomicBool,
    pub(super) counters: Counters,
    pub(super) io: Arc<net::Counters>,
}

impl Link {
    /// That of worker `number` of so many, whose state programs see in `flags`.
    pub(super) fn new(number: u32, workers: usize, flags: WorkerFlags) -> io::Result<Self> {
        Ok(Self {
            waiting: AtomicUsize::new(0),
            packets: ArrayQueue::new(PACKETS),
            // A worker alone gets all its datagrams itself.
            mailbox: Mailbox::new(if workers > 1 { DATAGRAMS } else { 0 }),
            inbox: wait::new_eventfd()?,
            number,
            flags,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
            io: Arc::default(),
        })
    }

    /// The worker is about to sleep, or is awake again.
    pub(super) fn set_sleeping(&self, is_sleeping: bool) {
        self.flags.set_sleeping(self.number, is_sleeping);
    }

    /// Whether the worker sleeps, to be asked after what it is to be woken for has been queued.
    pub(super) fn is_sleeping(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flags.is_sleeping(self.number)
    }
}

/// Packets that may wait for a worker.
const PACKETS: usize = 1024;
/// Datagrams that may.
pub(super) const DATAGRAMS: usize = 256;
