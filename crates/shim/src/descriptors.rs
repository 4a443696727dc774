//! The device's descriptors: contexts, channels of the connection manager, netlink sockets.
#![allow(unsafe_code)]

use crate::netlink::NetlinkSocket;
use crate::session::{CmChannel, Context};
use rdmesh_preload::Table;
use rustix::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) use rdmesh_preload::OwnFd;

/// The table of this library.
pub(crate) static TABLE: Table<Kind> = Table::new();

/// Set in a pointer to a [`CmChannel`], not a [`Context`].
const CM: usize = 2;
/// Set in one to a [`NetlinkSocket`].
const NETLINK: usize = 4;

const _: () = assert!(align_of::<Context>() > CM | NETLINK && align_of::<CmChannel>() > CM | NETLINK);
const _: () = assert!(align_of::<NetlinkSocket>() > CM | NETLINK);

/// Kind of a descriptor, with its object.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A device context.
    Device(Arc<Context>),
    /// A channel of the connection manager.
    Cm(Arc<CmChannel>),
    /// A socket of NETLINK_RDMA.
    Netlink(Arc<NetlinkSocket>),
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
    match TABLE.glance(fd) {
        None => Glance::Other,
        Some(raw) if raw.addr().get() & CM != 0 => Glance::Cm,
        Some(raw) if raw.addr().get() & NETLINK != 0 => Glance::Netlink,
        // SAFETY: there is nothing else, and the table holds a reference; see `Table::glance` for a concurrent close.
        Some(raw) => Glance::Device(unsafe { raw.cast().as_ref() }),
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
pub(crate) fn kind(fd: RawFd) -> Option<Kind> {
    TABLE.get(fd)
}

// SAFETY: each reference is that of its `Arc`, with a mark that says which.
unsafe impl rdmesh_preload::Kind for Kind {
    fn into_raw(self) -> NonNull<()> {
        let (address, mark) = match self {
            Self::Device(context) => (Arc::into_raw(context).cast::<()>(), 0),
            Self::Cm(channel) => (Arc::into_raw(channel).cast(), CM),
            Self::Netlink(socket) => (Arc::into_raw(socket).cast(), NETLINK),
        };
        // SAFETY: no reference is null.
        unsafe { NonNull::new_unchecked(address.cast_mut()) }.map_addr(|address| address | mark)
    }

    #[inline]
    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        let raw = raw.as_ptr().cast_const();
        match raw.addr() {
            // SAFETY: the mark says what the pointer came from.
            address if address & CM != 0 => Self::Cm(unsafe { Arc::from_raw(raw.map_addr(|a| a & !CM).cast()) }),
            address if address & NETLINK != 0 => {
                // SAFETY: so does this one.
                Self::Netlink(unsafe { Arc::from_raw(raw.map_addr(|a| a & !NETLINK).cast()) })
            }
            // SAFETY: there is nothing else.
            _ => Self::Device(unsafe { Arc::from_raw(raw.cast()) }),
        }
    }

    fn gained_descriptor(&self) {
        match self {
            Self::Device(context) => context.gained_descriptor(),
            Self::Cm(channel) => channel.gained_descriptor(),
            Self::Netlink(socket) => socket.gained_descriptor(),
        }
    }

    fn lost_descriptor(&self) {
        match self {
            Self::Device(context) => context.lost_descriptor(),
            Self::Cm(channel) => channel.lost_descriptor(),
            Self::Netlink(socket) => socket.lost_descriptor(),
        }
    }
}
