//! Table of the file descriptors that belong to the device.
//!
//! A plain two-level table, read without a lock by every `write`, `close` and so on of the program: a foreign
//! descriptor costs two loads. The library's own descriptors stand in it too, so that a program that closes everything
//! it did not open does not close them.
#![allow(unsafe_code)]

use crate::netlink::NetlinkSocket;
use crate::session::{CmChannel, Context};
use arrayvec::ArrayVec;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;
/// The library's own descriptors go above this, away from the numbers that programs name themselves.
const OWN_FROM: RawFd = 512;
/// Devices kept alive for a moment after they were closed, for a thread that is just using one.
const RETIRED: usize = 8;

type Chunk = [AtomicPtr<()>; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static RETIRING: Mutex<ArrayVec<Kind, RETIRED>> = Mutex::new(ArrayVec::new_const());
/// Process id of the table's owner; a vfork child, which shares this memory, has another.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Entry of a descriptor of this library, not a device.
const OWN: *mut () = std::ptr::without_provenance_mut(1);
/// Set in an entry that points to a [`CmChannel`], not a [`Context`].
const CM: usize = 2;
/// Set in one that points to a [`NetlinkSocket`].
const NETLINK: usize = 4;

const _: () = assert!(align_of::<Context>() > CM | NETLINK && align_of::<CmChannel>() > CM | NETLINK);
const _: () = assert!(align_of::<NetlinkSocket>() > CM | NETLINK);

/// Kind of a descriptor, with its object.
pub(crate) enum Kind {
    /// Nothing to do with us.
    Foreign,
    /// A device context.
    Device(Arc<Context>),
    /// A channel of the connection manager.
    Cm(Arc<CmChannel>),
    /// A socket of NETLINK_RDMA.
    Netlink(Arc<NetlinkSocket>),
    /// Used by this library.
    Own,
}

/// Kind of a descriptor, without a reference to its object.
pub(crate) enum Glance<'a> {
    /// Not a device's descriptor.
    Other,
    /// A device context, which lives until the program closes it.
    Device(&'a Context),
    /// A channel of the connection manager.
    Cm,
    /// A socket of NETLINK_RDMA.
    Netlink,
}

/// The kind of `fd`, without taking a reference.
#[inline]
pub(crate) fn glance<'a>(fd: RawFd) -> Glance<'a> {
    match load(fd) {
        entry if entry.is_null() || entry == OWN => Glance::Other,
        entry if entry.addr() & CM != 0 => Glance::Cm,
        entry if entry.addr() & NETLINK != 0 => Glance::Netlink,
        // SAFETY: the table holds a count of the Arc. A program that closes the descriptor while another of its threads
        // uses it still finds the context alive for `RETIRED` more closes.
        entry => Glance::Device(unsafe { &*entry.cast() }),
    }
}

/// The context behind `fd`, as [`glance`] finds it.
#[inline]
pub(crate) fn peek<'a>(fd: RawFd) -> Option<&'a Context> {
    match glance(fd) {
        Glance::Device(context) => Some(context),
        Glance::Other | Glance::Cm | Glance::Netlink => None,
    }
}

/// The kind of `fd`, with a reference to its object.
#[inline]
pub(crate) fn kind(fd: RawFd) -> Kind {
    let kind = ManuallyDrop::new(from_entry(load(fd)));
    // The table keeps its own count; see `glance` for a concurrent close.
    match &*kind {
        Kind::Foreign => Kind::Foreign,
        Kind::Device(context) => Kind::Device(context.clone()),
        Kind::Cm(channel) => Kind::Cm(channel.clone()),
        Kind::Netlink(socket) => Kind::Netlink(socket.clone()),
        Kind::Own => Kind::Own,
    }
}

/// Sets the kind of `fd`.
pub(crate) fn set(fd: RawFd, kind: Kind) {
    if is_owner() {
        match &kind {
            Kind::Device(context) => context.gained_descriptor(),
            Kind::Cm(channel) => channel.gained_descriptor(),
            Kind::Netlink(socket) => socket.gained_descriptor(),
            Kind::Foreign | Kind::Own => {}
        }
        replace(fd, kind);
    }
}

/// Calls `visit` for every descriptor that is ours.
pub(crate) fn for_each(mut visit: impl FnMut(RawFd)) {
    for (high, chunk) in TABLE.iter().enumerate() {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            continue;
        }
        // SAFETY: chunks are never freed.
        for (low, entry) in unsafe { &*chunk }.iter().enumerate() {
            if !entry.load(Ordering::Relaxed).is_null() {
                visit((high * CHUNK + low) as RawFd);
            }
        }
    }
}

/// Makes this process the table's owner: at the start, and in the child of a fork.
pub(crate) fn claim() {
    OWNER.store(process_id(), Ordering::Relaxed);
}

/// Whether this process may change the table. A vfork child may not: its descriptors are not its parent's, but its
/// memory is.
pub(crate) fn is_owner() -> bool {
    match OWNER.load(Ordering::Relaxed) {
        // Called before the constructor.
        0 => {
            claim();
            true
        }
        owner => owner == process_id(),
    }
}

fn process_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

#[inline]
fn load(fd: RawFd) -> *mut () {
    entry(fd).map_or(null_mut(), |entry| entry.load(Ordering::Acquire))
}

#[inline]
fn entry(fd: RawFd) -> Option<&'static AtomicPtr<()>> {
    let fd = fd as usize;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: chunks are never freed.
    Some(unsafe { &(&*chunk)[fd % CHUNK] })
}

/// The entry of a device holds a count of its Arc.
fn into_entry(kind: Kind) -> *mut () {
    match kind {
        Kind::Foreign => null_mut(),
        Kind::Device(context) => Arc::into_raw(context).cast_mut().cast(),
        Kind::Cm(channel) => Arc::into_raw(channel).cast_mut().cast::<()>().map_addr(|address| address | CM),
        Kind::Netlink(socket) => Arc::into_raw(socket).cast_mut().cast::<()>().map_addr(|address| address | NETLINK),
        Kind::Own => OWN,
    }
}

/// The object of an entry; the entry owns its reference until it is taken out of the table.
#[inline]
fn from_entry(entry: *mut ()) -> Kind {
    match entry {
        entry if entry.is_null() => Kind::Foreign,
        OWN => Kind::Own,
        // SAFETY: the mark says what the pointer came from.
        entry if entry.addr() & CM != 0 => Kind::Cm(unsafe { Arc::from_raw(entry.map_addr(|a| a & !CM).cast()) }),
        entry if entry.addr() & NETLINK != 0 => {
            // SAFETY: so does this one.
            Kind::Netlink(unsafe { Arc::from_raw(entry.map_addr(|a| a & !NETLINK).cast()) })
        }
        // SAFETY: there is nothing else.
        entry => Kind::Device(unsafe { Arc::from_raw(entry.cast()) }),
    }
}

fn replace(fd: RawFd, new: Kind) {
    if entry(fd).is_none() {
        if let Kind::Foreign = new {
            return;
        }
        add_chunk(fd);
    }
    let Some(entry) = entry(fd) else { return };
    let old = from_entry(entry.swap(into_entry(new), Ordering::AcqRel));
    match &old {
        Kind::Device(context) => context.lost_descriptor(),
        Kind::Cm(channel) => channel.lost_descriptor(),
        Kind::Netlink(socket) => socket.lost_descriptor(),
        Kind::Foreign | Kind::Own => return,
    }
    retire(old);
}

#[cold]
fn add_chunk(fd: RawFd) {
    let Some(slot) = TABLE.get(fd as usize / CHUNK) else { return };
    let chunk: Box<Chunk> = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]);
    let chunk = Box::into_raw(chunk);
    if slot.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was faster; this one was never shared.
        drop(unsafe { Box::from_raw(chunk) });
    }
}

fn retire(device: Kind) {
    let mut retired = RETIRING.lock().unwrap_or_else(PoisonError::into_inner);
    let oldest = if retired.is_full() { retired.pop_at(0) } else { None };
    retired.push(device);
    drop(retired);
    drop(oldest);
}

/// A descriptor of this library: out of the way, close-on-exec, and safe from the program's `close`.
pub(crate) struct OwnFd(OwnedFd);

impl OwnFd {
    /// Takes `fd` over.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, OWN_FROM).unwrap_or(fd);
        replace(fd.as_raw_fd(), Kind::Own);
        Self(fd)
    }

    /// Lets go of a number that the program has closed: what has it now is the program's.
    pub(crate) fn abandon(self) {
        let number = self.0.as_raw_fd();
        std::mem::forget(self);
        replace(number, Kind::Foreign);
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        replace(self.0.as_raw_fd(), Kind::Foreign);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_are_out_of_the_way() {
        let fd = OwnFd::new(rustix::pipe::pipe().unwrap().0);
        let number = fd.as_fd().as_raw_fd();
        assert!(number >= OWN_FROM);
        assert!(matches!(kind(number), Kind::Own));
        assert!(peek(number).is_none());
    }

    #[test]
    fn entries_are_known_until_they_are_replaced() {
        // No descriptor has this number.
        let number = 700_000;
        assert!(matches!(kind(number), Kind::Foreign));
        replace(number, Kind::Own);
        assert!(matches!(kind(number), Kind::Own));
        let mut seen = Vec::new();
        for_each(|fd| seen.push(fd));
        assert!(seen.contains(&number));
        set(number, Kind::Foreign);
        assert!(matches!(kind(number), Kind::Foreign));
    }

    #[test]
    fn numbers_out_of_range_are_foreign() {
        for fd in [-1, i32::MIN, i32::MAX] {
            assert!(matches!(kind(fd), Kind::Foreign));
        }
    }
}
