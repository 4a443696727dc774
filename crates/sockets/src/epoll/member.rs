//! Streams as members of an epoll instance: what the program wants to know, and what it has been told.
#![allow(unsafe_code)]

use crate::process::as_stream;
use crate::stream::{Channel, ENDED, FIN, Stream, URGENT};
use crate::table::Object;
use libc::epoll_event;
use rdmesh_preload::{errno, real};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// A member.
pub(super) struct Member {
    object: Arc<Object>,
    wanted: Wanted,
    /// Whether the kernel knows it by our key.
    has_rings: bool,
    /// Places of the instance's waiter at the stream.
    places: [Option<usize>; 2],
    is_queued: bool,
    /// It has got rings and reported nothing since: the kernel may have reported it a moment ago.
    is_fresh: bool,
    state: State,
    told: Told,
}

#[derive(Clone, Copy)]
struct Wanted {
    events: u32,
    data: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Armed,
    /// By `EPOLLONESHOT`, until it is changed.
    Disarmed,
    /// By the program; the kernel still has it.
    Removed,
}

/// State at the last report of an edge-triggered member.
#[derive(Clone, Copy, Default)]
struct Told {
    arrived: Option<u64>,
    /// Times that the stream was full when it was last told that there is space.
    full: Option<u32>,
    kernel: u32,
    /// It has not been told of space that the kernel has reported: bytes go by TCP.
    is_behind: bool,
}

impl Member {
    pub(super) fn new(object: Arc<Object>, wanted: epoll_event, has_rings: bool, places: [Option<usize>; 2]) -> Self {
        let wanted = Wanted { events: wanted.events, data: wanted.u64 };
        let (state, told) = (State::Armed, Told::default());
        Self { object, wanted, has_rings, places, is_queued: false, is_fresh: false, state, told }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        as_stream(&self.object)
    }

    pub(super) fn has_rings(&self) -> bool {
        self.has_rings
    }

    pub(super) fn set_has_rings(&mut self, has_rings: bool) {
        (self.has_rings, self.is_fresh) = (has_rings, has_rings);
        self.told = Told::default();
    }

    /// Whether this is the first thing asked of it since it has got rings.
    pub(super) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.is_fresh)
    }

    pub(super) fn places(&self) -> [Option<usize>; 2] {
        self.places
    }

    pub(super) fn is_removed(&self) -> bool {
        self.state == State::Removed
    }

    pub(super) fn remove(&mut self) {
        self.state = State::Removed;
    }

    /// The program wants to know this, from now on.
    pub(super) fn revive(&mut self, wanted: epoll_event) {
        self.wanted = Wanted { events: wanted.events, data: wanted.u64 };
        self.state = State::Armed;
        self.told = Told::default();
    }

    pub(super) fn wanted_events(&self) -> epoll_event {
        epoll_event { events: self.wanted.events, u64: self.wanted.data }
    }

    /// The kernel has reported these bits: they are news, also if they were before.
    pub(super) fn kernel_reports(&mut self, bits: u32) {
        self.told.kernel &= !bits;
        self.told.is_behind |= bits & OUT != 0;
        if let Some(channel) = as_stream(&self.object).and_then(Stream::channel) {
            channel.note_kernel(bits);
        }
    }

    /// False where it is in the queue already.
    pub(super) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    pub(super) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// Whether it is to be looked at again although nothing has happened: level-triggered, with something to report.
    pub(super) fn stays_queued(&self) -> bool {
        self.state == State::Armed && self.wanted.events & libc::EPOLLET as u32 == 0
    }

    /// The event to report now, if there is one.
    pub(super) fn report(&mut self, fd: c_int) -> Option<epoll_event> {
        if self.state != State::Armed || !self.has_rings {
            return None;
        }
        let events = self.events(fd);
        if events == 0 {
            return None;
        }
        if self.wanted.events & libc::EPOLLONESHOT as u32 != 0 {
            self.state = State::Disarmed;
        }
        Some(epoll_event { events, u64: self.wanted.data })
    }

    /// Whether there would be something to report of a level-triggered member.
    pub(super) fn is_ready(&self, fd: c_int) -> bool {
        let Some(stream) = self.stream().filter(|_| self.state == State::Armed && self.has_rings) else { return false };
        stream.look_for_end(fd);
        let wanted = self.wanted.events;
        let has_ended = stream.channel().is_some_and(|channel| channel.kernel() & (FIN | ENDED) != 0);
        wanted & IN != 0 && stream.is_readable(fd) || wanted & OUT != 0 && stream.is_writable(fd) || has_ended
    }

    fn events(&mut self, fd: c_int) -> u32 {
        let Some(stream) = as_stream(&self.object) else { return 0 };
        stream.look_for_end(fd);
        let (wanted, is_edge) = (self.wanted.events, self.wanted.events & libc::EPOLLET as u32 != 0);
        let kernel = stream.channel().map_or(0, Channel::kernel);
        let mut events = 0;
        if wanted & IN != 0 {
            let arrived = stream.arrived();
            let is_news = self.told.arrived != Some(arrived) || kernel & !self.told.kernel != 0;
            if (!is_edge || is_news) && stream.is_readable(fd) {
                events |= wanted & IN;
                self.told.arrived = Some(arrived);
            }
        }
        let has_space = self.told.is_behind || self.told.full != Some(stream.times_full());
        if wanted & OUT != 0 && (!is_edge || has_space) && stream.is_writable(fd) {
            events |= wanted & OUT;
            (self.told.full, self.told.is_behind) = (Some(stream.times_full()), false);
        }
        if kernel & FIN != 0 && wanted & libc::EPOLLRDHUP as u32 != 0 && (!is_edge || self.told.kernel & FIN == 0) {
            events |= libc::EPOLLRDHUP as u32;
        }
        if kernel & URGENT != 0 && wanted & URGENT != 0 && (!is_edge || self.told.kernel & URGENT == 0) {
            events |= URGENT;
        }
        if kernel & ENDED != 0 && (!is_edge || self.told.kernel & ENDED == 0) {
            events |= kernel & ENDED;
        }
        self.told.kernel = kernel;
        events
    }
}

/// The event that a program passes; none for no pointer.
pub(super) fn wanted(event: *const epoll_event) -> Option<epoll_event> {
    // SAFETY: the program hands an event, or NULL.
    (!event.is_null()).then(|| unsafe { event.read_unaligned() })
}

/// Events that the kernel reports of a stream with rings: space only where bytes go by TCP.
pub(super) fn edges_of(stream: &Stream) -> u32 {
    let goes_by_tcp = stream.channel().is_some_and(|channel| !stream.writes_to_ring(channel));
    EDGES | if goes_by_tcp { libc::EPOLLOUT as u32 } else { 0 }
}

/// `epoll_ctl` of the kernel.
pub(super) fn register(epfd: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
    let mut event = epoll_event { events, u64: data };
    match real::epoll_ctl(epfd, operation, fd, (&raw mut event).cast()) {
        0 => Ok(()),
        _ => Err(errno::get()),
    }
}

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Of a doorbell.
pub(super) const EDGE_IN: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;
/// Of a stream with rings.
const EDGES: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
const _: () = assert!(FIN == libc::EPOLLRDHUP as u32 && ENDED == (libc::EPOLLHUP | libc::EPOLLERR) as u32);
