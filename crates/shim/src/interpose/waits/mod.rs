//! Waiting calls that end with EINTR after any signal handler: where only a stop by this library has interrupted them
//! (`memory::cuts`) they are made again, with the time that is left.
//!
//! Those that the kernel itself restarts (`SA_RESTART`) are not here. A signal of the program's that arrives in the moment
//! between the stop and the call made again is handled, but does not end that call, as if it had come just before it.
#![allow(unsafe_code)]

use super::replace;
use crate::memory::{self, again};
use crate::{errno, real};
use libc::{c_int, c_uint, c_void, mmsghdr, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat, major};
use rustix::io::Errno;
use std::ptr::{null, null_mut};

replace! {
    fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        let end = End::after_milliseconds(timeout);
        again(|first| real::poll(fds, count, left_milliseconds(first, timeout, &end)))
    }

    fn __poll_chk(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int, len: size_t) -> c_int {
        let end = End::after_milliseconds(timeout);
        again(|first| real::__poll_chk(fds, count, left_milliseconds(first, timeout, &end), len))
    }

    fn ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        timed(timeout, |timeout| real::ppoll(fds, count, timeout, mask))
    }

    fn __ppoll_chk(
        fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t, len: size_t
    ) -> c_int {
        timed(timeout, |timeout| real::__ppoll_chk(fds, count, timeout, mask, len))
    }

    fn select(
        count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut libc::timeval
    ) -> c_int {
        // SAFETY: null, or the program's, which the call itself reads and writes.
        let Some(timeout) = (unsafe { timeout.as_mut() }) else {
            return again(|_| real::select(count, read, write, except, null_mut()));
        };
        let wanted = timeout.tv_sec.saturating_mul(SECOND).saturating_add(timeout.tv_usec.saturating_mul(1000));
        let end = End::after(libc::CLOCK_MONOTONIC, wanted);
        again(|first| {
            if !first {
                let left = end.left();
                *timeout = libc::timeval { tv_sec: left / SECOND, tv_usec: left % SECOND / 1000 };
            }
            real::select(count, read, write, except, timeout)
        })
    }

    fn pselect(
        count: c_int,
        read: *mut c_void,
        write: *mut c_void,
        except: *mut c_void,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        timed(timeout, |timeout| real::pselect(count, read, write, except, timeout, mask))
    }

    fn epoll_wait(fd: c_int, events: *mut c_void, most: c_int, timeout: c_int) -> c_int {
        let end = End::after_milliseconds(timeout);
        again(|first| real::epoll_wait(fd, events, most, left_milliseconds(first, timeout, &end)))
    }

    fn epoll_pwait(fd: c_int, events: *mut c_void, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        let end = End::after_milliseconds(timeout);
        again(|first| real::epoll_pwait(fd, events, most, left_milliseconds(first, timeout, &end), mask))
    }

    fn epoll_pwait2(
        fd: c_int, events: *mut c_void, most: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        timed(timeout, |timeout| real::epoll_pwait2(fd, events, most, timeout, mask))
    }

    fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int {
        timed(wanted, |wanted| real::nanosleep(wanted, left))
    }

    fn clock_nanosleep(clock: libc::clockid_t, flags: c_int, wanted: *const timespec, left: *mut timespec) -> c_int {
        // Its result is the error.
        let call = |wanted| match real::clock_nanosleep(clock, flags, wanted, left) {
            libc::EINTR => errno::minus_one(Errno::INTR),
            result => result,
        };
        let result = if flags & libc::TIMER_ABSTIME != 0 { again(|_| call(wanted)) } else { timed_by(clock, wanted, call) };
        if result == -1 { libc::EINTR } else { result }
    }

    fn usleep(microseconds: c_uint) -> c_int {
        let end = End::after(libc::CLOCK_MONOTONIC, i64::from(microseconds) * 1000);
        again(|first| if first { real::usleep(microseconds) } else { real::nanosleep(&end.left_timespec(), null_mut()) })
    }

    fn sleep(seconds: c_uint) -> c_uint {
        let end = End::after(libc::CLOCK_MONOTONIC, i64::from(seconds) * SECOND);
        let cuts = memory::cuts();
        let left = real::sleep(seconds);
        if memory::cuts() == cuts {
            return left;
        }
        match again(|_| real::nanosleep(&end.left_timespec(), null_mut())) {
            0 => 0,
            _ => (end.left() / SECOND) as c_uint,
        }
    }

    fn pause() -> c_int {
        again(|_| real::pause())
    }

    fn sigsuspend(mask: *const sigset_t) -> c_int {
        again(|_| real::sigsuspend(mask))
    }

    fn sigwaitinfo(set: *const sigset_t, info: *mut libc::siginfo_t) -> c_int {
        again(|_| real::sigwaitinfo(set, info))
    }

    fn sigtimedwait(set: *const sigset_t, info: *mut libc::siginfo_t, timeout: *const timespec) -> c_int {
        timed(timeout, |timeout| real::sigtimedwait(set, info, timeout))
    }

    fn sem_timedwait(semaphore: *mut libc::sem_t, until: *const timespec) -> c_int {
        again(|_| real::sem_timedwait(semaphore, until))
    }

    fn sem_clockwait(semaphore: *mut libc::sem_t, clock: libc::clockid_t, until: *const timespec) -> c_int {
        again(|_| real::sem_clockwait(semaphore, clock, until))
    }

    fn msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: libc::c_long, flags: c_int) -> ssize_t {
        again(|_| real::msgrcv(queue, message, len, kind, flags))
    }

    fn msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int {
        again(|_| real::msgsnd(queue, message, len, flags))
    }

    fn semop(set: c_int, operations: *mut libc::sembuf, count: size_t) -> c_int {
        again(|_| real::semop(set, operations, count))
    }

    fn semtimedop(set: c_int, operations: *mut libc::sembuf, count: size_t, timeout: *const timespec) -> c_int {
        timed(timeout, |timeout| real::semtimedop(set, operations, count, timeout))
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        on_socket(fd, Way::In, || real::recvmmsg(fd, messages, count, flags, timeout))
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        on_socket(fd, Way::Out, || real::sendmmsg(fd, messages, count, flags))
    }

    fn accept(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> c_int {
        on_socket(fd, Way::In, || real::accept(fd, from, from_len))
    }

    fn accept4(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t, flags: c_int) -> c_int {
        on_socket(fd, Way::In, || real::accept4(fd, from, from_len, flags))
    }
}

/// The one of a socket's time-outs that bounds a call.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// `SO_RCVTIMEO`.
    In,
    /// `SO_SNDTIMEO`.
    Out,
}

/// [`again`] for a call that may be bounded by a time-out of its socket, which counts from the beginning again: from the first
/// stop on it is kept here.
#[inline]
pub(super) fn on_socket<R: Copy + PartialEq + From<i8>>(fd: c_int, way: Way, mut call: impl FnMut() -> R) -> R {
    let mut end = None;
    again(|first| {
        if first {
            return call();
        }
        match end.get_or_insert_with(|| End::of_socket(fd, way)) {
            Some(end) if !end.wait_for(fd, way) => errno::minus_one(Errno::AGAIN),
            _ => call(),
        }
    })
}

/// The same for a call with a relative time-out; null for none.
#[inline]
fn timed<R: Copy + PartialEq + From<i8>>(timeout: *const timespec, call: impl FnMut(*const timespec) -> R) -> R {
    timed_by(libc::CLOCK_MONOTONIC, timeout, call)
}

#[inline]
fn timed_by<R: Copy + PartialEq + From<i8>>(
    clock: libc::clockid_t,
    timeout: *const timespec,
    mut call: impl FnMut(*const timespec) -> R,
) -> R {
    let end = End::after_time(clock, timeout);
    again(|first| match &end {
        Some(end) if !first => call(&end.left_timespec()),
        _ => call(timeout),
    })
}

#[inline]
pub(super) fn left_milliseconds(first: bool, timeout: c_int, end: &Option<End>) -> c_int {
    match end {
        // Rounded up: a time-out is never too short.
        Some(end) if !first => ((end.left() + MILLISECOND - 1) / MILLISECOND) as c_int,
        _ => timeout,
    }
}

/// Time at which a time-out is over.
pub(super) struct End {
    clock: libc::clockid_t,
    nanoseconds: i64,
}

impl End {
    fn after(clock: libc::clockid_t, nanoseconds: i64) -> Self {
        Self { clock, nanoseconds: now(clock).saturating_add(nanoseconds) }
    }

    /// None where the call does not wait, or without end.
    #[inline]
    pub(super) fn after_milliseconds(timeout: c_int) -> Option<Self> {
        (timeout > 0).then(|| Self::after(libc::CLOCK_MONOTONIC, i64::from(timeout) * MILLISECOND))
    }

    /// None for null.
    #[inline]
    pub(super) fn after_time(clock: libc::clockid_t, timeout: *const timespec) -> Option<Self> {
        // SAFETY: null, or the program's, which the call itself reads.
        let timeout = unsafe { timeout.as_ref()? };
        Some(Self::after(clock, timeout.tv_sec.saturating_mul(SECOND).saturating_add(timeout.tv_nsec)))
    }

    /// A socket's time-out, from now on; none where it has none, or is not a socket.
    fn of_socket(fd: c_int, way: Way) -> Option<Self> {
        let option = match way {
            Way::In => libc::SO_RCVTIMEO,
            Way::Out => libc::SO_SNDTIMEO,
        };
        let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let mut len = size_of::<libc::timeval>() as socklen_t;
        let known = real::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len);
        let nanoseconds = value.tv_sec.saturating_mul(SECOND).saturating_add(value.tv_usec * 1000);
        (known == 0 && nanoseconds > 0).then(|| Self::after(libc::CLOCK_MONOTONIC, nanoseconds))
    }

    fn left(&self) -> i64 {
        self.nanoseconds.saturating_sub(now(self.clock)).max(0)
    }

    pub(super) fn left_timespec(&self) -> timespec {
        let left = self.left();
        timespec { tv_sec: left / SECOND, tv_nsec: left % SECOND }
    }

    /// Waits until a call on `fd` would not block; false where the time is over before, or a signal came, which would end the
    /// call too: the call reports it.
    fn wait_for(&self, fd: c_int, way: Way) -> bool {
        let events = match way {
            Way::In => libc::POLLIN,
            Way::Out => libc::POLLOUT,
        };
        let mut fds = [pollfd { fd, events, revents: 0 }];
        again(|_| real::ppoll(fds.as_mut_ptr(), 1, &self.left_timespec(), null())) != 0
    }
}

fn now(clock: libc::clockid_t) -> i64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time; where there is no such clock it stays as it is, and the call fails too.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec.saturating_mul(SECOND).saturating_add(now.tv_nsec)
}

/// Whether reads of a file never wait for somebody to write.
pub(super) fn never_waits(fd: c_int) -> bool {
    // SAFETY: the program has just read from it; where it has closed it meanwhile this fails.
    let Ok(stat) = fstat(unsafe { BorrowedFd::borrow_raw(fd) }) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => true,
        FileType::CharacterDevice => major(stat.st_rdev) == MEMORY_DEVICES,
        _ => false,
    }
}

/// `MEM_MAJOR` of linux/major.h: `/dev/zero`, `/dev/urandom`.
const MEMORY_DEVICES: u32 = 1;
const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;

#[cfg(test)]
mod tests;
