//! Queue pair types, states and attributes.

use crate::{Access, Gid, Psn, Qkey, Qpn};

/// `enum ibv_qp_type`, the supported ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}

impl QpType {
    /// The type with number `n` of `enum ibv_qp_type`, where supported.
    pub fn from_number(n: u8) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud].into_iter().find(|t| *t as u8 == n)
    }
}

/// `enum ibv_qp_state` (IBA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error: everything is flushed.
    Error = 6,
}

impl QpState {
    /// The state with number `n` of `enum ibv_qp_state`.
    pub fn from_number(n: u8) -> Option<Self> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].into_iter().find(|s| *s as u8 == n)
    }

    /// Whether incoming requests are processed (IBA 10.3.1).
    pub fn can_receive(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Path MTU (`enum ibv_mtu`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    #[default]
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    /// The MTU with number `n` of `enum ibv_mtu`.
    pub fn from_number(n: u8) -> Option<Self> {
        use Mtu::*;
        [B256, B512, B1024, B2048, B4096].into_iter().find(|m| *m as u8 == n)
    }

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest path MTU that an interface of so many bytes carries with all headers, by rxe's rule.
    pub fn for_interface(bytes: u32) -> Self {
        const HEADERS: u32 = 80;
        let fits = |mtu: &Self| mtu.bytes() + HEADERS <= bytes;
        [Self::B4096, Self::B2048, Self::B1024, Self::B512].into_iter().find(fits).unwrap_or(Self::B256)
    }
}

/// Address vector: the destination of a QP or address handle (`ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// Destination address.
    pub dgid: Gid,
    /// Index of the source address in the port's GID table.
    pub sgid_index: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// TTL.
    pub hop_limit: u8,
    /// IP traffic class.
    pub traffic_class: u8,
    /// Destination LID; no meaning on Ethernet, kept for queries.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits; no meaning on Ethernet, kept for queries.
    pub src_path_bits: u8,
    /// Rate limit of the path (`enum ibv_rate`); kept for queries.
    pub static_rate: u8,
    /// Whether a GRH is present: always so on RoCE.
    pub is_global: bool,
    /// The port, from 1.
    pub port: u8,
}

/// The attributes that `modify_qp` sets and `query_qp` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// The state asked for.
    pub state: QpState,
    /// The state that the caller believes the QP is in.
    pub cur_state: QpState,
    /// Raise `SqDrained` when SQD is reached and drained.
    pub sqd_async_notify: bool,
    /// Access rights of peers.
    pub access: Access,
    /// Partition key index.
    pub pkey_index: u16,
    /// Port, from 1.
    pub port: u8,
    /// Queue key of a datagram QP.
    pub qkey: Qkey,
    /// Address of the peer.
    pub av: AddressVector,
    /// Alternate path; kept for queries, never used.
    pub alt_av: AddressVector,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error.
    pub retry_cnt: u8,
    /// Retries after RNR; 7 is for ever.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics in flight as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code that this side asks for.
    pub min_rnr_timer: u8,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// Migration state; kept for queries.
    pub path_mig_state: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_leaves_room_for_headers() {
        let mtus = [1500, 9000, 4176, 4175, 68, 65_536].map(Mtu::for_interface);
        assert_eq!(mtus, [Mtu::B1024, Mtu::B4096, Mtu::B4096, Mtu::B2048, Mtu::B256, Mtu::B4096]);
    }
}
