//! The program's descriptors of which this library knows something.
#![allow(unsafe_code)]

use crate::epoll::{Early, Epoll, Instance};
use crate::stream::{Stream, decide};
use rdmesh_preload::{Kind, Table, gate, process};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

/// Kind of a descriptor, with its state.
#[allow(clippy::large_enum_variant, reason = "streams are many, and the others are few")]
pub(crate) enum Object {
    /// A TCP connection to a program of this host.
    Stream(Stream),
    /// An epoll instance.
    Epoll(Instance),
    /// A TCP socket that may be connected, in epoll instances.
    Early(Early),
}

/// Reference to an object.
#[derive(Clone)]
pub(crate) struct Known(pub(crate) Arc<Object>);

// SAFETY: the pointer is the `Arc`'s own, and given back once.
unsafe impl Kind for Known {
    fn into_raw(self) -> NonNull<()> {
        // SAFETY: an `Arc`'s pointer is not null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self.0).cast_mut().cast()) }
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the contract.
        Self(unsafe { Arc::from_raw(raw.as_ptr().cast()) })
    }

    fn gained_descriptor(&self) {
        if let Object::Stream(stream) = &*self.0 {
            stream.gained_descriptor();
        }
    }

    fn lost_descriptor(&self) {
        if let Object::Stream(stream) = &*self.0 {
            stream.lost_descriptor();
        }
    }
}

/// The table.
pub(crate) static TABLE: Table<Known> = Table::new();

/// Object behind `fd`; none where the library knows nothing of it.
pub(crate) fn object(fd: c_int) -> Option<Arc<Object>> {
    TABLE.glance(fd)?;
    TABLE.get(fd).map(|known| known.0)
}

/// Calls `call` with what `fd` is, unless it is of no interest. A call that may wait must hold a reference of its own meanwhile:
/// the program may close the descriptor.
#[inline]
pub(crate) fn with<R>(fd: c_int, call: impl FnOnce(&Object) -> R) -> Option<R> {
    let raw = TABLE.glance(fd)?;
    // SAFETY: the table's pointer, whose object lives for some more closes after its descriptor has been closed.
    Some(call(unsafe { raw.cast::<Object>().as_ref() }))
}

/// Calls `call` with the stream behind `fd`; none where there is none, or it is plain TCP for good. As [`with`].
#[inline]
pub(crate) fn with_stream<R>(fd: c_int, call: impl FnOnce(&Stream) -> R) -> Option<R> {
    with(fd, |object| match object {
        Object::Stream(stream) if stream.is_undecided() => {
            decide(fd);
            with_decided(fd, call)
        }
        object => when_active(object, call),
    })
    .flatten()
}

fn with_decided<R>(fd: c_int, call: impl FnOnce(&Stream) -> R) -> Option<R> {
    with(fd, |object| when_active(object, call)).flatten()
}

fn when_active<R>(object: &Object, call: impl FnOnce(&Stream) -> R) -> Option<R> {
    match object {
        Object::Stream(stream) if !stream.is_plain() => Some(call(stream)),
        _ => None,
    }
}

/// Decides what `fd` is in this process, if it is a connection that a fork has left open to question.
pub(crate) fn settle(fd: c_int) {
    with_stream(fd, |_| ());
}

/// The epoll instance behind `fd`, where it has or had streams.
pub(crate) fn epoll(fd: c_int) -> Option<Arc<Epoll>> {
    with(fd, |object| match object {
        Object::Epoll(instance) => instance.get().cloned(),
        Object::Stream(_) | Object::Early(_) => None,
    })
    .flatten()
}

/// The program has made an epoll instance.
pub(crate) fn is_new_epoll(fd: c_int) {
    is_new(fd);
    set(fd, Arc::new(Object::Epoll(Instance::default())));
}

/// Sets what `fd` is.
pub(crate) fn set(fd: c_int, object: Arc<Object>) {
    let _gate = gate::enter();
    TABLE.set(fd, Known(object));
}

/// `fd` is closed, or something else now.
pub(crate) fn forget(fd: c_int) {
    if TABLE.glance(fd).is_some() {
        let _gate = gate::enter();
        TABLE.forget(fd);
    }
}

/// The kernel has given `fd` to something else: what was there has been closed in a way that was not seen.
pub(crate) fn is_new(fd: c_int) {
    if TABLE.glance(fd).is_none() || !process::is_owner() {
        return;
    }
    if let Some(Object::Stream(stream)) = object(fd).as_deref() {
        stream.was_closed(fd);
    }
    forget(fd);
}

/// A descriptor of a stream.
pub(crate) fn descriptor_of(stream: &Stream) -> Option<c_int> {
    let mut found = None;
    TABLE.for_each(|fd| {
        let is_it = || matches!(object(fd).as_deref(), Some(Object::Stream(other)) if std::ptr::eq(other, stream));
        if found.is_none() && is_it() {
            found = Some(fd);
        }
    });
    found
}

/// Calls `with` with each stream of the program, and one descriptor of it.
pub(crate) fn for_each_stream(mut with: impl FnMut(c_int, &Stream)) {
    TABLE.for_each(|fd| {
        if let Some(Object::Stream(stream)) = object(fd).as_deref() {
            with(fd, stream);
        }
    });
}

/// Calls `with` with each epoll instance that has had streams.
pub(crate) fn for_each_epoll(with: impl Fn(&Epoll)) {
    TABLE.for_each(|fd| {
        if let Some(Object::Epoll(instance)) = object(fd).as_deref() {
            instance.get().into_iter().for_each(|epoll| with(epoll));
        }
    });
}

/// Reference to a value that is never freed; none where the pointer is null.
pub(crate) fn never_freed<T>(pointer: *const T) -> Option<&'static T> {
    // SAFETY: callers pass pointers to what was leaked, or null.
    unsafe { pointer.as_ref() }
}

/// Reference to a value that `_keeper` owns; none where the pointer is null.
pub(crate) fn kept<T>(pointer: *const T, _keeper: &Stream) -> Option<&T> {
    // SAFETY: likewise.
    unsafe { pointer.as_ref() }
}
