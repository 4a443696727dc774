//! Owner processes: an endpoint is removed when its owner ends.

use crate::endpoint::EndpointId;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Watches for the end of processes.
#[derive(Debug)]
pub(super) struct Owners {
    epoll: OwnedFd,
    stop: OwnedFd,
    /// Endpoints that are looked at again, and when.
    later: Mutex<BTreeSet<(Instant, u32)>>,
}

impl Owners {
    /// An empty set of processes.
    pub(super) fn new() -> io::Result<Self> {
        let owners = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            later: Mutex::default(),
        };
        epoll::add(&owners.epoll, &owners.stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        Ok(owners)
    }

    /// Opens process `pid`; what is returned becomes readable when it ends.
    pub(super) fn open(pid: i32) -> io::Result<OwnedFd> {
        pidfd_open(Pid::from_raw(pid).ok_or(io::Errno::SRCH)?, PidfdFlags::empty())
    }

    /// Lets [`Owners::next`] return `endpoint` when `process` ends. Closing `process` ends the watch.
    pub(super) fn watch(&self, process: BorrowedFd<'_>, endpoint: EndpointId) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&self.epoll, process, epoll::EventData::new_u64(endpoint.0.into()), flags)
    }

    /// Lets [`Owners::next`] return `endpoint` once more after this time. Of use to the thread that waits there.
    pub(super) fn look_again(&self, endpoint: EndpointId, after: Duration) {
        self.later().insert((Instant::now() + after.max(PAUSE), endpoint.0));
    }

    /// Waits for the next process to end; none after [`Owners::stop`].
    pub(super) fn next(&self) -> Option<EndpointId> {
        let mut events = Vec::with_capacity(1);
        loop {
            let next = self.later().first().copied();
            let left = next.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            if let (Some(Duration::ZERO), Some((_, endpoint))) = (left, next) {
                self.later().pop_first();
                return Some(EndpointId(endpoint));
            }
            let limit = left.and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
                Ok(_) | Err(io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot watch the owners of endpoints any longer");
                    return None;
                }
            }
            if let Some(event) = events.pop() {
                return u32::try_from(event.data.u64()).ok().map(EndpointId);
            }
        }
    }

    /// Makes [`Owners::next`] return none, now and for ever.
    pub(super) fn stop(&self) {
        // Writing 1 to a counter fails only when it is full, and then it is readable too.
        let _ = io::write(&self.stop, &1u64.to_ne_bytes());
    }

    fn later(&self) -> MutexGuard<'_, BTreeSet<(Instant, u32)>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shortest time after which an endpoint is looked at again.
const PAUSE: Duration = Duration::from_millis(10);

/// No endpoint's number: those have 32 bits.
const STOP: u64 = u64::MAX;
