//! Objects that this library makes for a program, by the program's own libibverbs; destroyed on drop.

use super::{Cq, Extension, Mr, Pd, Qp, VerbsContext, function};
use crate::errno;
use libc::{c_int, c_void};
use rdmesh_verbs::Access;
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};

type Result<T> = std::result::Result<T, Errno>;

/// A completion queue that is not polled: it goes on counting when it is full.
pub(crate) struct CountingCq(NonNull<Cq>);

/// A queue pair of a reliable connection.
pub(crate) struct QueuePair(NonNull<Qp>);

/// A memory region whose first address, to its users, is 0.
pub(crate) struct ZeroBased(NonNull<Mr>);

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Requests of the send queue, and elements of each.
    pub(crate) send: (u32, u32),
    /// Requests of the receive queue, and elements of each.
    pub(crate) receive: (u32, u32),
}

impl CountingCq {
    /// Makes one.
    pub(crate) fn create(pd: &Pd) -> Result<Self> {
        let context = pd.context;
        // SAFETY: a protection domain of libibverbs' names its context; all ones mark one with an extension before it.
        let is_extended = unsafe { (*context).abi_compat as usize == usize::MAX };
        if !is_extended {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: such a context has at least its size before it, which says whether the rest is there.
        let create = unsafe {
            let extension = context.cast::<Extension>().sub(1);
            let is_whole = (&raw const (*extension).size).read() >= size_of::<Extension>() + size_of::<VerbsContext>();
            is_whole.then(|| (*extension).create_cq_ex.load(std::sync::atomic::Ordering::Acquire))
        };
        let create = create.filter(|create| !create.is_null()).ok_or(Errno::OPNOTSUPP)?;
        let mut attributes = CqAttributes {
            cqe: ENTRIES,
            cq_context: null_mut(),
            channel: null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: HAS_FLAGS,
            flags: IGNORE_OVERRUN,
            parent_domain: null_mut(),
        };
        // SAFETY: the provider's function of this name has this signature.
        let create = unsafe { transmute::<*mut c_void, CreateCqEx>(create) };
        made(create(context, &mut attributes)).map(Self)
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: it lives until `self` is dropped.
        unsafe { self.0.as_ref() }.handle
    }
}

impl Drop for CountingCq {
    fn drop(&mut self) {
        destroy(c"ibv_destroy_cq", self.0.as_ptr().cast());
    }
}

impl QueuePair {
    /// Makes one, in the state RESET.
    pub(crate) fn create(pd: &Pd, send_cq: &CountingCq, recv_cq: &CountingCq, sizes: Sizes) -> Result<Self> {
        let create: extern "C" fn(*const Pd, *mut QpAttributes) -> *mut Qp = lookup(c"ibv_create_qp")?;
        let Sizes { send, receive } = sizes;
        let mut attributes = QpAttributes {
            qp_context: null_mut(),
            send_cq: send_cq.0.as_ptr(),
            recv_cq: recv_cq.0.as_ptr(),
            srq: null_mut(),
            cap: [send.0, receive.0, send.1, receive.1, 0],
            qp_type: RC,
            sq_sig_all: 0,
        };
        made(create(pd, &mut attributes)).map(Self)
    }

    /// The program's view of it.
    pub(crate) fn as_ptr(&self) -> *mut Qp {
        self.0.as_ptr()
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: it lives until `self` is dropped.
        unsafe { self.0.as_ref() }.handle
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: it lives until `self` is dropped.
        unsafe { self.0.as_ref() }.qp_num
    }

    /// Connects it to itself, and brings it to RTS.
    pub(crate) fn loop_back(&self) -> Result<()> {
        let query: extern "C" fn(*mut VerbsContext, u8, c_int, *mut [u64; 2]) -> c_int = lookup(c"ibv_query_gid")?;
        let modify: extern "C" fn(*mut Qp, *mut QpState, c_int) -> c_int = lookup(c"ibv_modify_qp")?;
        // SAFETY: it lives until `self` is dropped.
        let context = unsafe { self.0.as_ref() }.context;
        let mut dgid = [0; 2];
        if query(context, PORT, IPV4_GID, &mut dgid) != 0 {
            return Err(errno::get());
        }
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut state =
            QpState { access: all.bits(), path_mtu: MTU_1024, dest_qp_num: self.number(), ..QpState::default() };
        (state.ah.dgid, state.ah.sgid_index, state.ah.is_global, state.ah.port) = (dgid, IPV4_GID as u8, 1, PORT);
        (state.max_rd_atomic, state.max_dest_rd_atomic) = (LOOPED_READS, LOOPED_READS);
        (state.port, state.timeout, state.retry_cnt, state.rnr_retry, state.min_rnr_timer) = (PORT, 14, 7, 7, 1);
        for (number, mask) in [(INIT, TO_INIT), (RTR, TO_RTR), (RTS, TO_RTS)] {
            state.state = number;
            match modify(self.as_ptr(), &mut state, mask) {
                0 => {}
                failed => return Err(Errno::from_raw_os_error(failed)),
            }
        }
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        destroy(c"ibv_destroy_qp", self.0.as_ptr().cast());
    }
}

impl ZeroBased {
    /// Registers `length` bytes at `address`, which must stay as long as it does.
    pub(crate) fn register(pd: &Pd, address: *mut c_void, length: usize, access: Access) -> Result<Self> {
        type Register = extern "C" fn(*const Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
        let register: Register = lookup(c"ibv_reg_mr_iova")?;
        made(register(pd, address, length, 0, access.bits() as c_int)).map(Self)
    }

    /// Its key.
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: it lives until `self` is dropped.
        unsafe { self.0.as_ref() }.lkey
    }
}

impl Drop for ZeroBased {
    fn drop(&mut self) {
        destroy(c"ibv_dereg_mr", self.0.as_ptr().cast());
    }
}

fn lookup<F: Copy>(name: &CStr) -> Result<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = function(name);
    if found.is_null() {
        return Err(Errno::NOSYS);
    }
    // SAFETY: a function pointer; the caller names the signature that libibverbs' function of that name has.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn made<T>(pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(errno::get)
}

/// An object that cannot be destroyed now goes with its context.
fn destroy(name: &CStr, object: *mut c_void) {
    if let Ok(destroy) = lookup::<extern "C" fn(*mut c_void) -> c_int>(name) {
        destroy(object);
    }
}

type CreateCqEx = extern "C" fn(*mut VerbsContext, *mut CqAttributes) -> *mut Cq;

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
struct CqAttributes {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut c_void,
    comp_vector: u32,
    wc_flags: u64,
    comp_mask: u32,
    flags: u32,
    parent_domain: *mut c_void,
}

/// `struct ibv_qp_init_attr`. `cap`: requests and elements, of sends and receives in turn, and inline bytes.
#[repr(C)]
struct QpAttributes {
    qp_context: *mut c_void,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    cap: [u32; 5],
    qp_type: c_int,
    sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Default)]
struct AddressHandle {
    dgid: [u64; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
struct QpState {
    state: c_int,
    cur_state: c_int,
    path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    access: u32,
    cap: [u32; 5],
    ah: AddressHandle,
    alt_ah: AddressHandle,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

const _: () = assert!(size_of::<QpState>() == 144 && std::mem::offset_of!(QpState, pkey_index) == 120);
const _: () = assert!(size_of::<QpAttributes>() == 64 && size_of::<AddressHandle>() == 32);

/// A queue of which nothing is read needs room for hardly anything.
const ENTRIES: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
const HAS_FLAGS: u32 = 1;
const IGNORE_OVERRUN: u32 = 1 << 1;
/// `IBV_QPT_RC`.
const RC: c_int = 2;
/// `enum ibv_qp_state`.
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
/// Sums of `enum ibv_qp_attr_mask`.
const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
const MTU_1024: c_int = 3;
const PORT: u8 = 1;
/// The GID that is the endpoint's IPv4 address.
const IPV4_GID: c_int = 1;
/// READs and atomics that a looped-back queue pair has outstanding.
const LOOPED_READS: u8 = 16;
