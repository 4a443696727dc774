//! Guarded accesses to shared pages that the other side has not populated, or has removed.
//!
//! A missing page of a memfd is made by the process that touches it first, and charged to that process's control group. The
//! router must never make a page of a tenant's memory. So it registers its mappings of such memory with userfaultfd, in the
//! mode in which touching a page that is missing raises SIGBUS, and system calls fail with EFAULT. SIGBUS also tells of pages
//! that cannot be had (no memory, a control group at its limit). A handler for the whole process knows two kinds of accesses:
//!
//! * an [`attempt`], a copy to or from registered memory: it ends with an error;
//! * all others, to rings and context pages: their whole mapping is replaced by private zeros, and its [`Alarm`] goes off,
//!   for the session to be closed.
//!
//! Anything else is a fault of the program's own, and ends it.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An access that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing;

/// Alarm for mappings that have lost pages. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct Alarm(Arc<AtomicBool>);

impl Alarm {
    /// Whether pages were missing in one of its mappings.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Guards this process's mappings of others' memory from now on. Returns whether missing pages are found before they are
/// made; without userfaultfd only pages that cannot be had are.
pub fn install() -> bool {
    GUARD.get_or_init(|| handle_sigbus().ok().and_then(|()| open().ok())).is_some()
}

/// Whether missing pages are found before they are made.
pub fn is_complete() -> bool {
    matches!(GUARD.get(), Some(Some(_)))
}

/// An eventfd that is written to whenever an alarm goes off, until it is dropped.
#[derive(Debug)]
pub struct Wake {
    place: &'static AtomicI32,
    _fd: OwnedFd,
}

impl Wake {
    /// Registers `fd`, to be written to. EMFILE where there are too many already.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let number = fd.as_raw_fd();
        let place =
            WAKES.iter().find(|place| place.compare_exchange(-1, number, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        Ok(Self { place: place.ok_or(io::Errno::MFILE)?, _fd: fd })
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.place.store(-1, Ordering::Release);
    }
}

/// The mappings of queues and pages that are known to the handler.
static SLOTS: [Slot; MOST_SLOTS] = [const { Slot::new() }; MOST_SLOTS];
/// Slots below this have been in use.
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static GUARD: OnceLock<Option<OwnedFd>> = OnceLock::new();
/// One for each server of sessions: more than one only in tests.
static WAKES: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

/// More than a process can have mappings of queues (`vm.max_map_count` by default).
const MOST_SLOTS: usize = 1 << 16;

/// A mapping, for the handler.
struct Slot {
    /// Zero where there is none.
    base: AtomicUsize,
    len: AtomicUsize,
    alarm: AtomicPtr<AtomicBool>,
}

impl Slot {
    const fn new() -> Self {
        Self { base: AtomicUsize::new(0), len: AtomicUsize::new(0), alarm: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The mapping, if `address` is in it.
    fn find(&self, address: usize) -> Option<(usize, usize)> {
        let base = self.base.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        let found = base != 0 && address.wrapping_sub(base) < len && self.base.load(Ordering::Acquire) == base;
        found.then_some((base, len))
    }
}

/// The place of a mapping in the handler's table, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    slot: usize,
    /// The slot points to what is in it.
    _alarm: Alarm,
}

impl Watched {
    /// Makes missing pages in the `len` bytes at `base` raise `alarm`. ENOMEM where too many mappings are watched.
    pub(crate) fn new(base: NonNull<u8>, len: usize, alarm: &Alarm) -> io::Result<Self> {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = match free {
            Some(slot) => slot,
            None => {
                let grown =
                    USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MOST_SLOTS).then_some(n + 1));
                grown.map_err(|_| io::Errno::NOMEM)?
            }
        };
        // The base last: what is not the base's own must not be seen with it.
        SLOTS[slot].len.store(len, Ordering::Release);
        SLOTS[slot].alarm.store(Arc::as_ptr(&alarm.0).cast_mut(), Ordering::Release);
        SLOTS[slot].base.store(base.as_ptr().addr(), Ordering::Release);
        Ok(Self { slot, _alarm: alarm.clone() })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        SLOTS[self.slot].base.store(0, Ordering::Release);
        SLOTS[self.slot].alarm.store(std::ptr::null_mut(), Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
    }
}

/// Runs `f` on `args`; an error where it met a page that is missing. Its earlier effects remain.
///
/// `f` is left in the middle then: it must be plain code without anything to drop, and must not panic.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn attempt<A>(f: extern "C" fn(&mut A), args: &mut A) -> Result<(), Missing> {
    let cell = STACK.with(std::cell::Cell::as_ptr);
    // SAFETY: `f` takes a reference to `A`, which is a valid pointer to it, by the C calling convention. The cell is this
    // thread's, and only used by `rdmesh_attempt` and by the handler that interrupts it. Frames of `f` that are left have
    // nothing to drop, by the contract.
    let missing = unsafe { rdmesh_attempt(f as *const c_void, std::ptr::from_mut(args).cast(), cell) };
    if missing == 0 { Ok(()) } else { Err(Missing) }
}

/// The same where accesses are not guarded.
#[cfg(not(target_arch = "x86_64"))]
pub fn attempt<A>(f: extern "C" fn(&mut A), args: &mut A) -> Result<(), Missing> {
    f(args);
    Ok(())
}

thread_local! {
    /// The stack pointer of the attempt that this thread makes; zero outside.
    static STACK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(target_arch = "x86_64")]
// SAFETY: defined below.
unsafe extern "C" {
    /// Calls `f(args)`, with the stack pointer in `stack` meanwhile. Returns 0.
    fn rdmesh_attempt(f: *const c_void, args: *mut c_void, stack: *mut usize) -> i32;
    /// Returns 1 from the call of `rdmesh_attempt` whose stack pointer is set.
    fn rdmesh_attempt_failed();
}

// The registers that a function keeps for its caller (System V ABI, 3.2.1) may hold anything when `f` is left.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.rdmesh_attempt,\"ax\",@progbits",
    ".hidden rdmesh_attempt",
    ".globl rdmesh_attempt",
    ".type rdmesh_attempt,@function",
    "rdmesh_attempt:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov [rdx], rsp",
    "call rax",
    "xor eax, eax",
    "2:",
    "pop rdx",
    "mov qword ptr [rdx], 0",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".hidden rdmesh_attempt_failed",
    ".globl rdmesh_attempt_failed",
    ".type rdmesh_attempt_failed,@function",
    "rdmesh_attempt_failed:",
    "mov eax, 1",
    "jmp 2b",
    ".popsection",
);

/// Takes SIGBUS.
fn handle_sigbus() -> io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction`, which is filled in before its use; the handler calls nothing but what a
    // signal handler may.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(last_error()) }
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO valid pointers.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Zero or less: a process sent the signal.
    if code > 0 && (leave_attempt(context) || replace(address)) {
        return;
    }
    // SAFETY: both are allowed in handlers. Once this one has returned, the access is made again, or the signal delivered.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Makes the attempt of this thread, if there is one, return an error.
#[cfg(target_arch = "x86_64")]
fn leave_attempt(context: *mut c_void) -> bool {
    const DIRECTION_FLAG: i64 = 1 << 10;
    let stack = STACK.with(std::cell::Cell::get);
    if stack == 0 {
        return false;
    }
    // SAFETY: the kernel hands a handler the registers of what it interrupts, to be changed. The stack pointer is that of
    // an `rdmesh_attempt` of this thread that has not returned. The interrupted code may have been copying downwards.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        registers[libc::REG_RSP as usize] = stack.cast_signed() as i64;
        registers[libc::REG_RIP as usize] = (rdmesh_attempt_failed as *const ()).addr().cast_signed() as i64;
        registers[libc::REG_EFL as usize] &= !DIRECTION_FLAG;
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn leave_attempt(_: *mut c_void) -> bool {
    false
}

/// Replaces the mapping of `address` by zeros, if it is watched: the whole mapping, since a part would split it.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire).min(MOST_SLOTS);
    let Some((slot, (base, len))) = SLOTS[..used].iter().find_map(|slot| Some((slot, slot.find(address)?))) else {
        return false;
    };
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: the range is a mapping that is alive, since its page is being accessed; its memory may change at any time
    // anyway. The alarm lives as long as the mapping is in its slot. `mmap` and `write` are system calls.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        if libc::mmap(at, len, protection, flags, -1, 0) == libc::MAP_FAILED {
            return false;
        }
        if let Some(alarm) = slot.alarm.load(Ordering::Acquire).as_ref() {
            alarm.store(true, Ordering::Relaxed);
        }
        let errno = *libc::__errno_location();
        for wake in WAKES.iter().map(|wake| wake.load(Ordering::Acquire)).filter(|wake| *wake >= 0) {
            libc::write(wake, (&raw const ONE).cast(), size_of_val(&ONE));
        }
        *libc::__errno_location() = errno;
    }
    true
}

static ONE: u64 = 1;

/// A userfaultfd in the mode in which missing pages raise SIGBUS.
fn open() -> io::Result<OwnedFd> {
    let fd = userfaultfd()?;
    let mut api = UffdioApi { api: 0xaa, features: FEATURE_SIGBUS | FEATURE_MISSING_SHMEM, ioctls: 0 };
    uffd_ioctl(fd.as_fd(), UFFDIO_API, &mut api)?;
    Ok(fd)
}

/// Makes missing pages in a mapping of shared memory raise SIGBUS. Nothing where the guard is not installed, or not complete.
pub(crate) fn protect(base: NonNull<u8>, len: usize) -> io::Result<()> {
    let Some(Some(fd)) = GUARD.get() else { return Ok(()) };
    let mut register = UffdioRegister {
        start: base.as_ptr().addr() as u64,
        len: len.next_multiple_of(PAGE) as u64,
        mode: REGISTER_MISSING,
        ioctls: 0,
    };
    uffd_ioctl(fd.as_fd(), UFFDIO_REGISTER, &mut register)
}

#[cfg(target_arch = "x86_64")]
fn userfaultfd() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // Kernels before 5.11 do not know the second flag, and let root have one without it.
    for flags in [flags | USER_MODE_ONLY, flags] {
        // SAFETY: takes a number; a descriptor that it returns is owned by no other code.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 {
            // SAFETY: as above.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        }
    }
    Err(last_error())
}

/// Without a way to leave an access that fails, missing pages had better be made.
#[cfg(not(target_arch = "x86_64"))]
fn userfaultfd() -> io::Result<OwnedFd> {
    Err(io::Errno::NOSYS)
}

fn uffd_ioctl<A>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut A) -> io::Result<()> {
    // SAFETY: each request is called with the struct that it takes.
    let failed = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if failed == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> io::Errno {
    io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::INVAL)
}

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const REGISTER_MISSING: u64 = 1;
const USER_MODE_ONLY: i32 = 1;
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedMemory;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{FallocateFlags, fallocate};

    extern "C" fn load(args: &mut (*const u8, u8)) {
        // SAFETY: the tests give addresses within mappings.
        unsafe {
            args.1 = args.0.read_volatile();
        }
    }

    fn read(memory: &SharedMemory, at: usize) -> Result<u8, Missing> {
        let mut args = (memory.as_ptr().wrapping_add(at).cast_const(), 0);
        attempt(load, &mut args).map(|()| args.1)
    }

    fn punch(fd: &OwnedFd, offset: u64) {
        fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, PAGE as u64).unwrap();
    }

    /// Pages that a file has: as the kernel counts them.
    fn pages(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).unwrap().st_blocks / 8
    }

    #[test]
    fn a_missing_page_is_an_error_and_is_not_made() {
        assert!(install(), "this kernel has no userfaultfd");
        let (_theirs, fd) = SharedMemory::create("test", 3 * PAGE).unwrap();
        punch(&fd, PAGE as u64);
        let ours = SharedMemory::map_keeping(fd.as_fd(), 0, 3 * PAGE, ()).unwrap();
        for _ in 0..3 {
            assert_eq!([0, PAGE, 2 * PAGE].map(|at| read(&ours, at)), [Ok(0), Err(Missing), Ok(0)]);
        }
        assert_eq!(ours.populate(0, PAGE), Ok(()));
        assert_eq!(ours.populate(0, 3 * PAGE), Err(io::Errno::FAULT));
        punch(&fd, 0);
        assert_eq!(read(&ours, 0), Err(Missing), "it was there before");
        assert_eq!(pages(&fd), 1);
    }

    #[test]
    fn attempts_of_many_threads_do_not_disturb_each_other() {
        install();
        let (_theirs, fd) = SharedMemory::create("test", 2 * PAGE).unwrap();
        punch(&fd, 0);
        let ours = SharedMemory::map_keeping(fd.as_fd(), 0, 2 * PAGE, ()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        assert_eq!((read(&ours, 0), read(&ours, PAGE)), (Err(Missing), Ok(0)));
                    }
                });
            }
        });
    }

    #[test]
    fn a_watched_mapping_becomes_zeros_and_raises_its_alarm() {
        install();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let _wake = Wake::new(wake.try_clone().unwrap()).unwrap();
        let (theirs, fd) = SharedMemory::create("test", 4 * PAGE).unwrap();
        store(&theirs, 0, 7);
        let (alarm, other) = (Alarm::default(), Alarm::default());
        let ours = SharedMemory::map_watched(fd.as_fd(), 0, 4 * PAGE, &alarm, ()).unwrap();
        let neighbour = SharedMemory::map_watched(fd.as_fd(), 0, PAGE, &other, ()).unwrap();
        assert_eq!(plain(&ours, 0), 7);
        punch(&fd, 2 * PAGE as u64);
        assert!(!alarm.is_raised());
        assert_eq!(plain(&ours, 2 * PAGE), 0);
        assert_eq!((alarm.is_raised(), plain(&ours, 0)), (true, 0));
        store(&ours, 3 * PAGE, 9);
        assert_eq!((plain(&ours, 3 * PAGE), plain(&theirs, 3 * PAGE)), (9, 0));
        assert_eq!((other.is_raised(), plain(&neighbour, 0)), (false, 7));
        assert_eq!(io::read(&wake, &mut [0; 8]), Ok(8));
        assert_eq!(pages(&fd), 3);
    }

    fn plain(memory: &SharedMemory, at: usize) -> u8 {
        // SAFETY: the tests stay within the mapping.
        unsafe { memory.as_ptr().add(at).read_volatile() }
    }

    fn store(memory: &SharedMemory, at: usize, value: u8) {
        // SAFETY: the tests stay within the mapping.
        unsafe { memory.as_ptr().add(at).write_volatile(value) }
    }
}
