//! Messages of one collective operation that are under way.

use super::Group;
use crate::abi::Handle;
use crate::interpose::completion::MPI_Wait;
use crate::interpose::receives::{posted, start_receive};
use crate::interpose::sends::start_send;
use crate::job::{Buffer, Message};
use libc::{c_int, c_void};
use std::collections::VecDeque;

/// Sends and receives that were started, in their order.
pub(super) struct Exchange<'a> {
    group: &'a Group,
    /// Requests, each as MPI has it.
    pending: VecDeque<u64>,
    /// First error of one of them.
    code: c_int,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(group: &'a Group) -> Self {
        Self { group, pending: VecDeque::new(), code: 0 }
    }

    /// Starts to send data to a rank.
    pub(super) fn send(&mut self, data: Buffer, to: usize) {
        let (library, comm) = (self.group.rank.library, self.group.comm);
        let Buffer { count, datatype, .. } = data;
        let message = Message { buffer: data, dest: to as c_int, tag: TAG, comm, is_synchronous: false };
        let by_mpi = |at| library.isend(data.pointer(), count, datatype, to as c_int, TAG, comm, at);
        self.start(|at| start_send(&message, at).unwrap_or_else(|| by_mpi(at)));
    }

    /// Starts to receive data of a rank.
    pub(super) fn receive(&mut self, data: Buffer, from: usize) {
        let (library, comm) = (self.group.rank.library, self.group.comm);
        let Buffer { count, datatype, .. } = data;
        let (posted, pattern) = posted(library, data.pointer(), count, datatype, from as c_int, TAG, comm);
        let by_mpi = |at| library.irecv(data.pointer(), count, datatype, from as c_int, TAG, comm, at);
        self.start(|at| start_receive(posted, pattern, at).unwrap_or_else(|| by_mpi(at)));
    }

    fn start(&mut self, start: impl FnOnce(*mut c_void) -> c_int) {
        let mut slot = 0_u64;
        match start((&raw mut slot).cast()) {
            0 => self.pending.push_back(slot),
            code => self.failed(code),
        }
    }

    /// Waits for the oldest one.
    pub(super) fn next(&mut self) {
        let Some(mut slot) = self.pending.pop_front() else { return };
        let ignored = std::ptr::with_exposed_provenance_mut(self.group.rank.library.abi.status_ignore);
        self.failed(MPI_Wait((&raw mut slot).cast(), ignored));
    }

    fn failed(&mut self, code: c_int) {
        if self.code == 0 {
            self.code = code;
        }
    }

    /// Waits for all that are left; the first error, or 0.
    pub(super) fn finish(mut self) -> c_int {
        while !self.pending.is_empty() {
            self.next();
        }
        self.code
    }
}

impl Group {
    /// Copies data of this rank, as a message from it to itself would.
    pub(super) fn copy(&self, from: Buffer, to: Buffer) -> c_int {
        let (library, myself) = (self.rank.library, self.rank.library.abi.named.comm_self);
        let ignored = std::ptr::with_exposed_provenance_mut(library.abi.status_ignore);
        library.sendrecv(
            from.pointer(),
            from.count,
            from.datatype,
            0,
            TAG,
            to.pointer(),
            to.count,
            to.datatype,
            0,
            TAG,
            myself,
            ignored,
        )
    }

    /// A part of a buffer: so many elements, from this one on.
    pub(super) fn part(&self, of: Buffer, first: usize, count: usize) -> Buffer {
        let distance = first as isize * extent(self.rank.library, of.datatype);
        Buffer { address: of.address.wrapping_add_signed(distance), count: count as c_int, ..of }
    }
}

/// Distance of two elements of a datatype in bytes; 0 where MPI does not know it, of which it tells the program later.
pub(super) fn extent(library: &crate::library::Library, datatype: Handle) -> isize {
    let (mut lower, mut extent) = (0, 0);
    if library.type_get_extent(datatype, &mut lower, &mut extent) == 0 { extent } else { 0 }
}

/// Of all our messages: their communicators have no others.
const TAG: c_int = 0;
