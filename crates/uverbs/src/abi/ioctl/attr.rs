//! Attribute numbers (`UVERBS_ATTR_*`), by method.
#![allow(missing_docs, reason = "the names are those of the kernel's enums")]

/// `UVERBS_ATTR_UHW_IN`: the provider's request.
pub const UHW_IN: u16 = 0x1000;
/// `UVERBS_ATTR_UHW_OUT`: room for the provider's response.
pub const UHW_OUT: u16 = 0x1001;

/// `UVERBS_ATTR_F_MANDATORY`.
pub const F_MANDATORY: u16 = 1;
/// `UVERBS_ATTR_F_VALID_OUTPUT`.
pub const F_VALID_OUTPUT: u16 = 2;

/// The only attribute of the methods that destroy an object without saying more about it, and the first of the others.
pub const DESTROY_HANDLE: u16 = 0;
/// Response of the methods that destroy a CQ, QP or SRQ.
pub const DESTROY_RESP: u16 = 1;
/// The first attribute of all methods that make an object.
pub const NEW_HANDLE: u16 = 0;

pub mod invoke_write {
    pub const CORE_IN: u16 = 0;
    pub const CORE_OUT: u16 = 1;
    pub const WRITE_CMD: u16 = 2;
}

pub mod query_port {
    pub const PORT_NUM: u16 = 0;
    pub const RESP: u16 = 1;
}

/// Of GET_CONTEXT, and of QUERY_CONTEXT.
pub mod context {
    pub const NUM_COMP_VECTORS: u16 = 0;
    pub const CORE_SUPPORT: u16 = 1;
}

pub mod gid_table {
    pub const ENTRY_SIZE: u16 = 0;
    pub const FLAGS: u16 = 1;
    pub const RESP_ENTRIES: u16 = 2;
    pub const RESP_NUM_ENTRIES: u16 = 3;
}

pub mod gid_entry {
    pub const PORT: u16 = 0;
    pub const GID_INDEX: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const RESP_ENTRY: u16 = 3;
}

pub mod create_cq {
    pub const CQE: u16 = 1;
    pub const USER_HANDLE: u16 = 2;
    pub const COMP_CHANNEL: u16 = 3;
    pub const COMP_VECTOR: u16 = 4;
    pub const FLAGS: u16 = 5;
    pub const RESP_CQE: u16 = 6;
    pub const EVENT_FD: u16 = 7;
}

pub mod create_qp {
    pub const XRCD_HANDLE: u16 = 1;
    pub const PD_HANDLE: u16 = 2;
    pub const SRQ_HANDLE: u16 = 3;
    pub const SEND_CQ_HANDLE: u16 = 4;
    pub const RECV_CQ_HANDLE: u16 = 5;
    pub const IND_TABLE_HANDLE: u16 = 6;
    pub const USER_HANDLE: u16 = 7;
    pub const CAP: u16 = 8;
    pub const TYPE: u16 = 9;
    pub const FLAGS: u16 = 10;
    pub const SOURCE_QPN: u16 = 11;
    pub const EVENT_FD: u16 = 12;
    pub const RESP_CAP: u16 = 13;
    pub const RESP_QP_NUM: u16 = 14;
}

pub mod create_srq {
    pub const PD_HANDLE: u16 = 1;
    pub const XRCD_HANDLE: u16 = 2;
    pub const CQ_HANDLE: u16 = 3;
    pub const USER_HANDLE: u16 = 4;
    pub const MAX_WR: u16 = 5;
    pub const MAX_SGE: u16 = 6;
    pub const LIMIT: u16 = 7;
    pub const MAX_NUM_TAGS: u16 = 8;
    pub const TYPE: u16 = 9;
    pub const EVENT_FD: u16 = 10;
    pub const RESP_MAX_WR: u16 = 11;
    pub const RESP_MAX_SGE: u16 = 12;
    pub const RESP_SRQ_NUM: u16 = 13;
}

pub mod advise_mr {
    pub const PD_HANDLE: u16 = 0;
    pub const ADVICE: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const SGE_LIST: u16 = 3;
}

pub mod query_mr {
    pub const HANDLE: u16 = 0;
    pub const RESP_LKEY: u16 = 1;
    pub const RESP_RKEY: u16 = 2;
    pub const RESP_LENGTH: u16 = 3;
    pub const RESP_IOVA: u16 = 4;
}

pub mod reg_dmabuf_mr {
    pub const PD_HANDLE: u16 = 1;
    pub const OFFSET: u16 = 2;
    pub const LENGTH: u16 = 3;
    pub const IOVA: u16 = 4;
    pub const FD: u16 = 5;
    pub const ACCESS_FLAGS: u16 = 6;
    pub const RESP_LKEY: u16 = 7;
    pub const RESP_RKEY: u16 = 8;
}

pub mod reg_mr {
    pub const PD_HANDLE: u16 = 1;
    pub const IOVA: u16 = 3;
    pub const ADDR: u16 = 4;
    pub const LENGTH: u16 = 5;
    pub const ACCESS_FLAGS: u16 = 6;
    pub const FD: u16 = 7;
    pub const FD_OFFSET: u16 = 8;
    pub const RESP_LKEY: u16 = 9;
    pub const RESP_RKEY: u16 = 10;
}
