//! Waiting strategy of a worker: spin, yield or sleep.
//!
//! While there is work the worker polls. When there has been none for a while ([`SpinLimit`]) it sleeps in `epoll_wait`,
//! having said so on its page, and programs wake it through an eventfd.

use super::contention::Contention;
use super::mode::Mode;
use super::spin_limit::SpinLimit;
use rdmesh_nic::ContextId;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The waiting side of a worker.
pub(super) struct Waiter {
    spin_limit: SpinLimit,
    watch: Watch,
}

/// Epoll set of the descriptors that may wake a worker.
#[derive(Clone)]
pub(super) struct Watch(Arc<OwnedFd>);

impl Waiter {
    /// A waiter that `inbox`, an eventfd, wakes too.
    pub(super) fn new(
        mode: Mode,
        workers: usize,
        inbox: BorrowedFd<'_>,
        contention: Arc<Contention>,
    ) -> io::Result<Self> {
        let watch = Watch(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?));
        epoll::add(&watch.0, inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        // A transfer has at least two more threads that poll: those of the two programs.
        Ok(Self { spin_limit: SpinLimit::new(mode, workers + 2, SPIN_FOR, contention), watch })
    }

    /// The epoll set that wakes the worker.
    pub(super) fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Whether the processor is given to others between passes.
    pub(super) fn yields(&self) -> bool {
        self.spin_limit.yields()
    }

    /// A pass found work.
    pub(super) fn worked(&mut self) {
        self.spin_limit.renew();
    }

    /// A pass found nothing. Spins or yields for a moment; returns true where it is time to sleep. See [`SpinLimit::is_over`].
    pub(super) fn idle(&mut self, serves_network: bool) -> bool {
        self.spin_limit.is_over(serves_network)
    }

    /// Sleeps until an eventfd is written, or for `limit`; true where it was woken. `rung` is called with the contexts whose
    /// eventfds were.
    pub(super) fn sleep(&mut self, limit: Option<Duration>, rung: impl FnMut(ContextId)) -> bool {
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let woken = self.watch.wait(limit.as_ref(), rung);
        self.spin_limit.renew();
        woken
    }
}

impl Watch {
    /// Lets `fd`, the eventfd of a context, wake the worker.
    pub(super) fn add(&self, id: ContextId, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(CONTEXT | u64::from(id.0)), flags)
    }

    /// Calls `rung` with the contexts whose eventfds have been written, without waiting.
    pub(super) fn look(&self, rung: impl FnMut(ContextId)) {
        self.wait(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), rung);
    }

    /// Waits until an eventfd is written, or for `limit`. Those that are not reported now are the next time.
    fn wait(&self, limit: Option<&Timespec>, mut rung: impl FnMut(ContextId)) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
        // Interrupted or not, the caller looks at everything again.
        let Ok((events, _)) = epoll::wait(&self.0, &mut events, limit) else { return false };
        for event in &*events {
            if let Some(id) = event.data.u64().checked_sub(CONTEXT) {
                rung(ContextId(id as u32));
            }
        }
        !events.is_empty()
    }

    /// Lets `fd` wake the worker as long as it is readable.
    pub(super) fn add_level(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(SOCKETS), epoll::EventFlags::IN)
    }

    /// No longer lets `fd` wake the worker, even if other processes hold it.
    pub(super) fn remove(&self, fd: impl AsFd) {
        // An error means that it was never added.
        let _ = epoll::delete(&self.0, fd);
    }
}

/// An eventfd for a worker's inbox or a context.
pub(super) fn new_eventfd() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes the threads that sleep on `fd`. A full counter wakes as well as a fresh one.
pub(super) fn notify(fd: impl AsFd) {
    let _ = io::write(fd, &1u64.to_ne_bytes());
}

const INBOX: u64 = 0;
const SOCKETS: u64 = 1;
/// With the number of the context.
const CONTEXT: u64 = 1 << 32;
/// Spin limit: time in which a worker polls without finding work before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(200);
