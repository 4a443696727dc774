//! `epoll_wait` on an instance with streams.
#![allow(unsafe_code)]

use super::{Epoll, Members};
use crate::spin::now;
use crate::stream::Deadline;
use crate::wake;
use libc::{c_void, epoll_event, sigset_t};
use rdmesh_preload::{process, real};
use rdmesh_streams::report::Reason;
use rustix::fd::AsRawFd;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Room for events, which the program has handed.
struct Report<'a> {
    events: &'a mut [epoll_event],
    count: usize,
    /// Of these, what the kernel has reported.
    from_kernel: Range<usize>,
}

impl Epoll {
    /// Waits on descriptor `epfd` of the instance, as `epoll_pwait2`.
    pub(crate) fn wait(
        &self,
        epfd: c_int,
        events: *mut epoll_event,
        most: c_int,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> c_int {
        if most <= 0 || events.is_null() {
            return real::epoll_pwait(epfd, events.cast(), most, 0, mask);
        }
        if self.forks != process::forks() {
            self.leave_parents_rings();
            return real_wait(epfd, events, most, deadline, mask);
        }
        wake::flush();
        // SAFETY: the program hands room for so many events.
        let room = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
        let mut report = Report { events: room, count: 0, from_kernel: 0..0 };
        loop {
            // The kernel goes first where it is due: streams that are never idle would leave no room for it.
            let is_due = now().saturating_sub(self.looked.load(Ordering::Relaxed)) > LOOK_NS;
            if is_due && self.look_at_kernel(epfd, &mut report, Some(NOW), std::ptr::null()) {
                return -1;
            }
            self.collect(&mut report);
            if report.count == 0 && !is_due {
                if self.look_at_kernel(epfd, &mut report, Some(NOW), std::ptr::null()) {
                    return -1;
                }
                // Once for each wait that reports something: none is to be reported twice.
                if report.count == 0 {
                    self.collect(&mut report);
                }
            }
            let may_come = || !self.is_empty() && self.spin.until(|| self.waiter.place().has_any());
            if report.count == 0 && !deadline.is_over() && !may_come() {
                let place = self.waiter.place();
                place.fall_asleep();
                let failed = !place.has_any() && self.look_at_kernel(epfd, &mut report, deadline.left(), mask);
                if !self.is_nested.load(Ordering::Acquire) {
                    place.wake_up();
                }
                if failed {
                    return -1;
                }
                self.collect(&mut report);
            }
            if report.count != 0 || deadline.is_over() {
                self.ring_if_nested();
                wake::begin_batch(report.count);
                return report.count as c_int;
            }
        }
    }

    /// Reports streams that are ready.
    fn collect(&self, report: &mut Report<'_>) {
        let mut members = self.members();
        members.enqueue_told(self.waiter.place());
        for _ in 0..members.queue.len() {
            if report.is_full() {
                break;
            }
            let Some(fd) = members.queue.pop_front() else { break };
            members.report(fd, report);
        }
    }

    /// Reports what the kernel has; true where it fails.
    fn look_at_kernel(
        &self,
        epfd: c_int,
        report: &mut Report<'_>,
        time: Option<libc::timespec>,
        mask: *const sigset_t,
    ) -> bool {
        let room = &mut report.events[report.count..];
        if room.is_empty() {
            return false;
        }
        let found = kernel_wait(epfd, room, time, mask);
        self.looked.store(now(), Ordering::Relaxed);
        let Ok(found) = usize::try_from(found) else { return true };
        let first = report.count;
        let is_ours = |event: &epoll_event| (event.u64 >> 32) as u32 == self.tag;
        let mut kept = first;
        let mut members = self.members();
        for at in first..first + found {
            let event = report.events[at];
            if !is_ours(&event) {
                report.events[kept] = event;
                kept += 1;
                continue;
            }
            let fd = event.u64 as u32 as c_int;
            if fd == self.waiter.doorbell().as_raw_fd() {
                continue;
            }
            if let Some(member) = members.by_fd.get_mut(fd as usize) {
                member.kernel_reports(event.events);
            }
            members.enqueue(fd);
        }
        report.count = kept;
        report.from_kernel = first..kept;
        drop(members);
        false
    }

    /// In a fork's child: its parent's streams go to TCP, and the kernel's instance, which both have, is as it is without us.
    fn leave_parents_rings(&self) {
        let fds: Vec<c_int> = {
            let members = self.members();
            members.by_fd.iter().filter(|(_, member)| member.has_rings()).map(|(fd, _)| fd as c_int).collect()
        };
        for fd in fds {
            crate::table::with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Fork));
        }
    }
}

impl Members {
    fn report(&mut self, fd: c_int, report: &mut Report<'_>) {
        let Some(member) = self.by_fd.get_mut(fd as usize) else { return };
        member.leave_queue();
        // The kernel has reported it in this very wait, before it had rings: a program may end it at that, and wants no second event.
        if member.take_fresh() && report.has_from_kernel(member.wanted_events().u64) {
            self.enqueue(fd);
            return;
        }
        if let Some(event) = member.report(fd) {
            report.push(event);
            if member.stays_queued() {
                self.enqueue(fd);
            }
        }
    }
}

impl Report<'_> {
    fn is_full(&self) -> bool {
        self.count == self.events.len()
    }

    /// Whether the kernel has reported an event with this data. It is asked at most once for a wait that reports something.
    fn has_from_kernel(&self, data: u64) -> bool {
        self.events[self.from_kernel.clone()].iter().any(|event| event.u64 == data)
    }

    fn push(&mut self, event: epoll_event) {
        self.events[self.count] = event;
        self.count += 1;
    }
}

/// `epoll_wait` of the kernel, by the function that the time asks for.
fn kernel_wait(epfd: c_int, room: &mut [epoll_event], time: Option<libc::timespec>, mask: *const sigset_t) -> c_int {
    let (events, most): (*mut c_void, c_int) = (room.as_mut_ptr().cast(), room.len() as c_int);
    let milliseconds = match time {
        None => -1,
        Some(time) if time.tv_sec == 0 && time.tv_nsec == 0 => 0,
        // Rounded up: a wait is never shorter than it was asked for.
        Some(time) => c_int::try_from(time.tv_sec.saturating_mul(1000) + (time.tv_nsec + 999_999) / 1_000_000)
            .unwrap_or(c_int::MAX),
    };
    real::epoll_pwait(epfd, events, most, milliseconds, mask)
}

fn real_wait(epfd: c_int, events: *mut epoll_event, most: c_int, deadline: Deadline, mask: *const sigset_t) -> c_int {
    // SAFETY: the program hands room for so many events.
    let room = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
    kernel_wait(epfd, room, deadline.left(), mask)
}

const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
/// Time between two looks at the kernel while streams are busy.
const LOOK_NS: u64 = 50_000;
