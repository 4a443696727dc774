//! Waiting strategy of a worker: spin, yield or sleep.
//!
//! While there is work the worker polls. When there has been none for a while ([`Patience`]) it sleeps in `epoll_wait`,
//! having said so on its page, and programs wake it through an eventfd.

use super::contention::Contention;
use super::mode::Mode;
use super::patience::Patience;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The waiting side of a worker.
pub(super) struct Waiter {
    patience: Patience,
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
        Ok(Self { patience: Patience::new(mode, workers + 2, SPIN_FOR, contention), watch })
    }

    /// The epoll set that wakes the worker.
    pub(super) fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Whether the processor is given to others between passes.
    pub(super) fn yields(&self) -> bool {
        self.patience.yields()
    }

    /// A pass found work.
    pub(super) fn worked(&mut self) {
        self.patience.renew();
    }

    /// A pass found nothing. Spins or yields for a moment; returns true where it is time to sleep. See [`Patience::is_over`].
    pub(super) fn idle(&mut self, serves_network: bool) -> bool {
        self.patience.is_over(serves_network)
    }

    /// Sleeps until an eventfd is written, or for `limit`; true where it was woken.
    pub(super) fn sleep(&mut self, limit: Option<Duration>) -> bool {
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
        // Interrupted or not, the caller looks at everything again; which descriptor it was does not matter.
        let woken = epoll::wait(&self.watch.0, &mut events, limit.as_ref());
        self.patience.renew();
        woken.is_ok_and(|(events, _)| !events.is_empty())
    }
}

impl Watch {
    /// Lets `fd`, an eventfd, wake the worker.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(CONTEXT), flags)
    }

    /// Lets `fd` wake the worker as long as it is readable.
    pub(super) fn add_level(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(CONTEXT), epoll::EventFlags::IN)
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
const CONTEXT: u64 = 1;
/// Spin limit: time in which a worker polls without finding work before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(200);
