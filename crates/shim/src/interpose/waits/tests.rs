//! Tests of waiting calls that a stop of all threads interrupts.

#![allow(clippy::undocumented_unsafe_blocks, reason = "every block passes the address of a variable of its own")]

use super::*;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Runs `call` while its thread is stopped again and again.
fn under_stops<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let _stoppable = memory::stoppable();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let result = call();
            done.store(true, Ordering::SeqCst);
            result
        });
        while !done.load(Ordering::SeqCst) && !thread.is_finished() {
            memory::stop_once();
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().unwrap()
    })
}

/// The result of `call`, once it was cut off by a stop.
fn cut_off<R: Send>(call: impl Fn() -> R + Send + Sync) -> R {
    under_stops(|| {
        loop {
            let (cuts, result) = (memory::cuts(), call());
            if memory::cuts() != cuts {
                return result;
            }
        }
    })
}

const WAIT: i64 = 60 * MILLISECOND;

fn wait() -> timespec {
    timespec { tv_sec: 0, tv_nsec: WAIT }
}

/// A call with a time-out ends with it: not earlier, and not with EINTR.
fn times_out<R: PartialEq + std::fmt::Debug + Send>(expected: R, call: impl Fn() -> R + Send + Sync) {
    let (result, elapsed) = cut_off(|| {
        let begin = Instant::now();
        (call(), begin.elapsed())
    });
    assert_eq!(result, expected);
    assert!(elapsed >= Duration::from_nanos(WAIT as u64), "after {elapsed:?}");
}

#[test]
fn calls_go_on_until_their_time_is_over() {
    times_out(0, || poll(null_mut(), 0, 60));
    times_out(0, || ppoll(null_mut(), 0, &wait(), null()));
    times_out(0, || {
        let mut timeout = libc::timeval { tv_sec: 0, tv_usec: WAIT / 1000 };
        select(0, null_mut(), null_mut(), null_mut(), &mut timeout)
    });
    times_out(0, || pselect(0, null_mut(), null_mut(), null_mut(), &wait(), null()));
    times_out(0, || nanosleep(&wait(), null_mut()));
    times_out(0, || clock_nanosleep(libc::CLOCK_REALTIME, 0, &wait(), null_mut()));
    times_out(0, || usleep((WAIT / 1000) as u32));
    times_out(0, || sleep(1));
}

#[test]
fn events_are_waited_for_until_the_time_is_over() {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let (fd, mut events) = (epoll.as_raw_fd(), [0u64; 8]);
    let room = events.as_mut_ptr() as usize;
    times_out(0, || epoll_wait(fd, room as *mut c_void, 1, 60));
    times_out(0, || epoll_pwait(fd, room as *mut c_void, 1, 60, null()));
    times_out(0, || epoll_pwait2(fd, room as *mut c_void, 1, &wait(), null()));
}

#[test]
fn a_sockets_time_out_is_kept() {
    use std::io::ErrorKind::WouldBlock;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_nanos(WAIT as u64))).unwrap();
    let fd = socket.as_raw_fd();
    times_out((-1, Some(WouldBlock)), || {
        let result = on_socket(fd, Way::In, || real::recv(fd, [0u8; 1].as_mut_ptr().cast(), 1, 0));
        (result, Some(std::io::Error::last_os_error().kind()))
    });
}

#[test]
fn semaphores_are_waited_for_until_the_time_is_over() {
    let result = cut_off(|| unsafe {
        let until = End::after(libc::CLOCK_REALTIME, WAIT).nanoseconds;
        let until = timespec { tv_sec: until / SECOND, tv_nsec: until % SECOND };
        let mut semaphore = std::mem::zeroed::<libc::sem_t>();
        libc::sem_init(&mut semaphore, 0, 0);
        (sem_timedwait(&mut semaphore, &until), *libc::__errno_location())
    });
    assert_eq!(result, (-1, libc::ETIMEDOUT));
}

#[test]
fn a_signal_of_the_programs_still_ends_a_call() {
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_signal(_: c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR2, &action, null_mut());
    }
    let (thread, sent) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while thread.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // Again and again, for the first may come before the call.
            while !sent.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(30));
                let thread = thread.load(Ordering::SeqCst);
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2) };
            }
        });
        let result = under_stops(|| {
            thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
            (poll(null_mut(), 0, -1), std::io::Error::last_os_error().kind())
        });
        sent.store(true, Ordering::SeqCst);
        assert_eq!(result, (-1, std::io::ErrorKind::Interrupted));
    });
    assert_ne!(HANDLED.load(Ordering::SeqCst), 0);
}
