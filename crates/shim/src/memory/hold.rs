//! Write hold: no other thread writes to pages while they are replaced.
#![allow(unsafe_code)]

use super::fault::FaultHold;
use super::stop;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;

/// Method by which writers are held off.
pub(super) enum Hold {
    /// There are none: the process has one thread.
    Alone,
    /// Their faults wait (userfaultfd write protection).
    Faults(FaultHold),
    /// The threads are stopped by a signal.
    Stop,
}

/// Methods that the kernel and the process support, found out once per registration.
#[derive(Default)]
pub(super) struct Holds {
    alone: Option<bool>,
    refused_faults: bool,
}

impl Holds {
    /// As in a process with other threads, with userfaultfd or without.
    #[cfg(test)]
    pub(super) fn crowded(faults: bool) -> Self {
        Self { alone: Some(false), refused_faults: !faults }
    }

    /// The best method for memory of this kind. With one thread no other can appear, since only this one could make it.
    pub(super) fn choose(&mut self, anonymous: bool) -> Hold {
        if *self.alone.get_or_insert_with(is_alone) {
            return Hold::Alone;
        }
        // Private file mappings cannot be write-protected by userfaultfd.
        if anonymous && !self.refused_faults {
            match FaultHold::new() {
                Ok(hold) => return Hold::Faults(hold),
                Err(_) => self.refused_faults = true,
            }
        }
        Hold::Stop
    }
}

impl Hold {
    /// Runs `replace` while no thread writes to `start..end`; none, without running it, where writers cannot be held off.
    pub(super) fn during<R>(&self, start: u64, end: u64, replace: impl FnOnce() -> R) -> Option<R> {
        let _signals = SignalsBlocked::new();
        match self {
            Self::Alone => Some(replace()),
            Self::Faults(hold) => hold.during(start, end, replace),
            Self::Stop => stop::during(replace),
        }
    }
}

/// All signals blocked, even libc's own: a handler would write to memory, and not only to this thread's stack.
pub(super) struct SignalsBlocked(u64);

impl SignalsBlocked {
    pub(super) fn new() -> Self {
        Self(set_mask(u64::MAX))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both masks are the kernel's eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8usize) };
    before
}

/// Calls `visit` with the number of each thread; false where they cannot be listed.
pub(super) fn for_each_thread(mut visit: impl FnMut(u32)) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat(CWD, c"/proc/self/task", flags, Mode::empty()) else { return false };
    let mut space = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(directory.as_fd(), &mut space);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name().to_bytes();
        if name[0].is_ascii_digit() {
            visit(name.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')));
        }
    }
    true
}

fn is_alone() -> bool {
    let mut threads = 0;
    for_each_thread(|_| threads += 1) && threads == 1
}
