//! How a worker waits for work.
//!
//! While there is work the worker polls. When there has been none for a while it sleeps in `epoll_wait`, having said so
//! on its page, and programs wake it through an eventfd. In between it spins, or, where processors are few, yields: three
//! pollers on two processors that never yield would stop each other for whole scheduler slices. Yielding is for pollers among
//! themselves: to a thread that computes it gives a whole slice away, and the scheduler holds that against the worker. So
//! where a yield was slow the worker sleeps instead for a while: who sleeps is woken promptly.

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io;
use rustix::time::{ClockId, clock_gettime};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How a worker waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Poll for ever: least latency, one processor per worker.
    Spin,
    /// Poll while in use, sleep when idle.
    #[default]
    Adaptive,
    /// Sleep whenever there is nothing to do: least processor time.
    Sleep,
}

/// The waiting side of a worker.
pub(super) struct Waiter {
    mode: Mode,
    yields: bool,
    poll: OwnedFd,
    /// Passes without work since the last one with.
    idle: u32,
    idle_since: u64,
    /// Until when yields are not tried again.
    crowded_until: u64,
}

impl Waiter {
    /// A waiter that `inbox`, an eventfd, wakes too.
    pub(super) fn new(mode: Mode, workers: usize, inbox: BorrowedFd<'_>) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // A worker and two programs that poll are the least that a transfer has.
        let yields = processors < workers + 2;
        Ok(Self { mode, yields, poll, idle: 0, idle_since: 0, crowded_until: 0 })
    }

    /// Lets `fd`, an eventfd, wake the worker.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.poll, fd, epoll::EventData::new_u64(CONTEXT), flags)
    }

    /// Lets `fd` wake the worker as long as it is readable.
    pub(super) fn add_level(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.poll, fd, epoll::EventData::new_u64(CONTEXT), epoll::EventFlags::IN)
    }

    /// No longer lets `fd` wake the worker, whoever else holds it.
    pub(super) fn remove(&self, fd: impl AsFd) {
        // An error means that it was never added.
        let _ = epoll::delete(&self.poll, fd);
    }

    /// A pass found work.
    pub(super) fn worked(&mut self) {
        self.idle = 0;
    }

    /// A pass found nothing. Spins or yields for a moment; returns true where it is time to sleep.
    pub(super) fn idle(&mut self) -> bool {
        self.idle = self.idle.saturating_add(1);
        if self.mode == Mode::Sleep {
            return self.idle > 1;
        }
        if self.yields {
            if self.is_crowded() {
                return true;
            }
        } else {
            std::hint::spin_loop();
        }
        if self.mode == Mode::Spin || !self.idle.is_multiple_of(CLOCK_EVERY) {
            return false;
        }
        let now = nanoseconds();
        if self.idle == CLOCK_EVERY {
            self.idle_since = now;
        }
        now.saturating_sub(self.idle_since) > SPIN_FOR.as_nanos() as u64
    }

    /// Yields, unless it was slow lately; true where it was.
    fn is_crowded(&mut self) -> bool {
        let before = nanoseconds();
        if self.mode == Mode::Adaptive && before < self.crowded_until {
            return true;
        }
        rustix::thread::sched_yield();
        let after = nanoseconds();
        let slow = self.mode == Mode::Adaptive && after - before > SLOW_YIELD.as_nanos() as u64;
        if slow {
            self.crowded_until = after + CROWDED_FOR.as_nanos() as u64;
        }
        slow
    }

    /// Sleeps until an eventfd is written, or for `limit`; true where it was woken.
    pub(super) fn sleep(&mut self, limit: Option<Duration>) -> bool {
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
        // Interrupted or not, the caller looks at everything again; which descriptor it was does not matter.
        let woken = epoll::wait(&self.poll, &mut events, limit.as_ref());
        self.idle = 0;
        woken.is_ok_and(|(events, _)| !events.is_empty())
    }
}

/// An eventfd for a worker's inbox or a context.
pub(super) fn new_eventfd() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes whoever sleeps on `fd`. A full counter wakes as well as a fresh one.
pub(super) fn notify(fd: impl AsFd) {
    let _ = io::write(fd, &1u64.to_ne_bytes());
}

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

const INBOX: u64 = 0;
const CONTEXT: u64 = 1;
/// Idle passes between two looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// Pollers give the processor back sooner than this; whoever computes does not.
const SLOW_YIELD: Duration = Duration::from_millis(1);
/// How long the worker sleeps rather than yields after a slow yield.
const CROWDED_FOR: Duration = Duration::from_millis(20);
/// How long a worker polls without finding work before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(200);
