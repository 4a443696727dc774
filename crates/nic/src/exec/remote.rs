//! READ, atomics and FLUSH at the responder: operations on memory behind a remote key.

use super::Exec;
use super::Refusal;
use super::messages::unreachable;
use crate::packet::{Nak, Request, RequestOp};
use crate::platform::{Memory, Platform};
use rdmesh_verbs::{Access, Key, WcStatus};

/// A range that a peer names.
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) rkey: Key,
    pub(crate) len: u64,
}

impl<P: Platform> Exec<'_, P> {
    /// Executes an atomic or a FLUSH. Returns the original value of an atomic.
    pub(crate) fn execute_atomic<S>(&mut self, request: &Request<S>) -> Result<Option<u64>, Refusal> {
        let original = match request.op {
            RequestOp::CompareSwap { addr, rkey, compare, swap } => {
                let (memory, offset) = self.reach_word(addr, rkey, Access::REMOTE_ATOMIC)?;
                Some(memory.compare_swap(offset, compare, swap).map_err(unreachable)?)
            }
            RequestOp::FetchAdd { addr, rkey, add } => {
                let (memory, offset) = self.reach_word(addr, rkey, Access::REMOTE_ATOMIC)?;
                Some(memory.fetch_add(offset, add).map_err(unreachable)?)
            }
            RequestOp::AtomicWrite { addr, rkey, value } => {
                let (memory, offset) = self.reach_word(addr, rkey, Access::REMOTE_WRITE)?;
                memory.write_atomic(offset, value).map_err(unreachable)?;
                None
            }
            RequestOp::Flush { addr, rkey, length, kind, range } => {
                self.flush_memory(&Range { addr, rkey, len: u64::from(length) }, kind, range)?;
                None
            }
            _ => return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError)),
        };
        self.count(request, 8);
        if original.is_some() {
            self.qp.counters.served_bytes += 8;
        }
        Ok(original)
    }

    /// Resolves a remote range; none where it is empty, for which the key is not checked (IBA 9.7.4.1.3).
    pub(crate) fn reach(&self, range: &Range, access: Access) -> Result<Option<(P::Memory, u64)>, Refusal> {
        let refused = Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError);
        if !self.qp.attr.access.contains(access) {
            return Err(refused);
        }
        if range.len == 0 {
            return Ok(None);
        }
        match self.cx.keys.remote(self.qp.pd, self.qp.qpn, range.rkey, range.addr, range.len, access) {
            Ok((memory, offset)) => Ok(Some((memory.clone(), offset))),
            Err(_) => Err(refused),
        }
    }

    /// Resolves eight aligned bytes (IBA 9.4.5: alignment is an invalid request).
    fn reach_word(&self, addr: u64, rkey: Key, access: Access) -> Result<(P::Memory, u64), Refusal> {
        if !addr.is_multiple_of(8) {
            return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError));
        }
        let place = self.reach(&Range { addr, rkey, len: 8 }, access)?;
        place.ok_or(Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError))
    }

    /// FLUSH (IBA annex A19): on one host every earlier WRITE is visible by now; what is left is to check the right to ask.
    fn flush_memory(&self, range: &Range, kind: u8, partial: bool) -> Result<(), Refusal> {
        const GLOBAL: u8 = 1;
        const PERSISTENT: u8 = 2;
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, kind & GLOBAL != 0);
        access.set(Access::FLUSH_PERSISTENT, kind & PERSISTENT != 0);
        if access.is_empty() || kind & !(GLOBAL | PERSISTENT) != 0 {
            return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError));
        }
        let len = if partial { range.len } else { 0 };
        let found = self.cx.keys.remote(self.qp.pd, self.qp.qpn, range.rkey, range.addr, len, access);
        found.map(|_| ()).map_err(|_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError))
    }
}
