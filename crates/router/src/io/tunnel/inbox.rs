//! Inbox of the handshake thread: control messages from the workers, and senders that are not peers.

use crossbeam_queue::ArrayQueue;
use rdmesh_nic::wire::geneve::CONTROL_BODY;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// Queue of messages, short enough that a flood of them costs little; a host whose message is dropped repeats it.
pub(super) struct Inbox {
    messages: ArrayQueue<(IpAddr, [u8; CONTROL_BODY])>,
    dropped: AtomicU64,
    strangers: Strangers,
    thread: OnceLock<Thread>,
}

/// Unknown senders: packets from addresses that are not a host's.
#[derive(Default)]
pub(super) struct Strangers {
    packets: AtomicU64,
    last: Mutex<Option<IpAddr>>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let (dropped, strangers) = (AtomicU64::new(0), Strangers::default());
        Self { messages: ArrayQueue::new(ROOM), dropped, strangers, thread: OnceLock::new() }
    }

    /// Sets the thread to be woken.
    pub(super) fn set_reader(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    pub(super) fn post(&self, from: IpAddr, body: &[u8; CONTROL_BODY]) {
        match self.messages.push((from, *body)) {
            Ok(()) => self.wake(),
            Err(_) => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub(super) fn take(&self) -> Option<(IpAddr, [u8; CONTROL_BODY])> {
        self.messages.pop()
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    pub(super) fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Messages for which there was no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Strangers {
    pub(super) fn note(&self, from: IpAddr) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        // Never blocks: a reader or another worker may hold the lock.
        if let Ok(mut last) = self.last.try_lock() {
            *last = Some(from);
        }
    }

    /// Number of packets, and the source of the last one.
    pub(super) fn seen(&self) -> (u64, Option<IpAddr>) {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        (self.packets.load(Ordering::Relaxed), last)
    }
}

/// Messages that may wait.
const ROOM: usize = 32;
