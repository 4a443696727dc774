//! Threads that wait for a stream in a blocking call.

use super::{Channel, Stream};
use crate::kernel;
use crate::process::{Process, Waiter, as_stream};
use crate::signals;
use crate::spin::{Spin, now};
use crate::table::{self, Object};
use crate::wake;
use rdmesh_preload::{process, real};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A direction, seen from this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Bytes that come.
    In,
    /// Bytes that go.
    Out,
}

/// End of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// That of a blocking call, by the time-out that the program has set on the socket.
    pub(crate) fn of(fd: c_int, option: c_int) -> Self {
        Self(kernel::time_out(fd, option).map(|time| now().saturating_add(time.as_nanos() as u64)))
    }

    /// After so many milliseconds; never where there are less than none.
    pub(crate) fn after_milliseconds(milliseconds: c_int) -> Self {
        Self(u64::try_from(milliseconds).ok().map(|time| now().saturating_add(time * 1_000_000)))
    }

    /// After a time of the program's; never where none is given. `EINVAL` for what the kernel does not take as a time.
    pub(crate) fn after(time: Option<libc::timespec>) -> Result<Self, Errno> {
        let Some(time) = time else { return Ok(Self(None)) };
        let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
        let rest = u64::try_from(time.tv_nsec).ok().filter(|rest| *rest < 1_000_000_000).ok_or(Errno::INVAL)?;
        Ok(Self(Some(now().saturating_add(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))))
    }

    /// Time left; none for a wait without an end.
    pub(crate) fn left(self) -> Option<libc::timespec> {
        let left = self.0?.saturating_sub(now());
        Some(libc::timespec { tv_sec: (left / 1_000_000_000) as _, tv_nsec: (left % 1_000_000_000) as _ })
    }

    /// Whether it is over.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= now())
    }
}

thread_local! {
    static OWN: RefCell<Option<(u32, Arc<Waiter>)>> = const { RefCell::new(None) };
    static SPIN: Spin = const { Spin::new() };
}

/// The waiter of this thread; none where the process has too many.
pub(crate) fn own_waiter() -> Option<Arc<Waiter>> {
    let find = |own: &RefCell<Option<(u32, Arc<Waiter>)>>| {
        let mut own = own.try_borrow_mut().ok()?;
        match &*own {
            Some((forks, waiter)) if *forks == process::forks() => Some(Arc::clone(waiter)),
            _ => {
                let waiter = Arc::new(Process::get()?.waiter()?);
                // A parent's is not given back: it is not this process's.
                if let Some(before) = own.replace((process::forks(), Arc::clone(&waiter))) {
                    std::mem::forget(before);
                }
                Some(waiter)
            }
        }
    };
    OWN.try_with(find).ok().flatten()
}

/// Looks for a while until `is_ready`, if that has paid before on this thread.
pub(crate) fn spin(is_ready: impl Fn() -> bool) -> bool {
    SPIN.try_with(|spin| spin.until(is_ready)).unwrap_or(false)
}

impl Stream {
    /// Waits until a call may find something. EAGAIN at the deadline; EINTR after a signal whose handler does not let calls go on,
    /// and where another thread has closed the descriptor: the call made again finds what is there now. `kept` keeps the stream for
    /// the caller.
    pub(crate) fn wait(
        &self,
        fd: c_int,
        way: Way,
        deadline: Deadline,
        kept: &mut Option<Arc<Object>>,
    ) -> Result<(), Errno> {
        wake::flush();
        if self.never_waits[way as usize].load(Ordering::Relaxed) {
            return Err(Errno::AGAIN);
        }
        if kept.is_none() {
            *kept = self.kept_alive();
        }
        if !self.is_behind(fd) {
            return Err(Errno::INTR);
        }
        if spin(|| self.is_ready(way)) {
            return Ok(());
        }
        let waiter = own_waiter();
        let place = waiter.as_ref().and_then(|waiter| self.watch(way, waiter));
        let result = self.sleep(fd, way, deadline, waiter.as_deref().filter(|_| place.is_some()));
        if let Some(place) = place {
            self.unwatch(way, place);
        }
        result
    }

    /// Has calls on this way never wait, or wait as long as their time-out says.
    pub(crate) fn set_never_waits(&self, way: Way, never: bool) {
        self.never_waits[way as usize].store(never, Ordering::Relaxed);
    }

    /// Whether `fd` is still a descriptor of it.
    fn is_behind(&self, fd: c_int) -> bool {
        table::with(fd, |object| as_stream(object).is_some_and(|stream| std::ptr::eq(stream, self))) == Some(true)
    }

    fn sleep(&self, fd: c_int, way: Way, deadline: Deadline, waiter: Option<&Waiter>) -> Result<(), Errno> {
        loop {
            if let Some(waiter) = waiter {
                waiter.place().fall_asleep();
            }
            let result = if self.is_ready(way) { Ok(()) } else { self.sleep_once(fd, way, deadline, waiter) };
            if let Some(waiter) = waiter {
                waiter.place().wake_up();
                waiter.place().forget();
            }
            if !self.is_behind(fd) {
                return Err(Errno::INTR);
            }
            match result {
                Err(Errno::INTR) if signals::all_restart() => {}
                result => return result,
            }
        }
    }

    fn sleep_once(&self, fd: c_int, way: Way, deadline: Deadline, waiter: Option<&Waiter>) -> Result<(), Errno> {
        let ends = self.channel().is_some_and(|channel| way == Way::Out && self.writes_to_ring(channel));
        let events = match way {
            // The relay tells when the end counts.
            Way::In if self.channel().is_some_and(Channel::has_early_end) => 0,
            Way::In => libc::POLLIN | libc::POLLRDHUP,
            Way::Out if ends => libc::POLLRDHUP,
            Way::Out => libc::POLLOUT,
        };
        let doorbell = waiter.map_or(-1, |waiter| waiter.doorbell().as_raw_fd());
        let mut fds =
            [libc::pollfd { fd, events, revents: 0 }, libc::pollfd { fd: doorbell, events: libc::POLLIN, revents: 0 }];
        let tick = libc::timespec { tv_sec: 0, tv_nsec: TICK_NS };
        let left = deadline.left();
        // Without a waiter nobody tells: it looks again by itself.
        let time = if waiter.is_none() && self.channel().is_some() { Some(tick) } else { left };
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let ready = real::ppoll(fds.as_mut_ptr(), 2, time, std::ptr::null());
        if fds[1].revents != 0
            && let Some(waiter) = waiter
        {
            waiter.silence();
        }
        if let Some(channel) = self.channel() {
            channel.note_kernel(fds[0].revents as u32);
        }
        match ready {
            0 if deadline.is_over() => Err(Errno::AGAIN),
            ready if ready < 0 => Err(rdmesh_preload::errno::get()),
            _ => Ok(()),
        }
    }
}

/// Pause of a thread that cannot be told.
const TICK_NS: i64 = 1_000_000;
