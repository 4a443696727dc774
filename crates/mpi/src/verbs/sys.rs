//! libibverbs, loaded when it is first needed: its functions, and the structs of `infiniband/verbs.h` as far as they are used.
//!
//! Layouts are those of libibverbs' stable interface (IBVERBS_1.1) on 64-bit machines.
#![allow(unsafe_code)]

use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;

/// `struct ibv_context`, up to the descriptor of its events.
#[repr(C)]
pub(super) struct Context {
    device: *mut c_void,
    operations: Operations,
    command_fd: c_int,
    pub(super) event_fd: c_int,
}

/// `struct ibv_context_ops`: a table of pointers.
#[repr(C)]
struct Operations {
    before_poll: [*mut c_void; 11],
    poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int,
    before_post: [*mut c_void; 13],
    post_send: unsafe extern "C" fn(*mut QueuePair, *mut WorkRequest, *mut *mut WorkRequest) -> c_int,
    after_post: [*mut c_void; 6],
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(super) struct Event {
    element: *mut c_void,
    pub(super) kind: c_int,
}

impl Event {
    pub(super) const EMPTY: Self = Self { element: std::ptr::null_mut(), kind: 0 };
}

/// `struct ibv_cq`, up to its context.
#[repr(C)]
pub(super) struct CompletionQueue {
    context: *mut Context,
}

/// `struct ibv_qp`, up to its number.
#[repr(C)]
pub(super) struct QueuePair {
    context: *mut Context,
    before: [*mut c_void; 5],
    handle: u32,
    pub(super) number: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct MemoryRegion {
    context: *mut Context,
    domain: *mut c_void,
    address: *mut c_void,
    len: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, with the `rdma` member of its union.
#[repr(C)]
pub(super) struct WorkRequest {
    pub(super) id: u64,
    pub(super) next: *mut WorkRequest,
    pub(super) pieces: *mut Piece,
    pub(super) piece_count: c_int,
    pub(super) opcode: c_int,
    pub(super) flags: c_uint,
    pub(super) immediate: u32,
    pub(super) remote_address: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WorkCompletion {
    pub(super) id: u64,
    pub(super) status: c_int,
    opcode: c_int,
    vendor_error: u32,
    len: u32,
    immediate: u32,
    number: u32,
    source: u32,
    flags: c_uint,
    rest: [u16; 4],
}

impl WorkCompletion {
    pub(super) const EMPTY: Self = Self {
        id: 0,
        status: 0,
        opcode: 0,
        vendor_error: 0,
        len: 0,
        immediate: 0,
        number: 0,
        source: 0,
        flags: 0,
        rest: [0; 4],
    };
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Capacities {
    pub(super) max_send_requests: u32,
    pub(super) max_receive_requests: u32,
    pub(super) max_send_pieces: u32,
    pub(super) max_receive_pieces: u32,
    pub(super) max_inline: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QueuePairInit {
    pub(super) context: *mut c_void,
    pub(super) send_queue: *mut CompletionQueue,
    pub(super) receive_queue: *mut CompletionQueue,
    pub(super) shared_queue: *mut c_void,
    pub(super) capacities: Capacities,
    pub(super) kind: c_int,
    pub(super) all_signalled: c_int,
}

/// `struct ibv_ah_attr`.
#[derive(Default)]
#[repr(C)]
pub(super) struct Address {
    pub(super) gid: Gid,
    pub(super) flow_label: u32,
    pub(super) gid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
    pub(super) rate: u8,
    pub(super) is_global: u8,
    pub(super) port: u8,
}

/// `union ibv_gid`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
pub(super) struct Gid(pub(super) [u8; 16]);

/// `struct ibv_qp_attr`.
#[derive(Default)]
#[repr(C)]
pub(super) struct QueuePairAttributes {
    pub(super) state: c_int,
    pub(super) current_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) migration: c_int,
    pub(super) qkey: u32,
    pub(super) receive_psn: u32,
    pub(super) send_psn: u32,
    pub(super) remote_number: u32,
    pub(super) access: c_uint,
    pub(super) capacities: Capacities,
    pub(super) address: Address,
    pub(super) alternate: Address,
    pub(super) pkey_index: u16,
    pub(super) alternate_pkey_index: u16,
    pub(super) notifies_drained: u8,
    pub(super) is_draining: u8,
    pub(super) max_reads: u8,
    pub(super) max_incoming_reads: u8,
    pub(super) rnr_timer: u8,
    pub(super) port: u8,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) alternate_port: u8,
    pub(super) alternate_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_port_attr`, and room for what newer versions of it add.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttributes {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_count: c_int,
    capabilities: u32,
    pub(super) max_message: u32,
    rest: [u64; 8],
}

const _: () = {
    assert!(size_of::<WorkRequest>() == 128);
    assert!(size_of::<WorkCompletion>() == 48);
    assert!(size_of::<QueuePairInit>() == 64);
    assert!(size_of::<Address>() == 32);
    assert!(size_of::<QueuePairAttributes>() == 144);
    assert!(std::mem::offset_of!(Operations, post_send) == 25 * 8);
    assert!(std::mem::offset_of!(Context, event_fd) == 268);
    assert!(size_of::<Event>() == 16);
};

/// Declares the functions of the library; their pointers are looked up together.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// Functions of libibverbs.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> $ret,)*
        }

        impl Functions {
            /// Loads the library; none where the machine has none.
            pub(super) fn load() -> Option<Self> {
                // SAFETY: a C string; the library's constructors are those of any program that uses verbs.
                let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                let symbol = |name: &CStr| {
                    // SAFETY: a library that stays loaded, and a C string.
                    let address = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
                    (!address.is_null()).then_some(address)
                };
                // SAFETY: libibverbs defines the functions with these parameters.
                Some(unsafe { Self { $($name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(symbol($symbol)?),)* } })
            }
        }
    };
}

functions! {
    get_device_list: c"ibv_get_device_list" (count: *mut c_int) -> *mut *mut c_void;
    free_device_list: c"ibv_free_device_list" (list: *mut *mut c_void) -> ();
    get_device_name: c"ibv_get_device_name" (device: *mut c_void) -> *const c_char;
    open_device: c"ibv_open_device" (device: *mut c_void) -> *mut Context;
    query_port: c"ibv_query_port" (context: *mut Context, port: u8, attributes: *mut PortAttributes) -> c_int;
    query_gid: c"ibv_query_gid" (context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    alloc_pd: c"ibv_alloc_pd" (context: *mut Context) -> *mut c_void;
    create_cq: c"ibv_create_cq" (context: *mut Context, entries: c_int, cq_context: *mut c_void, channel: *mut c_void, vector: c_int) -> *mut CompletionQueue;
    create_qp: c"ibv_create_qp" (domain: *mut c_void, init: *mut QueuePairInit) -> *mut QueuePair;
    modify_qp: c"ibv_modify_qp" (pair: *mut QueuePair, attributes: *mut QueuePairAttributes, mask: c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp" (pair: *mut QueuePair) -> c_int;
    reg_mr: c"ibv_reg_mr" (domain: *mut c_void, address: *mut c_void, len: usize, access: c_int) -> *mut MemoryRegion;
    dereg_mr: c"ibv_dereg_mr" (region: *mut MemoryRegion) -> c_int;
    get_async_event: c"ibv_get_async_event" (context: *mut Context, event: *mut Event) -> c_int;
    ack_async_event: c"ibv_ack_async_event" (event: *mut Event) -> ();
}

/// `ibv_poll_cq`: completions taken, or a negative number.
pub(super) fn poll(queue: *mut CompletionQueue, into: &mut [WorkCompletion]) -> c_int {
    // SAFETY: the queue was made by the library and not yet destroyed; at most `into.len()` are written.
    unsafe { ((*(*queue).context).operations.poll_cq)(queue, into.len() as c_int, into.as_mut_ptr()) }
}

/// `ibv_post_send`: 0, or an errno.
pub(super) fn post(pair: *mut QueuePair, request: &mut WorkRequest) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue pair was made by the library and not yet destroyed; the request and its pieces are read in the call.
    unsafe { ((*(*pair).context).operations.post_send)(pair, request, &mut bad) }
}
