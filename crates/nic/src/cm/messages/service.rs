//! SIDR messages (service ID resolution): lookup of the QP that serves a datagram service (IBA 12.11).

use crate::cm::mad::{self, Bytes, Field, Kind, field};
use arrayvec::ArrayVec;
use rdmesh_verbs::{Qkey, Qpn};

/// SIDR_REQ: service ID resolution request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's request ID.
    pub request_id: u32,
    /// Partition.
    pub pkey: u16,
    /// The service wanted.
    pub service_id: u64,
    /// From the owner.
    pub private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl SidrReq {
    /// Room for private data.
    pub const PRIVATE: usize = 216;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = mad::new(Kind::SidrReq, tid);
        REQUEST_ID.write(&mut bytes, self.request_id.into());
        REQ_PKEY.write(&mut bytes, self.pkey.into());
        REQ_SERVICE_ID.write(&mut bytes, self.service_id);
        mad::put(&mut bytes, REQ_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            request_id: REQUEST_ID.u32(bytes),
            pkey: REQ_PKEY.u16(bytes),
            service_id: REQ_SERVICE_ID.read(bytes),
            private: mad::vec_at(bytes, REQ_PRIVATE),
        }
    }
}

/// SIDR_REP: service ID resolution response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The requester's request ID.
    pub request_id: u32,
    /// 0 found, 1 no such service, 2 rejected, 3 no QP (`enum ib_cm_sidr_status`).
    pub status: u8,
    /// The QP of the service.
    pub qpn: Qpn,
    /// The service.
    pub service_id: u64,
    /// The Q_Key of the QP.
    pub qkey: Qkey,
    /// More about the status.
    pub info: ArrayVec<u8, 72>,
    /// From the owner.
    pub private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl SidrRep {
    /// Room for private data.
    pub const PRIVATE: usize = 136;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = mad::new(Kind::SidrRep, tid);
        REQUEST_ID.write(&mut bytes, self.request_id.into());
        STATUS.write(&mut bytes, self.status.into());
        INFO_LEN.write(&mut bytes, self.info.len() as u64);
        QPN.write(&mut bytes, self.qpn.value().into());
        SERVICE_ID.write(&mut bytes, self.service_id);
        QKEY.write(&mut bytes, self.qkey.0.into());
        mad::put(&mut bytes, INFO, &self.info);
        mad::put(&mut bytes, REP_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        let mut info: ArrayVec<u8, 72> = mad::vec_at(bytes, INFO);
        info.truncate(INFO_LEN.read(bytes) as usize);
        Self {
            request_id: REQUEST_ID.u32(bytes),
            status: STATUS.u8(bytes),
            qpn: Qpn::new(QPN.u32(bytes)),
            service_id: SERVICE_ID.read(bytes),
            qkey: Qkey(QKEY.u32(bytes)),
            info,
            private: mad::vec_at(bytes, REP_PRIVATE),
        }
    }
}

const REQUEST_ID: Field = field(0, 32);
const REQ_PKEY: Field = field(4, 16);
const REQ_SERVICE_ID: Field = field(8, 64);
const REQ_PRIVATE: usize = 16;
const STATUS: Field = field(4, 8);
const INFO_LEN: Field = field(5, 8);
const QPN: Field = field(8, 24);
const SERVICE_ID: Field = field(12, 64);
const QKEY: Field = field(20, 32);
const INFO: usize = 24;
const REP_PRIVATE: usize = 96;
