//! READ, atomics and FLUSH at the responder: operations on memory behind a remote key.

use super::messages::unreachable;
use super::{Exec, Refusal, invalid};
use crate::memory::calculate;
use crate::platform::{Memory, Platform};
use crate::wire::{NakCode, Op};
use rdmesh_verbs::chain::{Args, ChainOp};
use rdmesh_verbs::{Access, Key, WcStatus};

/// A range that a peer names.
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) rkey: Key,
    pub(crate) len: u64,
}

impl<P: Platform> Exec<'_, P> {
    /// Executes an atomic or a FLUSH; `value` is the payload of an ATOMIC WRITE. Returns the original value of an atomic.
    pub(crate) fn execute_atomic(&mut self, op: &Op, value: Option<[u8; 8]>) -> Result<Option<u64>, Refusal> {
        let original = match *op {
            Op::CompareSwap { addr, rkey, compare, swap } => {
                let (memory, offset) = self.reach_word(addr, rkey, Access::REMOTE_ATOMIC)?;
                Some(memory.compare_swap(offset, compare, swap).map_err(unreachable)?)
            }
            Op::FetchAdd { addr, rkey, add } => {
                let (memory, offset) = self.reach_word(addr, rkey, Access::REMOTE_ATOMIC)?;
                Some(memory.fetch_add(offset, add).map_err(unreachable)?)
            }
            Op::AtomicWrite { reth } => {
                let value = value.ok_or_else(invalid)?;
                let (memory, offset) = self.reach_word(reth.addr, reth.rkey, Access::REMOTE_WRITE)?;
                memory.write_atomic(offset, value).map_err(unreachable)?;
                None
            }
            Op::Flush { kind, selectivity, reth } => {
                let range = Range { addr: reth.addr, rkey: reth.rkey, len: u64::from(reth.len) };
                self.flush_memory(&range, kind, selectivity == FLUSH_RANGE)?;
                None
            }
            _ => return Err(invalid()),
        };
        self.count_message(8);
        if original.is_some() {
            self.qp.counters.served_bytes += 8;
        }
        Ok(original)
    }

    /// Executes an atomic that has no packet on a wire. Returns the original value.
    pub(crate) fn execute_calc(&mut self, op: ChainOp, args: &Args) -> Result<u64, Refusal> {
        let (memory, offset) = self.reach_word(args.remote_addr, Key(args.rkey), Access::REMOTE_ATOMIC)?;
        let original = calculate(&memory, offset, op, args).map_err(unreachable)?;
        self.count_message(8);
        self.qp.counters.served_bytes += 8;
        Ok(original)
    }

    /// `len` bytes are read by a READ, which `ends` with them.
    pub(crate) fn count_read(&mut self, len: u64, ends: bool) {
        self.qp.counters.rx_messages += u64::from(ends);
        self.qp.counters.rx_bytes += len;
        self.qp.counters.served_bytes += len;
    }

    /// Resolves a remote range; none where it is empty, for which the key is not checked (IBA 9.7.4.1.3).
    pub(crate) fn reach(&self, range: &Range, access: Access) -> Result<Option<(P::Memory, u64)>, Refusal> {
        let refused = Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocalAccessError);
        if !self.qp.attr.access.contains(access) {
            return Err(refused);
        }
        if range.len == 0 {
            return Ok(None);
        }
        match self.cx.keys.remote(self.qp.made().pd, self.qp.made().qpn, range.rkey, range.addr, range.len, access) {
            Ok((memory, offset)) => Ok(Some((memory.clone(), offset))),
            Err(_) => Err(refused),
        }
    }

    /// Whether a key of the request opens anything for this access, whatever the range.
    pub(crate) fn opens(&self, rkey: Key, access: Access) -> bool {
        self.qp.attr.access.contains(access) && self.cx.keys.opens(self.qp.made().pd, self.qp.made().qpn, rkey, access)
    }

    /// Resolves eight aligned bytes (IBA 9.4.5: alignment is an invalid request).
    fn reach_word(&self, addr: u64, rkey: Key, access: Access) -> Result<(P::Memory, u64), Refusal> {
        if !addr.is_multiple_of(8) {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocalQpOperationError));
        }
        let place = self.reach(&Range { addr, rkey, len: 8 }, access)?;
        place.ok_or(Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocalAccessError))
    }

    /// FLUSH (IBA annex A19): on one host every earlier WRITE is visible by now; what is left is to check the right to ask.
    fn flush_memory(&self, range: &Range, kind: u8, partial: bool) -> Result<(), Refusal> {
        const GLOBAL: u8 = 1;
        const PERSISTENT: u8 = 2;
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, kind & GLOBAL != 0);
        access.set(Access::FLUSH_PERSISTENT, kind & PERSISTENT != 0);
        if access.is_empty() || kind & !(GLOBAL | PERSISTENT) != 0 {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocalQpOperationError));
        }
        let len = if partial { range.len } else { 0 };
        let found = self.cx.keys.remote(self.qp.made().pd, self.qp.made().qpn, range.rkey, range.addr, len, access);
        found.map(|_| ()).map_err(|_| Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocalAccessError))
    }
}

/// Selectivity level of a FLUSH that is for the range only (IBA annex A19).
const FLUSH_RANGE: u8 = 0;
