//! Completion channels: a descriptor for the program, a number for the router.
//!
//! The kernel notices by itself when the program closes a channel. The router, which keeps a duplicate of the
//! program's end, has to be told.

use super::context::Context;
use crate::memory;
use rdmesh_preload::process;
use rdmesh_uverbs::abi::{CHANNEL_ATTR, ioctl_method, ioctl_object};
use rdmesh_uverbs::session::{IoctlAttr, IoctlHeader, RequestKind};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zerocopy::IntoBytes;

struct Entry {
    fd: RawFd,
    number: u32,
    context: Weak<Context>,
    /// The fork in which the channel was made: a child's close of its copy is not the channel's end.
    born: u32,
}

static CHANNELS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// Number of channels, so that a program without any pays nothing when it closes descriptors.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Remembers that the program's descriptor `fd` is channel `number` of `context`.
pub(super) fn add(context: &Arc<Context>, fd: RawFd, number: u32) {
    let entry = Entry { fd, number, context: Arc::downgrade(context), born: memory::forks() };
    let mut channels = lock();
    // The program may have closed an earlier channel with this descriptor without the replaced functions.
    channels.retain(|entry| entry.fd != fd);
    channels.push(entry);
    COUNT.store(channels.len(), Ordering::Release);
}

/// The number of the channel with the program's descriptor `fd`.
pub(super) fn number(context: &Context, fd: RawFd) -> Result<u32, Errno> {
    let channels = lock();
    let found = channels.iter().find(|entry| entry.fd == fd && std::ptr::eq(entry.context.as_ptr(), context));
    found.map(|entry| entry.number).ok_or(Errno::BADF)
}

/// Whether the program's `fd` is a channel.
pub(super) fn is_channel(fd: RawFd) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && lock().iter().any(|entry| entry.fd == fd)
}

/// The program is about to close `fd`.
#[inline]
pub(crate) fn closed(fd: RawFd) {
    if COUNT.load(Ordering::Acquire) != 0 {
        forget(fd);
    }
}

/// The program is about to close every descriptor from `first` to `last`.
pub(crate) fn closed_between(first: u32, last: u32) {
    if COUNT.load(Ordering::Acquire) == 0 || !process::is_owner() {
        return;
    }
    let _gate = memory::gate();
    let fds: Vec<_> = lock().iter().map(|entry| entry.fd).filter(|fd| (first..=last).contains(&(*fd as u32))).collect();
    fds.into_iter().for_each(forget);
}

#[cold]
fn forget(fd: RawFd) {
    if !process::is_owner() {
        return;
    }
    let Some(entry) = take(fd) else { return };
    if entry.born == memory::forks()
        && let Some(context) = entry.context.upgrade()
    {
        // If the message cannot be sent the router has gone, and the channel with it.
        let _ = tell(&context, entry.number);
    }
}

fn take(fd: RawFd) -> Option<Entry> {
    let _gate = memory::gate();
    let mut channels = lock();
    let at = channels.iter().position(|entry| entry.fd == fd)?;
    let entry = channels.swap_remove(at);
    COUNT.store(channels.len(), Ordering::Release);
    Some(entry)
}

fn tell(context: &Context, number: u32) -> Result<(), Errno> {
    let _gate = memory::gate();
    let header = IoctlHeader {
        object_id: ioctl_object::COMP_CHANNEL,
        method_id: ioctl_method::CLOSE_COMP_CHANNEL,
        num_attrs: 1,
    };
    let attr = IoctlAttr { attr_id: CHANNEL_ATTR, len: 8, reserved: 0 };
    let body = [header.as_bytes(), attr.as_bytes(), &u64::from(number).to_ne_bytes()].concat();
    context.link().call(RequestKind::Ioctl, &body, |_| ())
}

fn lock() -> MutexGuard<'static, Vec<Entry>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}
