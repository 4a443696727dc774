//! Table of the devices' descriptors that the program holds, whatever each device is.
#![allow(unsafe_code)]

use crate::polled::Polled;
use rdmesh_preload::Table;
use rustix::fd::RawFd;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// An object behind descriptors of the program.
pub(crate) trait Device: Any + Send + Sync {
    /// The program has one more descriptor of it.
    fn gained_descriptor(&self);

    /// The program has one less.
    fn lost_descriptor(&self);

    /// What threads that poll its completion queues look at; none for a device without such queues.
    fn polled(&self) -> Option<&Polled> {
        None
    }
}

/// From now on `fd` is a descriptor of `device`.
pub(crate) fn set(fd: RawFd, device: Arc<dyn Device>) {
    TABLE.set(fd, Entry(Arc::new(device)));
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
pub(crate) fn peek<'a>(fd: RawFd) -> Option<&'a dyn Device> {
    // SAFETY: the table holds such a reference; see `Table::glance` for a concurrent close.
    TABLE.glance(fd).map(|raw| unsafe { &**raw.cast::<Arc<dyn Device>>().as_ref() })
}

/// The same where it is a `T`.
#[inline]
pub(crate) fn peek_as<'a, T: Device>(fd: RawFd) -> Option<&'a T> {
    peek(fd).and_then(downcast)
}

/// `device`, where it is a `T`.
#[inline]
pub(crate) fn downcast<T: Device>(device: &dyn Device) -> Option<&T> {
    (device as &dyn Any).downcast_ref()
}

/// The `T` behind `fd`, with a reference.
#[inline]
pub(crate) fn get<T: Device>(fd: RawFd) -> Option<Arc<T>> {
    let device: Arc<dyn Device> = Arc::clone(&*TABLE.get(fd)?.0);
    let device: Arc<dyn Any + Send + Sync> = device;
    device.downcast().ok()
}

/// The table of this library.
static TABLE: Table<Entry> = Table::new();

/// What the table holds of a descriptor: as a pointer, that to the inner reference.
#[derive(Clone)]
struct Entry(Arc<Arc<dyn Device>>);

// SAFETY: the pointer is the outer `Arc`'s.
unsafe impl rdmesh_preload::Kind for Entry {
    fn into_raw(self) -> NonNull<()> {
        // SAFETY: no reference is null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self.0).cast_mut().cast()) }
    }

    #[inline]
    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the contract, it comes from `into_raw`.
        Self(unsafe { Arc::from_raw(raw.cast::<Arc<dyn Device>>().as_ptr()) })
    }

    fn gained_descriptor(&self) {
        self.0.gained_descriptor();
    }

    fn lost_descriptor(&self) {
        self.0.lost_descriptor();
    }
}
