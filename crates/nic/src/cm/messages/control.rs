//! Control messages without connection parameters: MRA, REJ, RTU, DREQ, DREP, LAP and APR (IBA 12.6.6, 12.6.7, 12.6.9 to
//! 12.6.11, 12.8).

use crate::cm::mad::{self, Bytes, Field, Kind, bits, field};
use crate::cm::types::RejectReason;
use arrayvec::ArrayVec;

/// MRA: message receipt acknowledgement; its sender needs more time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Mra {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    /// The message whose answer is delayed: 0 for REQ, 1 for REP.
    pub(in crate::cm) mraed: u8,
    /// The delay, as a code.
    pub(in crate::cm) service_timeout: u8,
    pub(in crate::cm) private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Mra {
    pub(in crate::cm) const PRIVATE: usize = 222;
    pub(in crate::cm) const REQ: u8 = 0;
    pub(in crate::cm) const REP: u8 = 1;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Mra, tid, self.local_comm_id, self.remote_comm_id);
        MESSAGE.write(&mut bytes, self.mraed.into());
        SERVICE_TIMEOUT.write(&mut bytes, self.service_timeout.into());
        mad::put(&mut bytes, MRA_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            local_comm_id: LOCAL_COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            mraed: MESSAGE.u8(bytes),
            service_timeout: SERVICE_TIMEOUT.u8(bytes),
            private: mad::vec_at(bytes, MRA_PRIVATE),
        }
    }
}

/// Kind of message that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(in crate::cm) enum Rejected {
    Req = 0,
    Rep = 1,
    Other = 2,
}

/// REJ: rejection of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Rej {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    pub(in crate::cm) rejected: Rejected,
    pub(in crate::cm) reason: RejectReason,
    pub(in crate::cm) ari: ArrayVec<u8, { Self::ARI }>,
    pub(in crate::cm) private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Rej {
    pub(in crate::cm) const ARI: usize = 72;
    pub(in crate::cm) const PRIVATE: usize = 148;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Rej, tid, self.local_comm_id, self.remote_comm_id);
        MESSAGE.write(&mut bytes, self.rejected as u64);
        INFO_LEN.write(&mut bytes, self.ari.len() as u64);
        REASON.write(&mut bytes, self.reason.0.into());
        mad::put(&mut bytes, ARI, &self.ari);
        mad::put(&mut bytes, REJ_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        let mut ari: ArrayVec<u8, { Self::ARI }> = mad::vec_at(bytes, ARI);
        ari.truncate(INFO_LEN.read(bytes) as usize);
        Self {
            local_comm_id: LOCAL_COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            rejected: match MESSAGE.u8(bytes) {
                0 => Rejected::Req,
                1 => Rejected::Rep,
                _ => Rejected::Other,
            },
            reason: RejectReason(REASON.u16(bytes)),
            ari,
            private: mad::vec_at(bytes, REJ_PRIVATE),
        }
    }
}

/// RTU: ready to use; the connection is established.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Rtu {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    pub(in crate::cm) private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Rtu {
    pub(in crate::cm) const PRIVATE: usize = 224;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Rtu, tid, self.local_comm_id, self.remote_comm_id);
        mad::put(&mut bytes, SHORT_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            local_comm_id: LOCAL_COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            private: mad::vec_at(bytes, SHORT_PRIVATE),
        }
    }
}

/// DREQ: request to end a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Dreq {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    /// The receiver's QP.
    pub(in crate::cm) remote_qpn: u32,
    pub(in crate::cm) private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Dreq {
    pub(in crate::cm) const PRIVATE: usize = 220;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Dreq, tid, self.local_comm_id, self.remote_comm_id);
        REMOTE_QPN.write(&mut bytes, self.remote_qpn.into());
        mad::put(&mut bytes, DREQ_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            local_comm_id: LOCAL_COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            remote_qpn: REMOTE_QPN.u32(bytes),
            private: mad::vec_at(bytes, DREQ_PRIVATE),
        }
    }
}

/// DREP: reply to DREQ; the connection has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Drep {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    pub(in crate::cm) private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Drep {
    pub(in crate::cm) const PRIVATE: usize = 224;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Drep, tid, self.local_comm_id, self.remote_comm_id);
        mad::put(&mut bytes, SHORT_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            local_comm_id: LOCAL_COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            private: mad::vec_at(bytes, SHORT_PRIVATE),
        }
    }
}

/// LAP: proposal of an alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Lap {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
}

impl Lap {
    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self { local_comm_id: LOCAL_COMM_ID.u32(bytes), remote_comm_id: REMOTE_COMM_ID.u32(bytes) }
    }
}

/// APR: answer to a proposed alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cm) struct Apr {
    pub(in crate::cm) local_comm_id: u32,
    pub(in crate::cm) remote_comm_id: u32,
    pub(in crate::cm) status: u8,
}

impl Apr {
    /// Other paths are not supported.
    pub(in crate::cm) const UNSUPPORTED: u8 = 2;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = with_ids(Kind::Apr, tid, self.local_comm_id, self.remote_comm_id);
        APR_STATUS.write(&mut bytes, self.status.into());
        bytes
    }
}

fn with_ids(kind: Kind, tid: u64, local: u32, remote: u32) -> Bytes {
    let mut bytes = mad::new(kind, tid);
    LOCAL_COMM_ID.write(&mut bytes, local.into());
    REMOTE_COMM_ID.write(&mut bytes, remote.into());
    bytes
}

const LOCAL_COMM_ID: Field = field(0, 32);
const REMOTE_COMM_ID: Field = field(4, 32);
const SHORT_PRIVATE: usize = 8;
/// Of MRA and REJ: the message that it is about.
const MESSAGE: Field = bits(8, 0, 2);
const SERVICE_TIMEOUT: Field = bits(9, 0, 5);
const MRA_PRIVATE: usize = 10;
const INFO_LEN: Field = bits(9, 0, 7);
const REASON: Field = field(10, 16);
const ARI: usize = 12;
const REJ_PRIVATE: usize = 84;
const REMOTE_QPN: Field = field(8, 24);
const DREQ_PRIVATE: usize = 12;
const APR_STATUS: Field = field(9, 8);
