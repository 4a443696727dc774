//! The RDMA device: memory regions, reliable connections, and their completions, through libibverbs.
#![allow(unsafe_code)]

mod events;
mod sys;

pub(crate) use events::Events;

use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use sys::{Capacities, Functions, Gid, Piece, PortAttributes, QueuePairAttributes, QueuePairInit, WorkRequest};

/// Port of the device.
const PORT: u8 = 1;
/// Work requests that a connection has posted at most, and has room for.
pub(crate) const DEPTH: u32 = 64;
/// Room of the completion queue that all connections share.
const COMPLETIONS: i32 = 8192;
/// READs outstanding at a time, each way (IBA: "initiator depth").
const READS: u8 = 16;

/// An RDMA device that is open, with its protection domain and one completion queue.
pub(crate) struct Device {
    library: Arc<Library>,
    /// Never closed.
    context: NonNull<sys::Context>,
    queue: NonNull<sys::CompletionQueue>,
    name: String,
    gid: Gid,
    gid_index: u8,
    mtu: u8,
    max_message: u32,
}

/// libibverbs and the protection domain, which every object needs until its end.
struct Library {
    functions: Functions,
    domain: NonNull<libc::c_void>,
}

// SAFETY: libibverbs may be called by any thread (ibv_* are thread-safe); the pointers are its own.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// Reason why there is no device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoDevice {
    /// The machine has no libibverbs.
    NoLibrary,
    /// No device is there, or none with an address.
    None,
    /// The device refuses what is needed.
    Refused,
}

impl std::fmt::Display for NoDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoLibrary => "no libibverbs.so.1 (Debian: libibverbs1)",
            Self::None => "no RDMA device with an address (`rdmesh run` gives one)",
            Self::Refused => "the RDMA device refuses a protection domain or a completion queue",
        })
    }
}

/// What a peer needs in order to connect to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub(crate) gid: [u8; 16],
    pub(crate) number: u32,
    pub(crate) psn: u32,
    /// As `enum ibv_mtu`.
    pub(crate) mtu: u8,
}

/// One completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) is_good: bool,
}

impl Device {
    /// Opens the first device with an address, or the one of this name.
    pub(crate) fn open(wanted: Option<&str>) -> Result<Self, NoDevice> {
        let functions = Functions::load().ok_or(NoDevice::NoLibrary)?;
        let mut count = 0;
        // SAFETY: the list has `count` devices, and is freed after their last use; opened ones stay valid.
        unsafe {
            let list = (functions.get_device_list)(&mut count);
            if list.is_null() {
                return Err(NoDevice::None);
            }
            let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
            let found = devices.iter().find_map(|&device| {
                let name = CStr::from_ptr((functions.get_device_name)(device)).to_str().ok()?.to_owned();
                if wanted.is_some_and(|wanted| wanted != name) {
                    return None;
                }
                let context = NonNull::new((functions.open_device)(device))?;
                let mut port = PortAttributes::default();
                if (functions.query_port)(context.as_ptr(), PORT, &mut port) != 0 {
                    return None;
                }
                let (gid_index, gid) = address(&functions, context, &port)?;
                Some((context, name, port, gid_index, gid))
            });
            (functions.free_device_list)(list);
            let (context, name, port, gid_index, gid) = found.ok_or(NoDevice::None)?;
            let domain = NonNull::new((functions.alloc_pd)(context.as_ptr())).ok_or(NoDevice::Refused)?;
            let queue = (functions.create_cq)(context.as_ptr(), COMPLETIONS, null_mut(), null_mut(), 0);
            let queue = NonNull::new(queue).ok_or(NoDevice::Refused)?;
            Ok(Self {
                library: Arc::new(Library { functions, domain }),
                context,
                queue,
                name,
                gid,
                gid_index,
                mtu: port.active_mtu as u8,
                max_message: port.max_message.max(1 << 20),
            })
        }
    }

    /// What the device tells besides completions.
    pub(crate) fn events(&self) -> Events {
        Events::new(Arc::clone(&self.library), self.context)
    }

    /// Its name, as `ibv_devices` shows it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Most bytes of one READ.
    pub(crate) fn max_message(&self) -> u32 {
        self.max_message
    }

    /// Registers memory for READs by peers, and for our own where it can be written.
    pub(crate) fn register(&self, address: usize, len: usize) -> Result<Region, Errno> {
        let both = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ;
        self.register_for(address, len, both).or_else(|_| self.register_for(address, len, ACCESS_REMOTE_READ))
    }

    /// Registers memory that peers may also write.
    pub(crate) fn register_shared(&self, address: usize, len: usize) -> Result<Region, Errno> {
        self.register_for(address, len, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE)
    }

    fn register_for(&self, address: usize, len: usize, access: i32) -> Result<Region, Errno> {
        let at = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: a protection domain of ours; memory that is not there or may not be written is refused.
        let region = unsafe { (self.library.functions.reg_mr)(self.library.domain.as_ptr(), at, len, access) };
        let region = NonNull::new(region).ok_or_else(last_error)?;
        Ok(Region { library: Arc::clone(&self.library), region, is_writable: access & ACCESS_LOCAL_WRITE != 0 })
    }

    /// A new connection, not yet to anywhere, and what its peer needs to know.
    pub(crate) fn connection(&self) -> Result<(Connection, Port), Errno> {
        let mut init = QueuePairInit {
            context: null_mut(),
            send_queue: self.queue.as_ptr(),
            receive_queue: self.queue.as_ptr(),
            shared_queue: null_mut(),
            capacities: Capacities {
                max_send_requests: DEPTH,
                max_receive_requests: 1,
                max_send_pieces: 1,
                max_receive_pieces: 1,
                max_inline: size_of::<u64>() as u32,
            },
            kind: TYPE_RC,
            all_signalled: 1,
        };
        // SAFETY: the domain and the queue are ours, and outlive the queue pair.
        let pair = unsafe { (self.library.functions.create_qp)(self.library.domain.as_ptr(), &mut init) };
        let pair = NonNull::new(pair).ok_or_else(last_error)?;
        let connection = Connection { library: Arc::clone(&self.library), pair, gid_index: self.gid_index };
        connection.change(
            QueuePairAttributes {
                state: STATE_INIT,
                port: PORT,
                access: ACCESS_REMOTE_READ as u32 | ACCESS_REMOTE_WRITE as u32,
                ..Default::default()
            },
            MASK_STATE | MASK_PKEY_INDEX | MASK_PORT | MASK_ACCESS,
        )?;
        // SAFETY: the queue pair is alive.
        let number = unsafe { pair.as_ref().number };
        // A number that differs from one connection to the next, so that no late packet of another is taken for one of this.
        let psn = number.wrapping_mul(0x9E37_79B9) >> 8;
        Ok((connection, Port { gid: self.gid.0, number, psn, mtu: self.mtu }))
    }

    /// Calls `each` with the completions that are there.
    pub(crate) fn poll(&mut self, mut each: impl FnMut(Completion)) {
        let mut completions = [sys::WorkCompletion::EMPTY; 16];
        loop {
            let count = usize::try_from(sys::poll(self.queue.as_ptr(), &mut completions)).unwrap_or(0);
            for completion in &completions[..count] {
                each(Completion { id: completion.id, is_good: completion.status == 0 });
            }
            if count < completions.len() {
                return;
            }
        }
    }
}

/// The last GID of the port, which is one of RoCE version 2 with the endpoint's own address where there is any.
fn address(functions: &Functions, context: NonNull<sys::Context>, port: &PortAttributes) -> Option<(u8, Gid)> {
    let gid = |index: i32| {
        let mut gid = Gid::default();
        // SAFETY: the context is open; the GID is ours.
        let failed = unsafe { (functions.query_gid)(context.as_ptr(), PORT, index, &mut gid) };
        (failed == 0 && gid != Gid::default()).then_some(gid)
    };
    let found: Vec<_> = (0..port.gid_count.min(256)).filter_map(|index| Some((index as u8, gid(index)?))).collect();
    let is_mapped = |gid: &Gid| gid.0.starts_with(&V4_MAPPED);
    found.iter().rfind(|(_, gid)| is_mapped(gid)).or(found.last()).copied()
}

const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Registered memory; deregistered when it is dropped.
pub(crate) struct Region {
    library: Arc<Library>,
    region: NonNull<sys::MemoryRegion>,
    is_writable: bool,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for Region {}
// SAFETY: a region is only read until it is dropped.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { self.region.as_ref().lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref().rkey }
    }

    /// Whether READs may put data into it.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is not used afterwards.
        unsafe { (self.library.functions.dereg_mr)(self.region.as_ptr()) };
    }
}

/// A reliable connection; destroyed when it is dropped.
pub(crate) struct Connection {
    library: Arc<Library>,
    pair: NonNull<sys::QueuePair>,
    gid_index: u8,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for Connection {}

/// Memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// Memory of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

impl Connection {
    /// Connects both directions to the peer's queue pair.
    pub(crate) fn connect(&self, own: &Port, peer: &Port) -> Result<(), Errno> {
        let ready_to_receive = QueuePairAttributes {
            state: STATE_RTR,
            path_mtu: own.mtu.min(peer.mtu).into(),
            remote_number: peer.number,
            receive_psn: peer.psn,
            max_incoming_reads: READS,
            rnr_timer: 12,
            address: sys::Address {
                gid: Gid(peer.gid),
                gid_index: self.gid_index,
                hop_limit: 64,
                is_global: 1,
                port: PORT,
                ..Default::default()
            },
            ..Default::default()
        };
        let mask = MASK_STATE
            | MASK_ADDRESS
            | MASK_PATH_MTU
            | MASK_REMOTE_NUMBER
            | MASK_RECEIVE_PSN
            | MASK_MAX_INCOMING
            | MASK_RNR_TIMER;
        self.change(ready_to_receive, mask)?;
        let ready_to_send = QueuePairAttributes {
            state: STATE_RTS,
            send_psn: own.psn,
            // 4.096 microseconds times 2 to the 18th: one second, seven times.
            timeout: 18,
            retries: 7,
            rnr_retries: 7,
            max_reads: READS,
            ..Default::default()
        };
        self.change(
            ready_to_send,
            MASK_STATE | MASK_SEND_PSN | MASK_TIMEOUT | MASK_RETRIES | MASK_RNR_RETRIES | MASK_MAX_READS,
        )
    }

    /// Posts a READ of the peer's memory.
    pub(crate) fn read(&self, into: Local, from: Remote, id: u64) -> Result<(), Errno> {
        let mut piece = Piece { address: into.address, len: into.len, lkey: into.lkey };
        self.post(&mut piece, from, OPCODE_READ, 0, id)
    }

    /// Posts a WRITE of one word to the peer's memory, after the READs before it.
    pub(crate) fn write_word(&self, word: u64, to: Remote, id: u64) -> Result<(), Errno> {
        let mut piece =
            Piece { address: (&raw const word).expose_provenance() as u64, len: size_of::<u64>() as u32, lkey: 0 };
        self.post(&mut piece, to, OPCODE_WRITE, FLAG_INLINE | FLAG_FENCE, id)
    }

    fn post(&self, piece: &mut Piece, remote: Remote, opcode: i32, flags: u32, id: u64) -> Result<(), Errno> {
        let mut request = WorkRequest {
            id,
            next: null_mut(),
            pieces: piece,
            piece_count: 1,
            opcode,
            flags: flags | FLAG_SIGNALED,
            immediate: 0,
            remote_address: remote.address,
            rkey: remote.rkey,
            rest: [0; 9],
        };
        match sys::post(self.pair.as_ptr(), &mut request) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error.abs())),
        }
    }

    fn change(&self, mut attributes: QueuePairAttributes, mask: i32) -> Result<(), Errno> {
        // SAFETY: the queue pair is alive; the attributes are read in the call.
        let failed = unsafe { (self.library.functions.modify_qp)(self.pair.as_ptr(), &mut attributes, mask) };
        if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed.abs())) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is not used afterwards.
        unsafe { (self.library.functions.destroy_qp)(self.pair.as_ptr()) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

// `enum ibv_access_flags`.
const ACCESS_LOCAL_WRITE: i32 = 1;
const ACCESS_REMOTE_WRITE: i32 = 1 << 1;
const ACCESS_REMOTE_READ: i32 = 1 << 2;
// `enum ibv_qp_type`, `ibv_qp_state`.
const TYPE_RC: i32 = 2;
const STATE_INIT: i32 = 1;
const STATE_RTR: i32 = 2;
const STATE_RTS: i32 = 3;
// `enum ibv_qp_attr_mask`.
const MASK_STATE: i32 = 1;
const MASK_ACCESS: i32 = 1 << 3;
const MASK_PKEY_INDEX: i32 = 1 << 4;
const MASK_PORT: i32 = 1 << 5;
const MASK_ADDRESS: i32 = 1 << 7;
const MASK_PATH_MTU: i32 = 1 << 8;
const MASK_TIMEOUT: i32 = 1 << 9;
const MASK_RETRIES: i32 = 1 << 10;
const MASK_RNR_RETRIES: i32 = 1 << 11;
const MASK_RECEIVE_PSN: i32 = 1 << 12;
const MASK_MAX_READS: i32 = 1 << 13;
const MASK_RNR_TIMER: i32 = 1 << 15;
const MASK_SEND_PSN: i32 = 1 << 16;
const MASK_MAX_INCOMING: i32 = 1 << 17;
const MASK_REMOTE_NUMBER: i32 = 1 << 20;
// `enum ibv_wr_opcode`, `ibv_send_flags`.
const OPCODE_WRITE: i32 = 0;
const OPCODE_READ: i32 = 4;
const FLAG_FENCE: u32 = 1;
const FLAG_SIGNALED: u32 = 1 << 1;
const FLAG_INLINE: u32 = 1 << 3;
