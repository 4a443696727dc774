//! Work requests and their completions.

use crate::chain::{Args, ChainOp, Ordering};
use crate::{Access, Gid, Key, Qkey, Qpn};
use arrayvec::ArrayVec;

/// Most scatter/gather elements of one work request.
pub const MAX_SGE: usize = 32;

/// One piece of a scatter/gather list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address in the program that posted it.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: Key,
}

/// A scatter/gather list, copied out of a ring.
pub type SgeList = ArrayVec<Sge, MAX_SGE>;

bitflags::bitflags! {
    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Complete with an entry in the CQ.
        const SIGNALED = 1 << 1;
        /// Ask the receiver to raise a solicited event.
        const SOLICITED = 1 << 2;
        /// The data is in the work request.
        const INLINE = 1 << 3;
    }
}

/// Operation of a send work request, with the fields that only this operation has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SendOp {
    Send {
        imm: Option<u32>,
    },
    SendInvalidate {
        rkey: Key,
    },
    Write {
        remote_addr: u64,
        rkey: Key,
        imm: Option<u32>,
    },
    Read {
        remote_addr: u64,
        rkey: Key,
    },
    CompareSwap {
        remote_addr: u64,
        rkey: Key,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote_addr: u64,
        rkey: Key,
        add: u64,
    },
    /// Eight bytes, written at once (IBA annex A19).
    AtomicWrite {
        remote_addr: u64,
        rkey: Key,
        value: [u8; 8],
    },
    /// Make earlier WRITEs visible (IBA annex A19). `kind`: 1 global visibility, 2 persistence; `range` false: whole region.
    Flush {
        remote_addr: u64,
        rkey: Key,
        length: u32,
        kind: u8,
        range: bool,
    },
    LocalInvalidate {
        key: Key,
    },
    BindMw {
        mw: Key,
        new_key: Key,
        mr: Key,
        addr: u64,
        length: u64,
        access: Access,
    },
    /// An atomic that has no packet: within one host only.
    Calc {
        op: ChainOp,
        args: Args,
    },
    /// Lets a managed queue, of the receive side if so, go on: ENABLE and RECV_ENABLE of an ordinary queue.
    Enable {
        order: Ordering,
        is_receive: bool,
    },
    /// A datagram. `ah` is the address handle's number.
    Datagram {
        ah: u32,
        qpn: Qpn,
        qkey: Qkey,
        imm: Option<u32>,
    },
}

/// A send work request: a copy that the tenant can no longer change.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The program's own identifier, returned in the completion.
    pub wr_id: u64,
    /// Modifiers.
    pub flags: SendFlags,
    /// The operation.
    pub op: SendOp,
    /// Ranges of the data, unless it is inline.
    pub sges: SgeList,
    /// Bytes of inline data; they stay in the ring until the request completes.
    pub inline_len: u32,
}

/// Ordering properties of a request: whether earlier ones come first (IBA 10.8.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Precedence {
    /// It takes effect on this side only, after everything before it.
    pub is_local: bool,
    /// It needs an answer that carries data, of which so many may be under way.
    pub is_read_or_atomic: bool,
    /// It waits for earlier READs and atomics.
    pub is_fenced: bool,
}

impl SendWr {
    /// Whether earlier requests come first.
    pub fn precedence(&self) -> Precedence {
        Precedence {
            is_local: self.op.is_local(),
            is_read_or_atomic: self.op.is_read_or_atomic(),
            is_fenced: self.flags.contains(SendFlags::FENCE),
        }
    }

    /// A request to be filled in.
    pub fn empty() -> Self {
        let op = SendOp::Send { imm: None };
        Self { wr_id: 0, flags: SendFlags::empty(), op, sges: SgeList::new(), inline_len: 0 }
    }

    /// Bytes that the request moves.
    pub fn length(&self) -> u64 {
        if self.flags.contains(SendFlags::INLINE) {
            return u64::from(self.inline_len);
        }
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// A receive work request, copied out of a ring.
#[derive(Clone, Debug, Default)]
pub struct RecvWr {
    /// The program's own identifier.
    pub wr_id: u64,
    /// Ranges for the data.
    pub sges: SgeList,
}

/// `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocalLengthError = 1,
    LocalQpOperationError = 2,
    LocalProtectionError = 4,
    FlushError = 5,
    MwBindError = 6,
    BadResponse = 7,
    LocalAccessError = 8,
    RemoteInvalidRequest = 9,
    RemoteAccessError = 10,
    RemoteOperationError = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    Fatal = 18,
    General = 21,
}

impl WcStatus {
    /// The status in words, as libibverbs has them.
    pub fn words(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLengthError => "local length error",
            Self::LocalQpOperationError => "local QP operation error",
            Self::LocalProtectionError => "local protection error",
            Self::FlushError => "work request flushed",
            Self::MwBindError => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccessError => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationError => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::Fatal => "fatal error",
            Self::General => "general error",
        }
    }
}

/// `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

bitflags::bitflags! {
    /// `enum ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The buffer starts with a GRH.
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `imm` is the rkey that the sender invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// A completion queue entry (`ib_uverbs_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// From the work request.
    pub wr_id: u64,
    /// Its status.
    pub status: WcStatus,
    /// Its operation.
    pub opcode: WcOpcode,
    /// Bytes received, or read.
    pub byte_len: u32,
    /// Immediate data as it was on the wire, or the invalidated rkey.
    pub imm: u32,
    /// The QP that it belongs to.
    pub qpn: Qpn,
    /// The sender, for datagrams.
    pub src_qp: Qpn,
    /// For datagrams the kind of packet; 0 where the QP is connected. See [`Completion::sl_of`].
    pub sl: u8,
    /// The flags that say which fields are valid.
    pub flags: WcFlags,
}

impl Completion {
    /// Service level in a datagram's completion. RoCEv2 has no service levels; NICs put the kind of packet there (IBA A17.4.5.1
    /// asks for it, mlx5's encoding is what programs such as UCX read): UDP, over IPv4 or IPv6.
    pub fn sl_of(from: Gid) -> u8 {
        const UDP: u8 = 8;
        const IPV6: u8 = 1;
        const IPV4: u8 = 2;
        UDP | if from.as_ipv4().is_some() { IPV4 } else { IPV6 }
    }
}

impl SendOp {
    /// The opcode of the completion.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendInvalidate { .. } | Self::Datagram { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::Calc { op, .. } => op.wc_opcode(),
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::Enable { .. } => ChainOp::Enable.wc_opcode(),
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            Self::BindMw { .. } => WcOpcode::BindMw,
        }
    }

    /// Whether the request takes effect on this side only.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindMw { .. } | Self::Enable { .. })
    }

    /// Whether the request's gather list is sent.
    pub fn sends_data(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::SendInvalidate { .. } | Self::Write { .. } | Self::Datagram { .. })
    }

    /// Whether the request needs an answer that carries data, so that it counts against `max_rd_atomic`.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
                | Self::Calc { .. }
                | Self::AtomicWrite { .. }
                | Self::Flush { .. }
        )
    }
}
