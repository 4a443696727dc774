//! Work requests to be declared, and their fields by name.

use super::{Arg, Memory, RemoteBuf, U32};
use crate::program::{Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainOp, offset};

/// A request that is declared, and placed later or by a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request(pub(super) usize);

impl Request {
    /// The 56 bits in its control word that conditions compare.
    pub fn operand(self) -> Span {
        self.field(offset::CONTROL, 7)
    }

    /// The 120 bits that a wide condition compares: an identifier that nothing else uses, and the operand.
    pub fn wide_operand(self) -> Span {
        self.field(offset::WR_ID, 15)
    }

    /// The comparison value of an atomic operation, or the addend.
    pub fn compare(self) -> Span {
        self.field(offset::COMPARE, 8)
    }

    /// The value that a COMPARE_SWAP stores.
    pub fn swap(self) -> Span {
        self.field(offset::SWAP, 8)
    }

    /// Address and length of an element of its gather list, as tables have them: 8 and 4 bytes.
    pub fn sge(self, element: usize) -> Span {
        self.field(offset::SGES + element * offset::SGE_LEN, 12)
    }

    /// The length of an element of its gather list.
    pub fn length(self, element: usize) -> Span {
        self.field(offset::SGES + element * offset::SGE_LEN + offset::SGE_LENGTH, 4)
    }

    /// Its remote address.
    pub fn remote(self) -> Span {
        self.field(offset::REMOTE_ADDR, 8)
    }

    /// Its immediate data.
    pub fn imm(self) -> Span {
        self.field(offset::IMM, 4)
    }

    fn field(self, at: usize, length: u32) -> Span {
        Span { place: Place::Slot { slot: self.0, at }, length }
    }
}

/// A request to be declared.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(super) slot: Slot,
    pub(super) to: Option<Arg<RemoteBuf>>,
    pub(super) imm: Option<Arg<U32>>,
    pub(super) is_test: bool,
}

impl Spec {
    fn new(op: ChainOp, imm: u32) -> Self {
        Self { slot: Slot { imm, ..Slot::new("", op) }, to: None, imm: None, is_test: false }
    }

    /// Writes to the client's memory that an argument names.
    #[must_use]
    pub fn to(mut self, to: Arg<RemoteBuf>) -> Self {
        self.slot.remote = Remote::Client { addr: 0, rkey: 0 };
        self.to = Some(to);
        self
    }

    /// Sends these bytes.
    #[must_use]
    pub fn from(mut self, span: Span) -> Self {
        self.slot.sges.push(span);
        self
    }

    /// Sends bytes of a region whose address and length the chain fills in ([`Request::sge`]).
    #[must_use]
    pub fn gather(self, memory: Memory) -> Self {
        self.from(memory.span(0, 0))
    }

    /// Repeats a tag of the client's in the immediate data.
    #[must_use]
    pub fn tag(mut self, tag: Arg<U32>) -> Self {
        self.imm = Some(tag);
        self
    }
}

/// A WRITE to the client's memory that it is told of, with immediate data.
pub fn write_imm(imm: u32) -> Spec {
    Spec::new(ChainOp::WriteImm, imm)
}

/// A write to the client's memory that it is not told of.
pub fn write() -> Spec {
    Spec::new(ChainOp::Write, 0)
}

/// A message to the client with immediate data.
pub fn send_imm(imm: u32) -> Spec {
    Spec::new(ChainOp::SendImm, imm)
}

/// A copy within the chain's own memory.
pub fn copy(to: Span, from: Span) -> Spec {
    let mut spec = Spec::new(ChainOp::Write, 0).from(from);
    spec.slot.remote = Remote::Own(to.place);
    spec
}

/// An addition to eight bytes of the chain's own memory.
pub fn add(to: Span, addend: u64) -> Spec {
    let mut spec = Spec::new(ChainOp::FetchAdd, 0);
    spec.slot.remote = Remote::Own(to.place);
    spec.slot.compare = addend;
    spec
}

/// A COMPARE_SWAP of eight bytes of the chain's own memory; the old value goes to `old`.
pub fn compare_swap(word: Span, compare: u64, swap: u64, old: Span) -> Spec {
    let mut spec = Spec::new(ChainOp::CompareSwap, 0).from(old);
    spec.slot.remote = Remote::Own(word.place);
    (spec.slot.compare, spec.slot.swap) = (compare, swap);
    spec
}

/// A test whose operand is filled in by a READ: one of several words of a condition; see [`Condition::and`](super::Condition::and).
pub fn test() -> Spec {
    Spec { is_test: true, ..nop() }
}

/// A request that does nothing.
pub fn nop() -> Spec {
    Spec::new(ChainOp::Nop, 0)
}
