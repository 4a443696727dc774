//! `poll` and `select` with streams among the descriptors.
#![allow(unsafe_code)]

use crate::process::{Waiter, as_stream};
use crate::stream::{Channel, Deadline, ENDED, FIN, Stream, Way, own_waiter, spin};
use crate::table::{self, Object};
use crate::wake;
use arrayvec::ArrayVec;
use libc::{pollfd, sigset_t};
use rdmesh_preload::{errno, real};
use rdmesh_streams::report::Reason;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::ffi::{c_int, c_short};
use std::sync::Arc;

/// A stream of a `poll`, and where it is in the list.
struct Polled {
    at: usize,
    object: Arc<Object>,
    /// Places of this thread's waiter at the stream.
    places: ArrayVec<(Way, usize), 2>,
}

/// Whether one of the descriptors is of interest.
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| table::TABLE.glance(entry.fd).is_some())
}

/// `ppoll`.
pub(crate) fn poll(fds: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
    wake::flush();
    let mut polled = streams(fds);
    for entry in &*fds {
        if let Some(epoll) = table::epoll(entry.fd) {
            epoll.nest();
        }
    }
    let ready = |polled: &[Polled], fds: &[pollfd]| polled.iter().any(|one| one.events(fds[one.at]) != 0);
    let waiter = own_waiter();
    let mut list: Vec<pollfd> = Vec::with_capacity(fds.len() + 1);
    let mut is_watching = false;
    loop {
        let mut over = ready(&polled, fds) || deadline.is_over();
        if !over && !is_watching {
            // The kernel is asked in any case.
            over = spin(|| polled.iter().any(|one| one.may_be_ready(fds[one.at])));
        }
        if !over && !is_watching {
            is_watching = true;
            waiter.iter().for_each(|waiter| polled.iter_mut().for_each(|one| one.watch(waiter, fds[one.at])));
            // What has come before the waiters were there is not told.
            over = ready(&polled, fds);
        }
        fill(&mut list, fds, &polled, waiter.as_deref());
        let result = if over {
            kernel_poll(&mut list, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 }), std::ptr::null())
        } else {
            sleep(
                &mut list,
                waiter.as_deref(),
                || polled.iter().any(|one| one.may_be_ready(fds[one.at])),
                deadline,
                mask,
            )
        };
        let failed = (result < 0).then(errno::get);
        forget_closed(&mut polled, fds);
        let count = if failed.is_some() { 0 } else { take(&list, fds, &polled) };
        if failed.is_some() || count != 0 || deadline.is_over() {
            polled.iter_mut().for_each(Polled::unwatch);
            return failed.filter(|_| count == 0).map_or(count, errno::minus_one);
        }
    }
}

fn streams(fds: &[pollfd]) -> Vec<Polled> {
    let stream = |(at, entry): (usize, &pollfd)| {
        table::settle(entry.fd);
        let object = table::object(entry.fd)?;
        let stream = as_stream(&object).filter(|stream| !stream.is_plain())?;
        stream.leave_parents_rings(entry.fd);
        Some(Polled { at, object, places: ArrayVec::new() })
    };
    fds.iter().enumerate().filter_map(stream).collect()
}

/// Drops streams whose descriptors another thread has closed: the kernel answers for what is there now.
fn forget_closed(polled: &mut Vec<Polled>, fds: &[pollfd]) {
    polled.retain_mut(|one| {
        let is_there = table::object(fds[one.at].fd).is_some_and(|object| Arc::ptr_eq(&object, &one.object));
        if !is_there {
            one.unwatch();
        }
        is_there
    });
}

/// Sleeps in the kernel until something happens to the descriptors in `list`, or the waiter is told of a stream.
fn sleep(
    list: &mut [pollfd],
    waiter: Option<&Waiter>,
    may_be_ready: impl Fn() -> bool,
    deadline: Deadline,
    mask: *const sigset_t,
) -> c_int {
    let Some(waiter) = waiter else {
        // Nobody tells: it looks again by itself.
        return kernel_poll(list, Some(libc::timespec { tv_sec: 0, tv_nsec: TICK_NS }), mask);
    };
    waiter.place().fall_asleep();
    let time = if may_be_ready() { Some(libc::timespec { tv_sec: 0, tv_nsec: 0 }) } else { deadline.left() };
    let result = kernel_poll(list, time, mask);
    waiter.place().wake_up();
    waiter.place().forget();
    if list.last().is_some_and(|doorbell| doorbell.revents != 0) {
        waiter.silence();
    }
    result
}

/// Fills the list for the kernel: for streams, the events of their TCP sockets.
fn fill(list: &mut Vec<pollfd>, fds: &[pollfd], polled: &[Polled], waiter: Option<&Waiter>) {
    list.clear();
    list.extend(fds.iter().map(|entry| pollfd { revents: 0, ..*entry }));
    for one in polled {
        let entry = &mut list[one.at];
        if one.stream().is_some_and(|stream| stream.channel().is_some_and(|channel| stream.writes_to_ring(channel))) {
            entry.events &= !OUT;
        }
        // An end is to be seen also by those that wait for space only.
        entry.events |= libc::POLLRDHUP;
        if one.stream().and_then(Stream::channel).is_some_and(Channel::has_early_end) {
            // The relay tells when the end counts.
            entry.events = 0;
        }
    }
    list.push(pollfd {
        fd: waiter.map_or(-1, |waiter| waiter.doorbell().as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
}

/// Takes the kernel's answers, and those of the streams. Returns how many descriptors have one.
fn take(list: &[pollfd], fds: &mut [pollfd], polled: &[Polled]) -> c_int {
    for (entry, answer) in fds.iter_mut().zip(list) {
        entry.revents = answer.revents;
    }
    for one in polled {
        let said = list[one.at].revents;
        if let Some(channel) = one.stream().and_then(Stream::channel) {
            channel.note_kernel(said as u32);
            let passed = fds[one.at].events & URGENT | libc::POLLNVAL;
            fds[one.at].revents = one.events(fds[one.at]) | said & passed;
        } else {
            fds[one.at].revents &= fds[one.at].events | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        }
    }
    fds.iter().filter(|entry| entry.revents != 0).count() as c_int
}

impl Polled {
    fn stream(&self) -> Option<&Stream> {
        as_stream(&self.object)
    }

    /// Events of the stream for an entry, where it has rings.
    fn events(&self, entry: pollfd) -> c_short {
        let Some((stream, channel)) = self.stream().and_then(|stream| Some((stream, stream.channel()?))) else {
            return 0;
        };
        let mut events = 0;
        if entry.events & IN != 0 && stream.is_readable(entry.fd) {
            events |= entry.events & IN;
        }
        if entry.events & OUT != 0 && stream.is_writable(entry.fd) {
            events |= entry.events & OUT;
        }
        if channel.kernel() & FIN != 0 {
            events |= entry.events & libc::POLLRDHUP;
        }
        events | (channel.kernel() & ENDED) as c_short
    }

    /// Whether shared memory has something for it.
    fn may_be_ready(&self, entry: pollfd) -> bool {
        self.stream().is_some_and(|stream| {
            entry.events & IN != 0 && stream.is_ready(Way::In) || entry.events & OUT != 0 && stream.is_ready(Way::Out)
        })
    }

    fn watch(&mut self, waiter: &Waiter, entry: pollfd) {
        let Some(stream) = as_stream(&self.object) else { return };
        for (way, bits) in [(Way::In, IN), (Way::Out, OUT)] {
            if entry.events & bits == 0 {
                continue;
            }
            match stream.watch(way, waiter) {
                Some(place) => self.places.push((way, place)),
                // More threads wait for it than can be told.
                None => stream.move_to_tcp(entry.fd, Reason::Waiters),
            }
        }
    }

    fn unwatch(&mut self) {
        if let Some(stream) = as_stream(&self.object) {
            self.places.drain(..).for_each(|(way, place)| stream.unwatch(way, place));
        }
    }
}

fn kernel_poll(list: &mut [pollfd], time: Option<libc::timespec>, mask: *const sigset_t) -> c_int {
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    real::ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, time, mask)
}

/// The sets of a `select`.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) count: c_int,
    pub(crate) sets: [*mut libc::c_void; 3],
}

/// Events of the sets, and what `select` takes for them.
const OF_SETS: [(c_short, c_short); 3] = [
    (libc::POLLIN | libc::POLLRDNORM, libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT | libc::POLLWRNORM, libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

impl Sets {
    /// The list for `poll` where a descriptor is of interest.
    pub(crate) fn list(self) -> Option<Vec<pollfd>> {
        let wanted = |fd: c_int| {
            let bits =
                OF_SETS.iter().zip(self.sets).filter(|(_, set)| self.has(*set, fd)).map(|((events, _), _)| *events);
            bits.fold(0, |all, events| all | events)
        };
        let list: Vec<pollfd> = (0..self.count)
            .map(|fd| pollfd { fd, events: wanted(fd), revents: 0 })
            .filter(|entry| entry.events != 0)
            .collect();
        concerns(&list).then_some(list)
    }

    /// Sets the bits that `poll` has found; returns how many.
    pub(crate) fn answer(self, list: &[pollfd]) -> c_int {
        if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return errno::minus_one(Errno::BADF);
        }
        let mut count = 0;
        for entry in list {
            for ((events, taken), set) in OF_SETS.iter().zip(self.sets) {
                if entry.events & events == 0 {
                    continue;
                }
                let is_ready = entry.revents & taken != 0;
                count += c_int::from(is_ready);
                self.put(set, entry.fd, is_ready);
            }
        }
        count
    }

    /// A word of a set, and the descriptor's bit in it. Not by `FD_SET`, which ends the program where numbers are large; a program
    /// that has larger sets than `fd_set` has made them itself.
    fn word(set: *mut libc::c_void, fd: c_int) -> (*mut u64, u64) {
        (set.cast::<u64>().wrapping_add(fd as usize / 64), 1 << (fd % 64))
    }

    fn has(self, set: *mut libc::c_void, fd: c_int) -> bool {
        let (word, bit) = Self::word(set, fd);
        // SAFETY: the program's sets have bits for the descriptors below the count that it names.
        !set.is_null() && unsafe { word.read_unaligned() } & bit != 0
    }

    fn put(self, set: *mut libc::c_void, fd: c_int, is_ready: bool) {
        let (word, bit) = Self::word(set, fd);
        // SAFETY: as above.
        unsafe {
            let value = word.read_unaligned();
            word.write_unaligned(if is_ready { value | bit } else { value & !bit });
        }
    }
}

const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;
const URGENT: c_short = libc::POLLPRI | libc::POLLRDBAND;
const TICK_NS: i64 = 1_000_000;
