//! Thread stop: a signal stops the other threads of the process for the microseconds that it takes to replace pages.
//!
//! A stopped thread stays in a few instructions that write to no memory but one counter: not to its stack either, which may be
//! among the pages. A thread that cannot be stopped soon (it blocks the signal, or is stuck in the kernel) is not waited for;
//! then the pages stay as they are.
#![allow(unsafe_code)]

use super::cut;
use super::hold::for_each_thread;
use arrayvec::ArrayVec;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::futex;
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most threads that are stopped.
const MAX_THREADS: usize = 1024;
/// Time-out for all threads together while none of them is running: such a thread is stuck, or waits for us.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The same while one still runs, or would if it were given a processor.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(2);
/// Retries for a thread that sleeps with the signal blocked.
const DEAF_TRIES: u32 = 30;

/// Odd while threads are to be stopped; stopped threads wait until it changes.
static ROUND: AtomicU32 = AtomicU32::new(0);
/// The round in the upper half, and in the lower how many have stopped in it.
static STOPPED: AtomicU64 = AtomicU64::new(0);
/// The signal, once one was found that the program does not use.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The last thread that blocked the signal all the time: it is not waited for again.
static DEAF: AtomicU32 = AtomicU32::new(0);

/// Runs `replace` while all other threads are stopped; none where not all could be.
pub(super) fn during<R>(replace: impl FnOnce() -> R) -> Option<R> {
    let signal = signal()?;
    let round = ROUND.load(Ordering::Relaxed).wrapping_add(1);
    STOPPED.store(u64::from(round) << 32, Ordering::SeqCst);
    ROUND.store(round, Ordering::SeqCst);
    let all = stop_all(signal);
    let result = all.then(replace);
    ROUND.store(round.wrapping_add(1), Ordering::SeqCst);
    let _ = futex::wake(&ROUND, futex::Flags::PRIVATE, i32::MAX as u32);
    result
}

/// Interrupts a thread: the system call in which it sleeps is restarted.
pub(super) fn interrupt(thread: u32) {
    if let Some(signal) = signal() {
        send(rustix::process::getpid().as_raw_nonzero().get(), thread, signal);
    }
}

/// A signal with our handler: the highest one that the program does not use.
fn signal() -> Option<i32> {
    let known = SIGNAL.load(Ordering::Relaxed);
    if known != 0 && handler_of(known) == Some(on_stop as *const () as usize) {
        return Some(known);
    }
    let free = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| handler_of(signal) == Some(libc::SIG_DFL))?;
    // SAFETY: the struct is complete. The handler stays: a signal may reach a thread after its round is over.
    let installed = unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_stop as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
        // All, even libc's own: sigfillset would leave those out.
        std::ptr::write_bytes(&raw mut action.sa_mask, 0xff, 1);
        libc::sigaction(free, &action, std::ptr::null_mut()) == 0
    };
    SIGNAL.store(free, Ordering::Relaxed);
    installed.then_some(free)
}

/// The handler of a signal.
pub(super) fn handler_of(signal: i32) -> Option<usize> {
    // SAFETY: only asks.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        (libc::sigaction(signal, std::ptr::null(), &mut action) == 0).then_some(action.sa_sigaction)
    }
}

/// Signals every other thread until no new one appears and all have stopped.
fn stop_all(signal: i32) -> bool {
    let (process, me) = (rustix::process::getpid(), rustix::thread::gettid());
    let (process, me) = (process.as_raw_nonzero().get(), me.as_raw_nonzero().get().unsigned_abs());
    let mut signalled = ArrayVec::<u32, MAX_THREADS>::new();
    let start = Instant::now();
    let mut tries = 0;
    loop {
        let (before, mut possible, mut deaf) = (signalled.len(), true, None);
        let listed = for_each_thread(|thread| {
            if thread == me || signalled.contains(&thread) || !possible {
                return;
            }
            match standing(thread, signal) {
                Standing::Gone => {}
                Standing::Deaf => deaf = Some(thread),
                Standing::Running => {
                    if send(process, thread, signal) {
                        possible = signalled.try_push(thread).is_ok();
                    }
                }
            }
        });
        if !listed || !possible || !wait_for(&signalled, process, start) {
            return false;
        }
        if let Some(thread) = deaf {
            // Most block signals for a moment only, such as while a thread is made; but that can need a processor.
            tries += 1;
            let known = DEAF.load(Ordering::Relaxed) == thread;
            let may_hear = !known && start.elapsed() < TIMEOUT && state(thread) == Some(b'R');
            if tries > DEAF_TRIES && !may_hear {
                DEAF.store(thread, Ordering::Relaxed);
                return false;
            }
            rustix::thread::sched_yield();
        } else if signalled.len() == before {
            return true;
        }
    }
}

/// Waits until every thread of `signalled` has stopped or is gone.
fn wait_for(signalled: &[u32], process: i32, start: Instant) -> bool {
    let stopped = || (STOPPED.load(Ordering::SeqCst) & u64::from(u32::MAX)) as usize;
    for round in 1u32.. {
        if stopped() >= signalled.len() {
            return true;
        }
        rustix::thread::sched_yield();
        if round.is_multiple_of(256) {
            // A stopped thread cannot end; one that ended has not stopped.
            let gone = signalled.iter().filter(|&&thread| !send(process, thread, 0)).count();
            let waited = start.elapsed();
            let runs = || signalled.iter().any(|&thread| state(thread) == Some(b'R'));
            let enough = waited > RUNNING_TIMEOUT || (waited > TIMEOUT && !runs());
            // Counted last: this thread, too, may have waited for a processor between any two of these lines.
            if stopped() + gone >= signalled.len() {
                return true;
            }
            if enough {
                return false;
            }
        }
    }
    false
}

/// Sends a signal to a thread; false where it is gone.
fn send(process: i32, thread: u32, signal: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) == 0 }
}

enum Standing {
    Running,
    /// It has ended, or is a main thread that has ended before the others.
    Gone,
    /// It blocks the signal.
    Deaf,
}

fn standing(thread: u32, signal: i32) -> Standing {
    let Some(status) = Status::read(thread) else { return Standing::Gone };
    if status.state().is_none_or(|state| matches!(state, b'Z' | b'X')) {
        return Standing::Gone;
    }
    match status.blocked() {
        Some(mask) if mask & 1 << (signal - 1) == 0 => Standing::Running,
        _ => Standing::Deaf,
    }
}

/// A stopped thread sleeps, so it is not among those that run.
fn state(thread: u32) -> Option<u8> {
    Status::read(thread)?.state()
}

/// State of a thread, from `/proc`.
struct Status {
    text: [u8; 4096],
    len: usize,
}

impl Status {
    fn read(thread: u32) -> Option<Self> {
        let mut path = [0u8; 64];
        write!(&mut path[..63], "/proc/self/task/{thread}/status\0").ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0u8; 4096];
        let len = rustix::io::read(&file, &mut text).ok()?;
        Some(Self { text, len })
    }

    fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let mut lines = self.text[..self.len].split(|&byte| byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name)).map(<[u8]>::trim_ascii)
    }

    fn state(&self) -> Option<u8> {
        self.field(b"State:")?.first().copied()
    }

    fn blocked(&self) -> Option<u64> {
        u64::from_str_radix(str::from_utf8(self.field(b"SigBlk:")?).ok()?, 16).ok()
    }
}

/// Runs in the thread that is to stop.
extern "C" fn on_stop(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let round = ROUND.load(Ordering::SeqCst);
    if round % 2 == 1 {
        stand_still(round);
    }
    cut::note(signal, context);
}

/// Counts this thread as stopped in `round`, unless that is over, and waits for its end.
#[cfg(target_arch = "x86_64")]
fn stand_still(round: u32) {
    // SAFETY: writes only the counter, and not the stack; the futex call reads `ROUND`. Leaves when `ROUND` has changed.
    unsafe {
        std::arch::asm!(
            "2: mov rax, qword ptr [{stopped}]",
            "mov rcx, rax",
            "shr rcx, 32",
            "cmp ecx, {round:e}",
            "jne 4f",
            "lea rcx, [rax + 1]",
            "lock cmpxchg qword ptr [{stopped}], rcx",
            "jne 2b",
            "3: cmp dword ptr [{word}], {round:e}",
            "jne 4f",
            "mov rdi, {word}",
            "mov esi, {wait}",
            "mov edx, {round:e}",
            "xor r10d, r10d",
            "mov eax, {futex}",
            "syscall",
            "jmp 3b",
            "4:",
            stopped = in(reg) STOPPED.as_ptr(),
            word = in(reg) ROUND.as_ptr(),
            round = in(reg) round,
            wait = const libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            futex = const libc::SYS_futex,
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r10") _, out("r11") _,
            options(nostack),
        );
    }
}

/// As on x86-64.
#[cfg(target_arch = "aarch64")]
fn stand_still(round: u32) {
    // SAFETY: writes only the counter, and not the stack; the futex call reads `ROUND`. Leaves when `ROUND` has changed.
    unsafe {
        std::arch::asm!(
            "2: ldaxr x9, [{stopped}]",
            "lsr x10, x9, #32",
            "cmp w10, {round:w}",
            "b.ne 4f",
            "add x9, x9, #1",
            "stlxr w10, x9, [{stopped}]",
            "cbnz w10, 2b",
            "3: ldar w9, [{word}]",
            "cmp w9, {round:w}",
            "b.ne 4f",
            "mov x0, {word}",
            "mov x1, #{wait}",
            "mov w2, {round:w}",
            "mov x3, #0",
            "mov x8, #{futex}",
            "svc #0",
            "b 3b",
            "4: clrex",
            stopped = in(reg) STOPPED.as_ptr(),
            word = in(reg) ROUND.as_ptr(),
            round = in(reg) round,
            wait = const libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            futex = const libc::SYS_futex,
            out("x0") _, out("x1") _, out("x2") _, out("x3") _, out("x8") _, out("x9") _, out("x10") _,
            options(nostack),
        );
    }
}
