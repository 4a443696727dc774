//! Futex waiters on converted pages: threads that wait for a process-shared futex.
//!
//! The kernel identifies such a futex by its page, which the conversion replaces: a later wake-up would not find the waiter. So
//! the waiter is interrupted once, and the call that the kernel (or `interpose::waits`) then makes again looks at the new page.
//! Conversions that stop all threads interrupt every waiter anyway.

use super::hold::for_each_thread;
use super::stop;
use rustix::fs::{CWD, Mode, OFlags};
use std::io::Write;

/// Number of looks at a running thread: it may be about to sleep.
const LOOKS: u32 = 3;
/// Set in the operation of a futex that only threads of one process use: it is known by its address, which stays.
const PRIVATE: u64 = libc::FUTEX_PRIVATE_FLAG as u64;
/// `futex_waitv` and `futex_wait`, which have the same number on all machines.
const FUTEX_WAITV: i64 = 449;
const FUTEX_WAIT: i64 = 455;

/// Interrupts all other threads that wait for a futex in `start..end`.
pub(super) fn rouse(start: u64, end: u64) {
    let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    for_each_thread(|thread| {
        if thread != me && waits_in(thread, start, end) {
            stop::interrupt(thread);
        }
    });
}

/// Whether a thread sleeps in such a call. A running thread is given time to fall asleep; one that sleeps in another call finds
/// the new page when it comes to a futex.
fn waits_in(thread: u32, start: u64, end: u64) -> bool {
    for _ in 0..LOOKS {
        match Call::of(thread) {
            Some(Call::Running) => rustix::thread::sched_yield(),
            call => return call.is_some_and(|call| call.waits_in(start, end)),
        }
    }
    false
}

/// System call in which a thread is.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Running,
    /// It sleeps in a system call, by number, with these arguments.
    Asleep(i64, [u64; 6]),
}

impl Call {
    /// The state in `/proc`; none where it is unreadable.
    fn of(thread: u32) -> Option<Self> {
        let mut path = [0u8; 64];
        write!(&mut path[..63], "/proc/self/task/{thread}/syscall\0").ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0u8; 256];
        let len = rustix::io::read(&file, &mut text).ok()?;
        Self::parse(str::from_utf8(&text[..len]).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = match words.next()? {
            "running" => return Some(Self::Running),
            number => number.parse().ok()?,
        };
        let mut arguments = [0; 6];
        for (argument, word) in arguments.iter_mut().zip(words) {
            *argument = u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self::Asleep(number, arguments))
    }

    fn waits_in(&self, start: u64, end: u64) -> bool {
        let there = |address| (start..end).contains(&address);
        match *self {
            Self::Running => false,
            // The second address is, of a call with two, where the waiter may have been moved.
            Self::Asleep(libc::SYS_futex, [at, operation, _, _, other, _]) => {
                operation & PRIVATE == 0 && (there(at) || there(other))
            }
            Self::Asleep(FUTEX_WAIT, [at, _, _, flags, ..]) => flags & PRIVATE == 0 && there(at),
            // Its list is the program's, and need not be there any more.
            Self::Asleep(FUTEX_WAITV, _) => true,
            Self::Asleep(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_known_by_their_call() {
        let call = |text: &str| Call::parse(text).unwrap();
        let futex = |operation| {
            call(&format!("{} 0x5000 0x{operation:x} 0x0 0x0 0x9000 0xffffffff 0x7ffe 0x7f00\n", libc::SYS_futex))
        };
        assert!(futex(libc::FUTEX_WAIT).waits_in(0x5000, 0x6000));
        assert!(futex(libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME).waits_in(0x9000, 0xa000));
        assert!(!futex(libc::FUTEX_WAIT).waits_in(0x6000, 0x7000));
        assert!(!futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG).waits_in(0x5000, 0x6000));
        assert!(!call("0 0x5000 0x5000 0x0 0x0 0x0 0x0 0x7ffe 0x7f00").waits_in(0x5000, 0x6000));
        assert_eq!(call("running\n"), Call::Running);
        assert_eq!(Call::parse(""), None);
    }
}
