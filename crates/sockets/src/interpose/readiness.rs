//! Functions that wait for many descriptors.
#![allow(unsafe_code)]

use super::replace;
use crate::epoll;
use crate::poll::{self, Sets};
use crate::stream::Deadline;
use crate::table;
use libc::{c_int, c_void, epoll_event, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rdmesh_preload::settings::settings;
use rdmesh_preload::{errno, real};
use rustix::io::Errno;

replace! {
    fn epoll_create(size: c_int) -> c_int {
        made(real::epoll_create(size))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        made(real::epoll_create1(flags))
    }

    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        epoll::control(epfd, operation, fd, event)
    }

    fn epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        wait(epfd, events, most, std::ptr::null(), || Ok(Deadline::after_milliseconds(timeout)))
            .unwrap_or_else(|| real::epoll_wait(epfd, events.cast(), most, timeout))
    }

    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        wait(epfd, events, most, mask, || Ok(Deadline::after_milliseconds(timeout)))
            .unwrap_or_else(|| real::epoll_pwait(epfd, events.cast(), most, timeout, mask))
    }

    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the program hands a time, or NULL.
        wait(epfd, events, most, mask, || Deadline::after(unsafe { timeout.as_ref() }.copied()))
            .unwrap_or_else(|| real::epoll_pwait2(epfd, events.cast(), most, timeout, mask))
    }

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        polled(fds, count, std::ptr::null(), || Ok(Deadline::after_milliseconds(timeout)))
            .unwrap_or_else(|| real::poll(fds, count, timeout))
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        polled(fds, count.min((room / size_of::<pollfd>()) as nfds_t), std::ptr::null(), || Ok(Deadline::after_milliseconds(timeout)))
            .unwrap_or_else(|| real::__poll_chk(fds, count, timeout, room))
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the program hands a time, or NULL.
        polled(fds, count, mask, || Deadline::after(unsafe { timeout.as_ref() }.copied()))
            .unwrap_or_else(|| real::ppoll(fds, count, timeout, mask))
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        // SAFETY: the program hands a time, or NULL.
        polled(fds, count.min((room / size_of::<pollfd>()) as nfds_t), mask, || Deadline::after(unsafe { timeout.as_ref() }.copied()))
            .unwrap_or_else(|| real::__ppoll_chk(fds, count, timeout, mask, room))
    }

    fn select(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut timeval) -> c_int {
        let sets = Sets { count, sets: [read, write, except] };
        let Some(mut list) = sets.list() else { return real::select(count, read, write, except, timeout) };
        // SAFETY: the program hands a time, or NULL.
        let time = unsafe { timeout.as_mut() };
        // More microseconds than a second has are seconds, as in glibc.
        let deadline = match Deadline::after(time.as_ref().map(|time| timespec {
            tv_sec: time.tv_sec.saturating_add(time.tv_usec / 1_000_000),
            tv_nsec: time.tv_usec % 1_000_000 * 1000,
        })) {
            Ok(deadline) => deadline,
            Err(errno) => return errno::minus_one(errno),
        };
        let result = poll::poll(&mut list, deadline, std::ptr::null());
        if let (Some(time), Some(left)) = (time, deadline.left()) {
            // Linux tells how much of the time is left.
            *time = timeval { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / 1000 };
        }
        if result < 0 { result } else { sets.answer(&list) }
    }

    fn pselect(
        count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let sets = Sets { count, sets: [read, write, except] };
        let Some(mut list) = sets.list() else { return real::pselect(count, read, write, except, timeout, mask) };
        // SAFETY: the program hands a time, or NULL.
        let result = match Deadline::after(unsafe { timeout.as_ref() }.copied()) {
            Ok(deadline) => poll::poll(&mut list, deadline, mask),
            Err(errno) => errno::minus_one(errno),
        };
        if result < 0 { result } else { sets.answer(&list) }
    }
}

/// A new instance, if it is none of -1.
fn made(epfd: c_int) -> c_int {
    if epfd >= 0 && settings().upgrade_after().is_some() {
        errno::kept(|| table::is_new_epoll(epfd));
    }
    epfd
}

fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    mask: *const sigset_t,
    deadline: impl FnOnce() -> Result<Deadline, Errno>,
) -> Option<c_int> {
    // Also one whose streams have all gone: the kernel may still report its doorbell, under a key that no program knows.
    let epoll = table::epoll(epfd)?;
    Some(deadline().map_or_else(errno::minus_one, |deadline| epoll.wait(epfd, events, most, deadline, mask)))
}

fn polled(
    fds: *mut pollfd,
    count: nfds_t,
    mask: *const sigset_t,
    deadline: impl FnOnce() -> Result<Deadline, Errno>,
) -> Option<c_int> {
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the program hands so many entries.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    if !poll::concerns(fds) {
        return None;
    }
    Some(deadline().map_or_else(errno::minus_one, |deadline| poll::poll(fds, deadline, mask)))
}
