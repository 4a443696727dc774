//! Connections whose rings are full: the agent looks at them now and then, until their readers go on or they have left the rings.

use super::{Process, as_stream};
use crate::lock::Spin;
use crate::stream::Stream;
use rdmesh_preload::OwnFd;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::AsFd;
use rustix::io::{self, Errno};

/// Indices of such connections.
pub(super) struct Stalls {
    watched: Spin<Vec<u32>>,
    /// Wakes the agent for the first.
    bell: OwnFd,
}

impl Stalls {
    /// None of them. The agent sleeps on the epoll instance `agent`, which reports the bell by `key`.
    pub(super) fn new(agent: impl AsFd, key: u64) -> Result<Self, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(agent, &bell, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        Ok(Self { watched: Spin::default(), bell: OwnFd::new(bell) })
    }

    /// Time that the agent may sleep; none for as long as it likes.
    pub(super) fn pause(&self) -> Option<&'static Timespec> {
        (!self.watched.lock().is_empty()).then_some(&PAUSE)
    }

    /// The agent is awake.
    pub(super) fn silence(&self) {
        // Fails where nothing was rung.
        let _ = io::read(&self.bell, &mut [0; 8]);
    }
}

impl Process {
    /// Has the agent look at connection `index`.
    pub(crate) fn watch_for_stall(&self, index: u32) {
        let mut watched = self.stalls.watched.lock();
        let is_first = watched.is_empty();
        watched.push(index);
        drop(watched);
        if is_first {
            // An eventfd that says so little is never full.
            let _ = io::write(&self.stalls.bell, &1u64.to_ne_bytes());
        }
    }

    /// Looks at all of them. Called by the agent.
    pub(super) fn look_at_stalls(&self) {
        let looked_at = std::mem::take(&mut *self.stalls.watched.lock());
        let is_kept = |index: &u32| {
            let object = self.stream(*index);
            object.as_deref().and_then(as_stream).is_some_and(Stream::look_at_stall)
        };
        let kept: Vec<u32> = looked_at.into_iter().filter(is_kept).collect();
        self.stalls.watched.lock().extend(kept);
    }
}

/// Between two looks.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
