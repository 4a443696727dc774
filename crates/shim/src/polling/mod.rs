//! Poll wrappers: a program's thread yields the processor after empty polls.
//!
//! The provider's `poll_cq` never yields. Where the programs that poll and the router's workers are more than the
//! processors, they stop each other for whole slices of the scheduler. So the poll functions of our contexts are
//! wrapped: after some empty polls in a row a thread lets others run ([`pause`]).
#![allow(unsafe_code)]

mod pause;

use crate::descriptors;
use crate::libibverbs::{self, CqEx, Extension, VerbsContext};
use crate::polled::Polled;
use libc::{c_int, c_void};
use rdmesh_preload::replace;
use rustix::fd::RawFd;
use std::ffi::CStr;
use std::mem::{offset_of, transmute};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Part of the name of the provider's file.
const PROVIDER: &[u8] = b"librxe";

type OpenDevice = extern "C" fn(*mut c_void) -> *mut VerbsContext;
type PollCq = extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type CreateCqEx = extern "C" fn(*mut VerbsContext, *mut c_void) -> *mut CqEx;
type StartPoll = extern "C" fn(*mut CqEx, *mut c_void) -> c_int;

// The provider's functions: the same for all our contexts.
static POLL_CQ: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static CREATE_CQ_EX: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static START_POLL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

replace! {
    /// Calls libibverbs' own function, and then wraps the poll functions.
    fn ibv_open_device(device: *mut c_void) -> *mut VerbsContext {
        let Some(open) = real_open_device() else { return null_mut() };
        let context = open(device);
        wrap(context);
        context
    }
}

fn real_open_device() -> Option<OpenDevice> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"ibv_open_device".as_ptr()) };
        if found.is_null() {
            // Not in the global scope, where this library's own is.
            found = libibverbs::function_out_of_scope(c"ibv_open_device");
        }
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: libibverbs' function of that name has this signature.
    (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, OpenDevice>(found) })
}

/// Wraps the poll functions of a program that got libibverbs' functions by `dlsym`, without the replaced one: they are found
/// through a completion queue at `address`, which the program has made on `device`.
pub(crate) fn adopt(address: u64, device: &Polled) {
    // The memory is the program's: it is read through the kernel, and used only if its content is valid.
    let Some(context) = peek::<*mut VerbsContext>(address) else { return };
    let field = |offset: usize| (context as u64).wrapping_add(offset as u64);
    let Some(fd) = peek::<c_int>(field(offset_of!(VerbsContext, cmd_fd))) else { return };
    let Some(poll) = peek::<*mut c_void>(field(offset_of!(VerbsContext, poll_cq))) else { return };
    let is_its = polled(fd).is_some_and(|found| std::ptr::eq(found, device));
    if !is_its || !is_providers(poll) {
        return;
    }
    wrap(context);
    let start = address.wrapping_add(offset_of!(CqEx, start_poll) as u64);
    if peek(start).is_some_and(is_providers) {
        // SAFETY: a queue has the provider's function there only if it is an extended one.
        let slot = unsafe { &*std::ptr::with_exposed_provenance::<AtomicPtr<c_void>>(start as usize) };
        replace_function(slot, &START_POLL, start_poll as *mut c_void);
    }
}

/// Shared pages of the device behind `fd`.
#[inline]
fn polled<'a>(fd: RawFd) -> Option<&'a Polled> {
    descriptors::peek(fd)?.polled()
}

/// Whether an address is one of rxe's provider's functions.
fn is_providers(address: *mut c_void) -> bool {
    // SAFETY: the struct is plain data that dladdr fills; it takes any address.
    let file = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if address.is_null() || libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(info.dli_fname)
    };
    file.to_bytes().windows(PROVIDER.len()).any(|part| part == PROVIDER)
}

/// Reads a value at an address that may be invalid.
fn peek<T: Copy>(address: u64) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    let local = libc::iovec { iov_base: value.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: len };
    // SAFETY: writes `len` bytes to `value`; what it reads the kernel checks.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    // SAFETY: all of it was written; integers and pointers have no invalid values.
    (read == len as isize).then(|| unsafe { value.assume_init() })
}

fn wrap(context: *mut VerbsContext) {
    // SAFETY: null, or a context that libibverbs has made.
    let Some(verbs) = (unsafe { context.as_ref() }) else { return };
    let Some(device) = polled(verbs.cmd_fd) else { return };
    device.functions_are_wrapped();
    if !pause::is_wanted() {
        return;
    }
    replace_function(&verbs.poll_cq, &POLL_CQ, poll_cq as *mut c_void);
    // libibverbs marks a context with an extension before it by all ones.
    if verbs.abi_compat as usize != usize::MAX {
        return;
    }
    // SAFETY: such a context has at least its size before it, which says whether the rest is there.
    unsafe {
        let extension = context.cast::<Extension>().sub(1);
        if (&raw const (*extension).size).read() >= size_of::<Extension>() + size_of::<VerbsContext>() {
            replace_function(&(*extension).create_cq_ex, &CREATE_CQ_EX, create_cq_ex as *mut c_void);
        }
    }
}

/// Puts `ours` into `slot` and keeps what was there, unless another library has changed it since.
fn replace_function(slot: &AtomicPtr<c_void>, original: &AtomicPtr<c_void>, ours: *mut c_void) {
    let theirs = slot.load(Ordering::Relaxed);
    if theirs.is_null() || theirs == ours {
        return;
    }
    let known = original.compare_exchange(null_mut(), theirs, Ordering::AcqRel, Ordering::Acquire);
    if known.is_ok() || known == Err(theirs) {
        slot.store(ours, Ordering::Release);
    }
}

extern "C" fn poll_cq(cq: *mut c_void, entries: c_int, completions: *mut c_void) -> c_int {
    // SAFETY: set before this function was put in its place.
    let original = unsafe { transmute::<*mut c_void, PollCq>(POLL_CQ.load(Ordering::Relaxed)) };
    let found = original(cq, entries, completions);
    note(cq, found.max(0) as u32);
    found
}

extern "C" fn create_cq_ex(context: *mut VerbsContext, attributes: *mut c_void) -> *mut CqEx {
    // SAFETY: set before this function was put in its place.
    let original = unsafe { transmute::<*mut c_void, CreateCqEx>(CREATE_CQ_EX.load(Ordering::Relaxed)) };
    let cq = original(context, attributes);
    // SAFETY: null, or a queue that libibverbs has just made.
    if let Some(cq) = unsafe { cq.as_ref() } {
        replace_function(&cq.start_poll, &START_POLL, start_poll as *mut c_void);
    }
    cq
}

extern "C" fn start_poll(cq: *mut CqEx, attributes: *mut c_void) -> c_int {
    // SAFETY: set before this function was put in its place.
    let original = unsafe { transmute::<*mut c_void, StartPoll>(START_POLL.load(Ordering::Relaxed)) };
    let result = original(cq, attributes);
    note(cq.cast(), u32::from(result != libc::ENOENT));
    result
}

/// The program has asked for an event of a completion queue.
#[inline]
pub(crate) fn armed() {
    pause::armed();
}

/// The program is about to post a request of `device`.
#[inline]
pub(crate) fn posts(device: &Polled) {
    if pause::is_contended() {
        pause::posts(device);
    }
}

/// A poll of `cq` has found so many completions.
#[inline]
fn note(cq: *mut c_void, found: u32) {
    // SAFETY: `struct ibv_cq` and `struct ibv_cq_ex` begin with their context, and the program has just polled this one.
    let context = unsafe { cq.cast::<*mut VerbsContext>().read() };
    // SAFETY: a context is there as long as its queues.
    let device = || polled(unsafe { (*context).cmd_fd });
    if found == 0 {
        if pause::is_due(context.addr()) {
            pause::pause(device());
        }
    } else {
        pause::found();
        if pause::is_contended() {
            pause::before_memory(device(), found);
        }
    }
}
