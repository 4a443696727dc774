//! LOCAL requests: READ, WRITE and atomics on the poster's own memory.

use super::{Failure, Turn, WORD};
use crate::memory::{CopyError, Payload, Source, calculate, compare_swap_wide, gather, scatter_bytes, scatter_zeros};
use crate::platform::{Memory, Platform};
use crate::qp::MESSAGE_MAX;
use rdmesh_verbs::chain::{ChainFlags, ChainOp};
use rdmesh_verbs::{Access, Key, Sge, WcStatus};

impl<P: Platform> Turn<'_, P> {
    /// Does a part of the fetched request. Returns whether it has ended.
    pub(super) fn perform(&mut self) -> Result<bool, Failure> {
        let request = self.queue.request();
        let (op, total) = (request.control.op, request.length());
        if total > MESSAGE_MAX {
            return Err(Failure::new(WcStatus::LocalLengthError));
        }
        let moved = match op {
            ChainOp::Read => self.read()?,
            ChainOp::Write => self.write()?,
            _ if op.is_atomic() => {
                self.calculate()?;
                total
            }
            _ => return Err(Failure::new(WcStatus::LocalQpOperationError)),
        };
        self.queue.moved += moved;
        self.exec.out.spend(moved);
        self.exec.out.chains.spend(moved);
        Ok(self.queue.moved >= total)
    }

    /// The next piece of a READ.
    fn read(&mut self) -> Result<u64, Failure> {
        let (request, moved) = (self.queue.request(), self.queue.moved);
        let (keys, pd) = (&self.exec.cx.keys, self.exec.qp.made().pd);
        let len = (request.length() - moved).min(PIECE);
        let mut is_missing = false;
        let copied = match keys.local(pd, &self.remote(request.length()), Access::empty()) {
            Ok((memory, offset)) => {
                Payload::single(memory.clone(), offset + moved, len as u32).scatter(keys, pd, &request.sges, moved)
            }
            Err(_) if request.flags.contains(ChainFlags::SOFT) => {
                is_missing = moved == 0;
                scatter_zeros(keys, pd, &request.sges, moved, len)
            }
            Err(_) => return Err(self.refused()),
        };
        copied.map_err(|error| self.failed(error))?;
        if is_missing {
            let counts = self.exec.cx.chains.counts(self.exec.qp.made().handle);
            counts.into_iter().for_each(|counts| counts.soft_faults += 1);
        }
        Ok(len)
    }

    /// The next piece of a WRITE.
    fn write(&self) -> Result<u64, Failure> {
        let (request, moved) = (self.queue.request(), self.queue.moved);
        let total = request.length();
        if total == 0 {
            return Ok(0);
        }
        let (keys, pd) = (&self.exec.cx.keys, self.exec.qp.made().pd);
        let place = keys.local(pd, &self.remote(total), Access::LOCAL_WRITE);
        let (memory, offset) = place.map_err(|_| self.refused())?;
        if request.flags.contains(ChainFlags::INLINE) {
            memory.write(offset, self.queue.inline_data()).map_err(|fault| self.failed(fault.into()))?;
            return Ok(total);
        }
        let payload = gather(keys, pd, &request.sges, moved, PIECE as u32, false);
        let payload = payload.map_err(|denied| self.failed(denied.into()))?;
        payload.copy_to(memory, offset + moved).map_err(|fault| self.failed(fault.into()))?;
        Ok(u64::from(payload.len()))
    }

    fn calculate(&self) -> Result<(), Failure> {
        let request = self.queue.request();
        let (keys, pd) = (&self.exec.cx.keys, self.exec.qp.made().pd);
        if !request.args.remote_addr.is_multiple_of(WORD) {
            return Err(Failure { status: WcStatus::RemoteInvalidRequest, ..self.refused() });
        }
        let op = request.control.op;
        let place = keys.local(pd, &self.remote(op.width() as u64), Access::LOCAL_WRITE);
        let (memory, offset) = place.map_err(|_| self.refused())?;
        let old = match op {
            ChainOp::WideCompareSwap => compare_swap_wide(memory, offset, &request.wide).map(u128::to_ne_bytes),
            _ => calculate(memory, offset, op, &request.args).map(|old| u128::from(old).to_ne_bytes()),
        };
        let old = old.map_err(|fault| self.failed(fault.into()))?;
        if request.sges.is_empty() {
            return Ok(());
        }
        scatter_bytes(keys, pd, &request.sges, 0, &old[..op.width()]).map_err(|error| self.failed(error))
    }

    /// The range that the request names as remote.
    fn remote(&self, len: u64) -> Sge {
        let args = &self.queue.request().args;
        Sge { addr: args.remote_addr, length: len as u32, lkey: Key(args.rkey) }
    }

    fn refused(&self) -> Failure {
        let args = &self.queue.request().args;
        Failure { status: WcStatus::LocalProtectionError, addr: args.remote_addr, key: args.rkey }
    }

    /// Memory that is slow is an error too: a request that ends before the next is fetched cannot wait for it.
    fn failed(&self, error: CopyError) -> Failure {
        let sge = self.queue.request().sges.first().copied().unwrap_or_default();
        let status = match error {
            CopyError::Length => WcStatus::LocalLengthError,
            _ => WcStatus::LocalProtectionError,
        };
        Failure { status, addr: sge.addr, key: sge.lkey.0 }
    }
}

/// Bytes of a LOCAL request that are moved at once: others have their turn between two pieces.
const PIECE: u64 = 64 * 1024;
