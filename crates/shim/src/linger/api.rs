//! The functions of `rdmesh_linger.h`.
#![allow(unsafe_code)]

use super::taken::Taken;
use crate::descriptors;
use crate::errno::{minus_one, zero_or_minus_one};
use crate::memory;
use crate::session::Context;
use libc::{c_int, c_uint, size_t, ssize_t};
use rdmesh_preload::fail;
use rdmesh_preload::replace;
use rdmesh_uverbs::session::Token;
use rdmesh_uverbs::session::chain::Call;
use rdmesh_uverbs::session::linger::{Attached, LeasedCq, LeasedQp, LeasedRegion, ObjectKind};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::time::Duration;
use zerocopy::FromBytes;

replace! {
    /// See `rdmesh_linger.h`; likewise the others.
    fn rdmesh_linger(command_fd: c_int, milliseconds: u64, token: *mut Token) -> c_int {
        let Some(context) = descriptors::peek_as::<Context>(command_fd) else { return minus_one(Errno::BADF) };
        let _gate = memory::gate();
        let granted = context.lease().ask(context, Duration::from_millis(milliseconds));
        // SAFETY: null, or the caller's room for a token.
        zero_or_minus_one(granted.map(|granted| if !token.is_null() { unsafe { token.write(granted) } }))
    }

    fn rdmesh_linger_give_up(command_fd: c_int) -> c_int {
        let Some(context) = descriptors::peek_as::<Context>(command_fd) else { return minus_one(Errno::BADF) };
        let _gate = memory::gate();
        zero_or_minus_one(context.lease().give_up(context))
    }

    fn rdmesh_take_over(token: *const Token) -> *mut Taken {
        let _gate = memory::gate();
        // SAFETY: the caller's token; the copy is used.
        let token = if token.is_null() { return fail(Errno::INVAL) } else { unsafe { token.read() } };
        Taken::by(&token).map_or_else(fail, |taken| Box::into_raw(Box::new(taken)))
    }

    fn rdmesh_taken_info(taken: *const Taken, info: *mut Attached) -> () {
        // SAFETY: the caller's room, and a device that it has.
        unsafe { info.write(*(*taken).attached()) }
    }

    fn rdmesh_taken_queues(taken: *const Taken) -> c_int {
        // SAFETY: a device that the caller has.
        duplicate(Some(unsafe { &*taken }.queues()))
    }

    fn rdmesh_taken_arena(taken: *const Taken) -> c_int {
        // SAFETY: as above.
        duplicate(unsafe { &*taken }.arena())
    }

    fn rdmesh_taken_regions(taken: *const Taken, from: c_uint, rows: *mut LeasedRegion, count: size_t) -> ssize_t {
        // SAFETY: as above, and room of the caller's.
        unsafe { list(&*taken, ObjectKind::Region, from, rows, count) }
    }

    fn rdmesh_taken_cqs(taken: *const Taken, from: c_uint, rows: *mut LeasedCq, count: size_t) -> ssize_t {
        // SAFETY: as above.
        unsafe { list(&*taken, ObjectKind::Cq, from, rows, count) }
    }

    fn rdmesh_taken_qps(taken: *const Taken, from: c_uint, rows: *mut LeasedQp, count: size_t) -> ssize_t {
        // SAFETY: as above.
        unsafe { list(&*taken, ObjectKind::Qp, from, rows, count) }
    }

    fn rdmesh_taken_chain_stop(taken: *const Taken, group: c_uint) -> c_int {
        // SAFETY: a device that the caller has.
        zero_or_minus_one(unsafe { &*taken }.order(Call::Stop, group))
    }

    fn rdmesh_taken_chain_resume(taken: *const Taken, group: c_uint) -> c_int {
        // SAFETY: as above.
        zero_or_minus_one(unsafe { &*taken }.order(Call::Resume, group))
    }

    fn rdmesh_taken_chain_kill(taken: *const Taken, group: c_uint) -> c_int {
        // SAFETY: as above.
        zero_or_minus_one(unsafe { &*taken }.order(Call::Kill, group))
    }

    fn rdmesh_taken_extend(taken: *const Taken, milliseconds: u64) -> c_int {
        // SAFETY: as above.
        zero_or_minus_one(unsafe { &*taken }.extend(Duration::from_millis(milliseconds)))
    }

    fn rdmesh_taken_give_up(taken: *const Taken) -> c_int {
        // SAFETY: as above.
        zero_or_minus_one(unsafe { &*taken }.give_up())
    }

    fn rdmesh_taken_close(taken: *mut Taken) -> () {
        let _gate = memory::gate();
        if !taken.is_null() {
            // SAFETY: made by `rdmesh_take_over`, and the caller gives it up.
            drop(unsafe { Box::from_raw(taken) });
        }
    }
}

/// A descriptor for the caller.
fn duplicate(fd: Option<BorrowedFd<'_>>) -> c_int {
    let made = fd.ok_or(Errno::NOENT).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
    match made {
        Ok(fd) => {
            let number = fd.as_raw_fd();
            std::mem::forget(fd);
            number
        }
        Err(errno) => minus_one(errno),
    }
}

/// Writes at most `count` objects to `rows`. Returns how many.
///
/// # Safety
/// `rows` must have room for `count`.
unsafe fn list<T: FromBytes>(taken: &Taken, kind: ObjectKind, from: u32, rows: *mut T, count: usize) -> ssize_t {
    match taken.list::<T>(kind, from) {
        Ok(found) => {
            let found = found.into_iter().take(count).enumerate();
            // SAFETY: by the contract.
            found.map(|(i, row)| unsafe { rows.add(i).write(row) }).count() as ssize_t
        }
        Err(errno) => minus_one(errno),
    }
}
