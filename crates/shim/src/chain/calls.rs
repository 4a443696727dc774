//! The device behind a program's objects, and commands to its router.
#![allow(unsafe_code)]

use super::border::{Failure, Result, given};
use crate::descriptors;
use crate::libibverbs::{Pd, Qp, VerbsContext};
use crate::memory;
use crate::session::Context;
use rdmesh_uverbs::session::RequestKind;
use rdmesh_uverbs::session::chain::{Call, Order};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A device that the program has opened.
#[derive(Clone)]
pub(super) struct Device(Arc<Context>);

impl Device {
    /// The device of a context of libibverbs'.
    ///
    /// # Safety
    /// Null, or a context that libibverbs has made.
    pub(super) unsafe fn of(context: *const VerbsContext) -> Result<Self> {
        // SAFETY: by the contract.
        let context = unsafe { given(context, "the context")? };
        let context = descriptors::get(context.cmd_fd);
        context.map(Self).ok_or_else(|| Failure::of(Errno::NODEV, "the device is not rdmesh's"))
    }

    /// The device of a queue pair.
    ///
    /// # Safety
    /// A queue pair that libibverbs has made.
    pub(super) unsafe fn of_qp(qp: &Qp) -> Result<Self> {
        // SAFETY: by the contract.
        unsafe { Self::of(qp.context) }
    }

    /// The device of a protection domain.
    ///
    /// # Safety
    /// A domain that libibverbs has made.
    pub(super) unsafe fn of_pd(pd: &Pd) -> Result<Self> {
        // SAFETY: by the contract.
        unsafe { Self::of(pd.context) }
    }

    /// Whether both are the same open device.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Has the router execute a command, and returns its response.
    pub(super) fn send(&self, body: &[u8], what: &str) -> Result<Vec<u8>> {
        let _gate = memory::gate();
        let reply = self.0.call(RequestKind::Chain, body, <[u8]>::to_vec);
        reply.map_err(|errno| Failure::of(errno, what))
    }

    /// The same, of a command with a struct as its response.
    pub(super) fn ask<R: FromBytes>(
        &self,
        call: Call,
        request: &(impl IntoBytes + Immutable),
        what: &str,
    ) -> Result<R> {
        let response = self.send(&call.body(request), what)?;
        R::read_from_bytes(&response).map_err(|_| Failure::of(Errno::IO, what))
    }

    /// The same, of a command without a response.
    pub(super) fn order(&self, call: Call, request: &(impl IntoBytes + Immutable), what: &str) -> Result<()> {
        self.send(&call.body(request), what).map(drop)
    }

    /// An order to a group.
    pub(super) fn order_group(&self, call: Call, group: u32) -> Result<()> {
        let what = format!("group {group}");
        self.order(call, &Order { group, reserved: 0 }, &what)
    }

    /// Maps a part of the queue memory.
    pub(super) fn map(&self, offset: u64, len: usize) -> Result<SharedMemory> {
        self.0.map_queues(offset, len).map_err(|errno| Failure::of(errno, "mapping a ring"))
    }
}
