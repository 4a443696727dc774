//! Fork handling of registered memory.
//!
//! Arena pages are shared mappings: without more, parent and child would see each other's writes. The child therefore
//! replaces each by a private copy before it goes on, and the parent waits for that, so that the copy is the memory as
//! it was at the fork. Device contexts are used on by both: rings and pages stay shared.
#![allow(unsafe_code)]

use super::arena::{self, ARENA, Arena};
use super::hold::SignalsBlocked;
use super::maps::{Maps, Vma};
use super::{own, stack};
use crate::errno::minus_one;
use crate::real;
use libc::{c_int, c_long};
use rdmesh_preload::{gate, process};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::SeekFrom;
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// While a fork is under way and there is memory to copy: the child holds the second end until it has.
static COPYING: Mutex<Option<(OwnedFd, OwnedFd)>> = Mutex::new(None);

/// Registers the fork handlers, at the start of the library. Handlers registered later, such as an allocator's that starts with
/// its first allocation, run outside of these.
pub(crate) fn watch() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        real::at_fork(prepare, parent, child);
    }
}

/// `fork` for a program that calls it by name. Its thread may run on arena memory, which parent and child share until
/// the child has copied it; so both run on another stack until then.
pub(crate) fn fork() -> i32 {
    if !arena::exists() {
        return real::fork();
    }
    let mut result = -1;
    match stack::run_aside(fork_aside, (&raw mut result).cast()) {
        Ok(()) => result,
        Err(errno) => minus_one(errno),
    }
}

extern "C" fn fork_aside(result: *mut c_void) {
    copy_own_area();
    // SAFETY: the caller passes the address of its result, which is its own in parent and child by the end of this call.
    unsafe { result.cast::<i32>().write(real::fork()) };
}

/// Forks by `call`, which runs no fork handlers, and returns what it returned: in the child after that has its own memory.
/// Where a signal handler forks in the middle of this library nothing can be done: parent and child then share the memory.
pub(crate) fn fork_by<F: Fn() -> c_long>(call: F) -> c_long {
    if gate::is_inside() {
        return call();
    }
    let mut forking = Forking { call, result: -c_long::from(libc::ENOMEM) };
    let _ = stack::run_aside(fork_by_aside::<F>, (&raw mut forking).cast());
    forking.result
}

struct Forking<F> {
    call: F,
    result: c_long,
}

extern "C" fn fork_by_aside<F: Fn() -> c_long>(forking: *mut c_void) {
    let forking = forking.cast::<Forking<F>>();
    copy_own_area();
    prepare();
    // SAFETY: the caller passes the address of its own, which it does not touch meanwhile.
    let result = unsafe { ((*forking).call)() };
    if result == 0 {
        child()
    } else {
        parent()
    }
    // SAFETY: as above; in the child the copy is its own by now.
    unsafe { (*forking).result = result };
}

/// Start function of a process made by `clone`.
pub(crate) type Start = extern "C" fn(*mut c_void) -> c_int;

/// Makes a process by `call`, a `clone` of the function and the argument that it is given, which runs `function` on memory of
/// its own.
pub(crate) fn clone_by(
    function: Start,
    argument: *mut c_void,
    call: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    if gate::is_inside() {
        return call(function, argument);
    }
    let mut begin = (function, argument);
    prepare();
    let result = call(begin_child, (&raw mut begin).cast());
    parent();
    result
}

extern "C" fn begin_child(begin: *mut c_void) -> c_int {
    // SAFETY: the parent waits with its own until this process has a copy of it.
    let (function, argument) = unsafe { begin.cast::<(Start, *mut c_void)>().read() };
    child();
    function(argument)
}

/// Copies the calling thread's area, where the kernel writes before the child runs. Needed only for memory that became a
/// thread's after its conversion.
fn copy_own_area() {
    if let Some((low, high)) = own::own_thread_area() {
        let _ = copy_range(low, high);
    }
}

// None of the three may allocate: another thread may have held the allocator's lock at the fork.

extern "C" fn prepare() {
    gate::close();
    if arena::exists() {
        *copying() = pipe_with(PipeFlags::CLOEXEC).ok();
    }
}

extern "C" fn parent() {
    if let Some((done, copier)) = copying().take() {
        drop(copier);
        // Ends when the child has copied, or died.
        let _ = io::retry_on_intr(|| io::read(done.as_fd(), &mut [0u8; 1][..]));
    }
    gate::open();
}

extern "C" fn child() {
    process::forked();
    if arena::exists() {
        let mut result = Ok(());
        let ran = stack::run_aside(copy_all, (&raw mut result).cast());
        if ran.and(result).is_err() {
            // There is not enough memory for a copy, and sharing would break both processes.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        }
        arena::forget();
    }
    drop(copying().take());
    gate::open();
}

fn copying() -> std::sync::MutexGuard<'static, Option<(OwnedFd, OwnedFd)>> {
    COPYING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces all arena memory by private copies. Runs on its own stack: the other one may be arena memory.
extern "C" fn copy_all(result: *mut c_void) {
    let copied = copy_range(0, u64::MAX);
    // SAFETY: the caller passes the address of its result.
    unsafe { *result.cast::<io::Result<()>>() = copied };
}

/// Replaces the arena memory between two page boundaries.
fn copy_range(low: u64, high: u64) -> io::Result<()> {
    let arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    let _signals = SignalsBlocked::new();
    let mut copied = Ok(());
    Maps::open()?.read(|vma| {
        let (start, end) = (vma.start.max(low), vma.end.min(high));
        if copied.is_ok() && start < end && arena::is_arena(&vma) {
            copied = copy(&Vma { start, end, offset: vma.offset + (start - vma.start), ..vma }, &arena);
        }
    })?;
    copied
}

fn copy(vma: &Vma, arena: &Arena) -> io::Result<()> {
    let len = (vma.end - vma.start) as usize;
    let old = std::ptr::with_exposed_provenance_mut::<c_void>(vma.start as usize);
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh memory.
    let new = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, both, MapFlags::PRIVATE)? };
    match arena.fd() {
        Some(fd) if vma.file == arena.file() => read_data(fd, vma.offset, len as u64, new.cast())?,
        _ => {
            // SAFETY: both ranges are `len` bytes, mapped, and apart; only this thread uses them.
            unsafe {
                rustix::mm::mprotect(old, len, MprotectFlags::READ)?;
                std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), len);
            }
        }
    }
    let mut prot = MprotectFlags::empty();
    prot.set(MprotectFlags::READ, vma.readable);
    prot.set(MprotectFlags::WRITE, vma.writable);
    prot.set(MprotectFlags::EXEC, vma.executable);
    // SAFETY: puts memory of the same content and rights where the old was; only this thread runs, on another stack.
    unsafe {
        rustix::mm::mprotect(new, len, prot)?;
        rustix::mm::mremap_fixed(new, len, len, MremapFlags::MAYMOVE, old)?;
    }
    Ok(())
}

/// Reads the pages of `offset..offset + len` of the arena; pages that were never written stay zero, and take no memory.
fn read_data(arena: BorrowedFd<'_>, offset: u64, len: u64, into: *mut u8) -> io::Result<()> {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let from = match rustix::fs::seek(arena, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?.min(end),
        };
        let to = rustix::fs::seek(arena, SeekFrom::Hole(from))?.min(end);
        at = from;
        while at < to {
            // SAFETY: `into` has room for the whole range.
            let read = unsafe {
                let target = into.add((at - offset) as usize);
                libc::syscall(libc::SYS_pread64, arena.as_raw_fd(), target, to - at, at)
            };
            if read <= 0 {
                return Err(Errno::IO);
            }
            at += read as u64;
        }
        at = to.max(at);
    }
    Ok(())
}
