//! libibverbs in the program: its structs, as far as they are used here, and its functions.
//!
//! This library is not linked to it: the program has loaded it, or there is no device to be used. What is here is part of its ABI.
#![allow(unsafe_code)]

pub(crate) mod objects;

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// The function of that name; null where the program has not loaded libibverbs.
pub(crate) fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() { function_out_of_scope(name) } else { found }
}

/// The function of that name in a libibverbs that the program may have loaded out of the global scope, as Python's modules are.
pub(crate) fn function_out_of_scope(name: &CStr) -> *mut c_void {
    // SAFETY: C strings; the handle is kept.
    unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library.is_null() { null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    }
}

/// `struct ibv_context`, as far as it is used here; part of libibverbs' ABI.
#[repr(C)]
pub(crate) struct VerbsContext {
    device: *mut c_void,
    before_poll: [*mut c_void; 11],
    pub(crate) poll_cq: AtomicPtr<c_void>,
    after_poll: [*mut c_void; 20],
    pub(crate) cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// The members before it in `struct verbs_context`, back to `create_cq_ex`.
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) create_cq_ex: AtomicPtr<c_void>,
    others: [*mut c_void; 13],
    /// Bytes of the whole `verbs_context`, which grows at its beginning.
    pub(crate) size: usize,
}

/// `struct ibv_cq_ex`, as far as it is used here.
#[repr(C)]
pub(crate) struct CqEx {
    context: *mut VerbsContext,
    channel: *mut c_void,
    cq_context: *mut c_void,
    handle: u32,
    cqe: c_int,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    comp_events_completed: u32,
    async_events_completed: u32,
    comp_mask: u32,
    status: c_int,
    wr_id: u64,
    pub(crate) start_poll: AtomicPtr<c_void>,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut VerbsContext,
    pub(crate) handle: u32,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut VerbsContext,
    channel: *mut c_void,
    cq_context: *mut c_void,
    pub(crate) handle: u32,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut VerbsContext,
    qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    context: *mut VerbsContext,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    rkey: u32,
}

#[cfg(target_arch = "x86_64")]
const _: () = {
    assert!(offset_of!(VerbsContext, poll_cq) == 96 && offset_of!(VerbsContext, cmd_fd) == 264);
    assert!(size_of::<VerbsContext>() == 328 && offset_of!(CqEx, start_poll) == 144);
    assert!(size_of::<Extension>() == 120);
    assert!(offset_of!(Qp, handle) == 48 && offset_of!(Cq, handle) == 24 && offset_of!(Mr, lkey) == 36);
};
