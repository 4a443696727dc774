//! Table of the devices' descriptors that the program holds, whatever each device is.
#![allow(unsafe_code)]

use crate::polled::Polled;
use rdmesh_preload::Table;
use rustix::fd::RawFd;
use std::any::{Any, TypeId};
use std::ptr::NonNull;
use std::sync::Arc;

/// An object behind descriptors of the program.
pub(crate) trait Device: Any + Send + Sync {
    /// The program has one more descriptor of it.
    fn gained_descriptor(&self);

    /// The program has one less.
    fn lost_descriptor(&self);

    /// Shared pages that threads which poll its completion queues look at; none for a device without such queues.
    fn polled(&self) -> Option<&Polled> {
        None
    }
}

/// From now on `fd` is a descriptor of `device`.
pub(crate) fn set(fd: RawFd, device: Arc<dyn Device>) {
    TABLE.set(fd, Entry(Arc::new(Held { kind: (*device).type_id(), device })));
}

/// Forgets what `fd` was: it has been closed, or is about to be.
pub(crate) fn forget(fd: RawFd) {
    TABLE.forget(fd);
}

/// Forgets all of `first..=last`.
pub(crate) fn forget_between(first: RawFd, last: RawFd) {
    TABLE.forget_between(first, last);
}

/// After `new` became a duplicate of `old`: it is now what `old` is.
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    TABLE.duplicated(old, new);
}

/// Calls `visit` for every descriptor of a `T`, in ascending order.
pub(crate) fn for_each<T: Device>(mut visit: impl FnMut(Arc<T>)) {
    TABLE.for_each(|fd| get(fd).map_or((), &mut visit));
}

/// The device behind `fd`, without taking a reference: it lives until the program closes it.
#[inline]
pub(crate) fn peek<'a>(fd: RawFd) -> Option<&'a Held> {
    // SAFETY: the table holds such a reference; see `Table::glance` for a concurrent close.
    TABLE.glance(fd).map(|raw| unsafe { raw.cast::<Held>().as_ref() })
}

/// The same where it is a `T`.
#[inline]
pub(crate) fn peek_as<'a, T: Device>(fd: RawFd) -> Option<&'a T> {
    peek(fd).and_then(Held::as_kind)
}

/// The `T` behind `fd`, with a reference.
#[inline]
pub(crate) fn get<T: Device>(fd: RawFd) -> Option<Arc<T>> {
    let device: Arc<dyn Any + Send + Sync> = TABLE.get(fd)?.0.device.clone();
    device.downcast().ok()
}

/// A device in the table.
pub(crate) struct Held {
    /// Its type, where that is found without a call.
    kind: TypeId,
    device: Arc<dyn Device>,
}

impl Held {
    /// The device, where it is a `T`.
    #[inline]
    pub(crate) fn as_kind<T: Device>(&self) -> Option<&T> {
        let device = Arc::as_ptr(&self.device).cast::<T>();
        // SAFETY: it is a `T`, which this holds a reference to.
        (self.kind == TypeId::of::<T>()).then(|| unsafe { &*device })
    }

    /// See [`Device::polled`].
    #[inline]
    pub(crate) fn polled(&self) -> Option<&Polled> {
        self.device.polled()
    }
}

/// The table of this library.
static TABLE: Table<Entry> = Table::new();

/// Entry of the table.
#[derive(Clone)]
struct Entry(Arc<Held>);

// SAFETY: the pointer is the `Arc`'s.
unsafe impl rdmesh_preload::Kind for Entry {
    fn into_raw(self) -> NonNull<()> {
        // SAFETY: no reference is null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self.0).cast_mut().cast()) }
    }

    #[inline]
    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the contract, it comes from `into_raw`.
        Self(unsafe { Arc::from_raw(raw.cast::<Held>().as_ptr()) })
    }

    fn gained_descriptor(&self) {
        self.0.device.gained_descriptor();
    }

    fn lost_descriptor(&self) {
        self.0.device.lost_descriptor();
    }
}
