//! Work requests as C structs.
#![allow(unsafe_code)]

use super::border::{Failure, Result, given, list};
use crate::libibverbs::{Cq, Qp};
use rdmesh_verbs::chain::{Args, ChainFlags, ChainOp, Control, Request as WorkRequest, offset};
use rdmesh_verbs::{Key, MAX_SGE, Sge, SgeList};

/// `struct rdmesh_element`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Element {
    address: u64,
    length: u32,
    lkey: u32,
}

/// `struct rdmesh_request`.
#[repr(C)]
pub(super) struct Request {
    id: u64,
    op: u32,
    flags: u32,
    is_quiet: u32,
    imm: u32,
    operand: u64,
    remote: u64,
    rkey: u32,
    num_elements: u32,
    elements: *const Element,
    compare: u64,
    swap: u64,
    compare_mask: u64,
    swap_mask: u64,
    cq: *const Cq,
    qp: *const Qp,
    count: u64,
    step: u32,
    is_relative: u32,
}

impl Request {
    /// The bytes of a slot of `stride` bytes.
    ///
    /// # Safety
    /// Its pointers are null or valid.
    pub(super) unsafe fn encode(&self, stride: usize) -> Result<Vec<u8>> {
        let op = u8::try_from(self.op).ok().and_then(ChainOp::from_code).filter(|op| *op != ChainOp::WideCompareSwap);
        let op = op.ok_or_else(|| Failure::invalid(format_args!("{:#x} is no operation", self.op)))?;
        if self.operand > Control::MAX_OPERAND {
            return Err(Failure::invalid("the operand has more than 56 bits"));
        }
        let flags = ChainFlags::from_bits(self.flags).filter(|flags| !flags.contains(ChainFlags::INLINE));
        let flags = flags.ok_or_else(|| Failure::invalid(format_args!("{:#x} are no flags of a slot", self.flags)))?;
        let quiet = self.is_quiet != 0;
        let mut request = WorkRequest::new(Control { op, quiet, operand: self.operand });
        (request.wr_id, request.flags, request.imm) = (self.id, flags, self.imm);
        request.args = Args {
            remote_addr: self.remote,
            rkey: self.rkey,
            compare_add: self.compare,
            swap: self.swap,
            compare_mask: self.compare_mask,
            swap_mask: self.swap_mask,
        };
        // SAFETY: by the contract.
        request.sges = unsafe { elements(self.elements, self.num_elements)? };
        // SAFETY: by the contract.
        if let Some(object) = unsafe { self.object(op)? } {
            request.sges = [Sge { addr: self.count, length: self.step, lkey: Key(object) }].into_iter().collect();
            request.imm = u32::from(self.is_relative != 0);
        }
        if offset::SGES + request.sges.len() * offset::SGE_LEN > stride {
            let count = request.sges.len();
            return Err(Failure::invalid(format_args!(
                "{count} elements do not fit a slot; ask for more max_send_sge"
            )));
        }
        let mut bytes = vec![0; stride];
        request.encode(&mut bytes);
        Ok(bytes)
    }

    /// Handle of what a WAIT or ENABLE is about; none for other operations.
    ///
    /// # Safety
    /// As for [`Self::encode`].
    unsafe fn object(&self, op: ChainOp) -> Result<Option<u32>> {
        Ok(match op {
            // SAFETY: by the contract.
            ChainOp::Wait => Some(unsafe { given(self.cq, "the cq of a WAIT")? }.handle),
            // SAFETY: by the contract.
            ChainOp::Enable | ChainOp::RecvEnable => Some(unsafe { given(self.qp, "the qp of an ENABLE")? }.handle),
            _ => None,
        })
    }
}

/// A scatter/gather list.
///
/// # Safety
/// Null, or that many valid elements.
pub(super) unsafe fn elements(first: *const Element, count: u32) -> Result<SgeList> {
    if count as usize > MAX_SGE {
        return Err(Failure::invalid(format_args!("a slot has at most {MAX_SGE} elements")));
    }
    // SAFETY: by the contract.
    let list = unsafe { list(first, count as usize, "the list of elements")? };
    Ok(list
        .iter()
        .map(|element| Sge { addr: element.address, length: element.length, lkey: Key(element.lkey) })
        .collect())
}

const _: () = assert!(size_of::<Request>() == 120 && size_of::<Element>() == 16);
