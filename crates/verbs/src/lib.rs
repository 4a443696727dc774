//! The vocabulary of RDMA verbs that every other crate speaks.
//!
//! Values and rules only: nothing here owns memory, reads a clock or performs I/O. Names and numbers follow the
//! InfiniBand Architecture specification (IBA) and Linux's `ib_user_verbs.h`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod access;
pub mod chain;
mod event;
mod ids;
mod limits;
mod modify;
mod qp;
mod time;
mod work;

pub use access::Access;
pub use event::AsyncEvent;
pub use ids::{Gid, Key, Psn, Qkey, Qpn, Vni};
pub use limits::DeviceLimits;
pub use modify::{AttrMask, ModifyError, check_modify};
pub use qp::{AddressVector, Mtu, QpAttr, QpState, QpType};
pub use time::{ack_timeout, rnr_delay};
pub use work::{
    Completion, MAX_SGE, Precedence, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, WcFlags, WcOpcode, WcStatus,
};
