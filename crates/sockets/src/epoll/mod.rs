//! epoll instances with streams in user space.
//!
//! The program's epoll instance is the kernel's own, and everything but streams is in it as the program wants. A stream is there
//! too: as the program wants while it is on TCP, and with a key of ours once it has rings, edge-triggered, for ends, errors and bytes
//! that come on TCP. Changes of a stream with rings (`epoll_ctl`) cost no system call. The doorbell of the instance's waiter is one
//! more member, edge-triggered and never read. So whoever sleeps in the kernel sleeps there, for all of it.
//!
//! Nested instances, which another one or `poll` waits for: the waiter always says that it sleeps, and the doorbell is
//! rung as long as streams are ready: then the kernel finds the instance readable.

mod early;
mod instance;
mod member;
mod wait;

pub(crate) use early::Early;
pub(crate) use instance::Instance;

use crate::kernel::borrow;
use crate::lock::{Guard, Spin};
use crate::numbered::Numbered;
use crate::process::{Process, Waiter, as_stream};
use crate::spin;
use crate::stream::{Stream, Way};
use crate::table::{self, Object};
use libc::epoll_event;
use member::Member;
use rdmesh_preload::{OwnFd, errno, gate, process, real};
use rdmesh_streams::inbox::{Place, Taken};
use rdmesh_streams::report::Reason;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// An epoll instance that has streams.
pub(crate) struct Epoll {
    this: Weak<Self>,
    /// The instance, whichever of its descriptors the program closes.
    fd: OwnFd,
    waiter: Waiter,
    /// Upper half of our keys, chosen at random: no data of a program is like it.
    tag: u32,
    members: Spin<Members>,
    is_nested: AtomicBool,
    spin: spin::Spin,
    looked: AtomicU64,
    forks: u32,
}

/// Streams of an instance.
#[derive(Default)]
struct Members {
    by_fd: Numbered<Member>,
    by_index: Numbered<c_int>,
    /// Members that may have something to report.
    queue: VecDeque<c_int>,
    /// Streams that were told of, kept for its memory.
    told: Taken,
}

/// `epoll_ctl`.
pub(crate) fn control(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    table::settle(fd);
    let is_stream = table::with(fd, |object| match object {
        Object::Stream(stream) => !stream.is_plain(),
        // Whoever waits for that waits for its streams.
        Object::Epoll(inner) => {
            inner.get().into_iter().for_each(|inner| inner.nest());
            false
        }
        Object::Early(_) => false,
    });
    let controlled = table::epoll(epfd).map(|epoll| match is_stream {
        Some(true) => epoll.control_stream(epfd, operation, fd, event),
        _ => epoll.control_other(operation, fd, event),
    });
    let result = match controlled {
        Some(result) => result,
        None if is_stream == Some(true) && operation == libc::EPOLL_CTL_ADD => return control_first(epfd, fd, event),
        None => real::epoll_ctl(epfd, operation, fd, event.cast()),
    };
    if result == 0 && is_stream != Some(true) {
        errno::kept(|| early::note(epfd, operation, fd, event));
    }
    result
}

/// The first stream of an instance.
fn control_first(epfd: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let _gate = gate::enter();
    match Epoll::of(epfd) {
        Some(epoll) => epoll.control_stream(epfd, libc::EPOLL_CTL_ADD, fd, event),
        None => {
            // It is no epoll instance, or there are too many of them.
            table::with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Waiters));
            real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event.cast())
        }
    }
}

impl Epoll {
    /// That of a descriptor; made if there is none.
    fn of(epfd: c_int) -> Option<Arc<Self>> {
        if table::object(epfd).is_none() {
            // One that was made in a way that is not seen.
            table::is_new_epoll(epfd);
        }
        match &*table::object(epfd)? {
            Object::Epoll(instance) => instance.get_or_make(|| Self::make(epfd)),
            Object::Stream(_) | Object::Early(_) => None,
        }
    }

    fn make(epfd: c_int) -> Option<Arc<Self>> {
        let process = Process::get()?;
        let waiter = process.waiter()?;
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
        let tag = u32::from_ne_bytes(random) | TAG_BITS;
        // It may have been another waiter's, and have been rung.
        waiter.silence();
        let doorbell = waiter.doorbell().as_raw_fd();
        member::register(epfd, libc::EPOLL_CTL_ADD, doorbell, member::EDGE_IN, key(tag, doorbell)).ok()?;
        let fd = OwnFd::new(fcntl_dupfd_cloexec(borrow(epfd), 0).ok()?);
        Some(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            fd,
            waiter,
            tag,
            members: Spin::default(),
            is_nested: AtomicBool::new(false),
            spin: spin::Spin::new(),
            looked: AtomicU64::new(0),
            forks: process::forks(),
        }))
    }

    /// Takes in stream `fd`, which the kernel's instance has already, as the program wants.
    fn adopt(epfd: c_int, fd: c_int, wanted: epoll_event) {
        match Self::of(epfd).map(|epoll| epoll.take_in(epfd, fd, wanted, false)) {
            // The instance may have been closed, and its descriptor be another's.
            Some(Ok(()) | Err(Errno::NOENT | Errno::BADF)) => {}
            // Too many instances, or a member that the kernel does not change (`EPOLLEXCLUSIVE`): it alone reports the connection.
            _ => drop(table::with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Waiters))),
        }
    }

    fn fd(&self) -> c_int {
        self.fd.as_fd().as_raw_fd()
    }

    fn members(&self) -> Guard<'_, Members> {
        self.members.lock()
    }

    /// Whether it has streams.
    fn is_empty(&self) -> bool {
        self.members().by_fd.is_empty()
    }

    /// A change of a stream.
    fn control_stream(&self, epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let wanted = match member::wanted(event) {
            Some(wanted) => wanted,
            None if operation == libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
            None => return errno::minus_one(Errno::FAULT),
        };
        let result = match operation {
            libc::EPOLL_CTL_ADD => self.add(epfd, fd, wanted),
            libc::EPOLL_CTL_MOD => self.modify(epfd, fd, wanted),
            libc::EPOLL_CTL_DEL => self.remove(epfd, fd),
            _ => Err(Errno::INVAL),
        };
        errno::zero_or_minus_one(result)
    }

    /// A change of a member that is no stream, or no longer one. One that was a stream with rings and had been removed is still the
    /// kernel's, which keeps it silent.
    fn control_other(&self, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let was_removed = {
            let mut members = self.members();
            let was_removed = members.by_fd.get(fd as usize).is_some_and(Member::is_removed);
            if operation != libc::EPOLL_CTL_ADD || was_removed {
                self.forget(&mut members, fd);
            }
            was_removed
        };
        if !was_removed {
            return real::epoll_ctl(self.fd(), operation, fd, event.cast());
        }
        if operation == libc::EPOLL_CTL_ADD {
            return real::epoll_ctl(self.fd(), libc::EPOLL_CTL_MOD, fd, event.cast());
        }
        let _ = member::register(self.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        errno::minus_one(Errno::NOENT)
    }

    fn add(&self, epfd: c_int, fd: c_int, wanted: epoll_event) -> Result<(), Errno> {
        if let Some(known) = self.members().by_fd.get_mut(fd as usize) {
            if !known.is_removed() {
                return Err(Errno::EXIST);
            }
            if !known.has_rings() {
                // It has gone back to TCP meanwhile: the kernel keeps it silent.
                member::register(epfd, libc::EPOLL_CTL_MOD, fd, wanted.events, wanted.u64)?;
            }
            known.revive(wanted);
        } else {
            return self.take_in(epfd, fd, wanted, true);
        }
        self.members().enqueue(fd);
        Ok(())
    }

    /// Makes a stream a member, and the kernel's where `is_new` says that it is not yet.
    fn take_in(&self, epfd: c_int, fd: c_int, wanted: epoll_event, is_new: bool) -> Result<(), Errno> {
        let _gate = gate::enter();
        let object = table::object(fd).ok_or(Errno::BADF)?;
        let stream = as_stream(&object).ok_or(Errno::BADF)?;
        let mut members = self.members();
        let has_rings = stream.channel().is_some();
        let (events, data) =
            if has_rings { (member::edges_of(stream), key(self.tag, fd)) } else { (wanted.events, wanted.u64) };
        let operation = if is_new { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        member::register(epfd, operation, fd, events, data)?;
        let places = [stream.watch(Way::In, &self.waiter), stream.watch(Way::Out, &self.waiter)];
        let is_double = members.by_index.insert(stream.index() as usize, fd).is_some();
        members.by_fd.insert(fd as usize, Member::new(Arc::clone(&object), wanted, has_rings, places));
        stream.joined(&self.this);
        members.enqueue(fd);
        drop(members);
        if stream.channel().is_some() != has_rings {
            // It has got rings meanwhile, from another thread that did not know this instance yet.
            self.stream_changed(stream);
        }
        if is_double || places.contains(&None) {
            // Two descriptors of one stream in one instance, or more waiters than a stream can have.
            stream.move_to_tcp(fd, Reason::Waiters);
        }
        Ok(())
    }

    fn modify(&self, epfd: c_int, fd: c_int, wanted: epoll_event) -> Result<(), Errno> {
        let mut members = self.members();
        let Some(member) = members.by_fd.get_mut(fd as usize) else {
            return member::register(epfd, libc::EPOLL_CTL_MOD, fd, wanted.events, wanted.u64);
        };
        if member.is_removed() {
            return Err(Errno::NOENT);
        }
        if !member.has_rings() {
            member::register(epfd, libc::EPOLL_CTL_MOD, fd, wanted.events, wanted.u64)?;
        }
        member.revive(wanted);
        members.enqueue(fd);
        Ok(())
    }

    fn remove(&self, epfd: c_int, fd: c_int) -> Result<(), Errno> {
        let mut members = self.members();
        match members.by_fd.get_mut(fd as usize) {
            Some(member) if member.is_removed() => Err(Errno::NOENT),
            // The kernel keeps it, under our key: most that go come back.
            Some(member) if member.has_rings() => {
                member.remove();
                Ok(())
            }
            Some(_) => {
                self.forget(&mut members, fd);
                member::register(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0)
            }
            None => member::register(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0),
        }
    }

    /// The program closes a descriptor, which the kernel forgets by itself.
    pub(crate) fn closed(&self, fd: c_int) {
        let mut members = self.members();
        self.forget(&mut members, fd);
    }

    /// The kernel reports descriptor `fd` no more, which is still open; it may know nothing of it.
    pub(crate) fn unregister(&self, fd: c_int) {
        let _ = member::register(self.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// After a fork, in the child: no other thread has the lock.
    pub(crate) fn unlock(&self) {
        self.members.unlock();
    }

    fn forget(&self, members: &mut Members, fd: c_int) {
        let Some(member) = members.by_fd.remove(fd as usize) else { return };
        if let Some(stream) = member.stream() {
            members.by_index.remove(stream.index() as usize);
            for (way, place) in [Way::In, Way::Out].into_iter().zip(member.places()) {
                if let Some(place) = place {
                    stream.unwatch(way, place);
                }
            }
            stream.left(&self.this);
        }
    }

    /// A stream has got rings, or has none any more: the kernel is told.
    pub(crate) fn stream_changed(&self, stream: &Stream) {
        let mut members = self.members();
        let Some(fd) = members.by_index.get(stream.index() as usize).copied() else { return };
        let Some(member) = members.by_fd.get_mut(fd as usize) else { return };
        let has_rings = stream.channel().is_some();
        if has_rings || member.has_rings() {
            member.set_has_rings(has_rings);
            let wanted = member.wanted_events();
            let (events, data) = match (has_rings, member.is_removed()) {
                (true, _) => (member::edges_of(stream), key(self.tag, fd)),
                (false, false) => (wanted.events, wanted.u64),
                // What the program has removed reports nothing.
                (false, true) => (libc::EPOLLONESHOT as u32, key(self.tag, fd)),
            };
            let _ = member::register(self.fd(), libc::EPOLL_CTL_MOD, fd, events, data);
        }
        members.enqueue(fd);
        drop(members);
        self.ring_if_nested();
    }

    /// The instance is waited for as a whole.
    pub(crate) fn nest(&self) {
        if !self.is_nested.swap(true, Ordering::SeqCst) {
            self.waiter.place().fall_asleep();
        }
        self.ring_if_nested();
    }

    /// Lets the kernel find a nested instance readable that has a stream to report.
    fn ring_if_nested(&self) {
        if self.is_nested.load(Ordering::Acquire) && self.members().has_ready(self.waiter.place()) {
            self.waiter.place().fall_asleep();
            let _ = rustix::io::write(self.waiter.doorbell(), &1u64.to_ne_bytes());
        }
    }
}

impl Members {
    /// Whether a stream has something to report. Those that were told of are queued.
    fn has_ready(&mut self, place: Place<'_>) -> bool {
        self.enqueue_told(place);
        self.queue.iter().any(|fd| self.by_fd.get(*fd as usize).is_some_and(|member| member.is_ready(*fd)))
    }

    /// Queues those that were told of, in the order of that.
    fn enqueue_told(&mut self, place: Place<'_>) {
        let mut told = std::mem::take(&mut self.told);
        place.take(&mut told);
        for index in told.drain() {
            if let Some(fd) = self.by_index.get(index as usize).copied() {
                self.enqueue(fd);
            }
        }
        self.told = told;
    }

    fn enqueue(&mut self, fd: c_int) {
        if let Some(member) = self.by_fd.get_mut(fd as usize)
            && member.enter_queue()
        {
            self.queue.push_back(fd);
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if self.forks != process::forks() {
            return;
        }
        let mut members = self.members.lock();
        let fds: Vec<c_int> = members.by_fd.iter().map(|(fd, _)| fd as c_int).collect();
        fds.into_iter().for_each(|fd| self.forget(&mut members, fd));
    }
}

/// Key of ours for descriptor `fd`.
fn key(tag: u32, fd: c_int) -> u64 {
    u64::from(tag) << 32 | u64::from(fd.cast_unsigned())
}

/// Set in every tag: no pointer of a program and no small number begins like this.
const TAG_BITS: u32 = 0xc000_0000;
