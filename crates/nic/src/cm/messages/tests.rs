//! Tests of the messages that the capture of real hosts does not contain: each field is at the position that IBA gives.

use super::*;
use crate::cm::mad::{Bytes, Kind, kind};
use crate::cm::types::RejectReason;
use proptest::prelude::*;
use rdmesh_verbs::{Qkey, Qpn};

const IDS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 2];

/// The message after its header.
fn body(bytes: &Bytes) -> &[u8] {
    &bytes[24..]
}

#[test]
fn mra_is_laid_out_as_iba_has_it() {
    let private = [7; 3].into_iter().collect();
    let mra = Mra { local_comm_id: 1, remote_comm_id: 2, mraed: 1, service_timeout: 24, private };
    let bytes = mra.encode(5);
    assert_eq!(kind(&bytes), Some(Kind::Mra));
    assert_eq!(body(&bytes)[..14], [&IDS[..], &[0x40, 24 << 3, 7, 7, 7, 0]].concat());
}

#[test]
fn rej_is_laid_out_as_iba_has_it() {
    let rej = Rej {
        local_comm_id: 1,
        remote_comm_id: 2,
        rejected: Rejected::Other,
        reason: RejectReason::CONSUMER_DEFINED,
        ari: [3; 8].into_iter().collect(),
        private: [4; 148].into_iter().collect(),
    };
    let bytes = rej.encode(5);
    assert_eq!(body(&bytes)[..13], [&IDS[..], &[0x80, 8 << 1, 0, 28, 3]].concat());
    assert_eq!(body(&bytes)[83..85], [0, 4]);
    assert_eq!(Rej::decode(&bytes), rej);
}

#[test]
fn apr_is_laid_out_as_iba_has_it() {
    let bytes = Apr { local_comm_id: 1, remote_comm_id: 2, status: Apr::UNSUPPORTED }.encode(5);
    assert_eq!(kind(&bytes), Some(Kind::Apr));
    assert_eq!(body(&bytes)[..11], [&IDS[..], &[0, 2, 0]].concat());
}

#[test]
fn questions_are_laid_out_as_iba_has_them() {
    let private = [6; 216].into_iter().collect();
    let bytes = SidrReq { request_id: 1, pkey: 0x8001, service_id: 0x0102_0304_0506_0708, private }.encode(5);
    assert_eq!(body(&bytes)[..17], [0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 6]);
    let rep = SidrRep {
        request_id: 1,
        status: 3,
        qpn: Qpn::new(0x01_0203),
        service_id: 0x0102_0304_0506_0708,
        qkey: Qkey(0x0a0b_0c0d),
        info: [5; 2].into_iter().collect(),
        private: [6; 136].into_iter().collect(),
    };
    let bytes = rep.encode(5);
    let start = [0, 0, 0, 1, 3, 2, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 5, 5, 0];
    assert_eq!(body(&bytes)[..27], start);
    assert_eq!(body(&bytes)[95..97], [0, 6]);
    assert_eq!(SidrRep::decode(&bytes), rep);
}

proptest! {
    /// Reading and writing again changes nothing that is read.
    #[test]
    fn whatever_is_read_is_written_as_the_same(noise in proptest::collection::vec(any::<u8>(), 232)) {
        let mut bytes = crate::cm::mad::new(Kind::Req, 5);
        bytes[24..].copy_from_slice(&noise);
        if let Ok(req) = Req::decode(&bytes) {
            prop_assert_eq!(Req::decode(&req.encode(1)), Ok(req));
        }
        let (rep, rej, mra) = (Rep::decode(&bytes), Rej::decode(&bytes), Mra::decode(&bytes));
        prop_assert_eq!(Rep::decode(&rep.encode(1)), rep);
        prop_assert_eq!(Rej::decode(&rej.encode(1)), rej);
        prop_assert_eq!(Mra::decode(&mra.encode(1)), mra);
        let (rtu, dreq, drep) = (Rtu::decode(&bytes), Dreq::decode(&bytes), Drep::decode(&bytes));
        prop_assert_eq!(Rtu::decode(&rtu.encode(1)), rtu);
        prop_assert_eq!(Dreq::decode(&dreq.encode(1)), dreq);
        prop_assert_eq!(Drep::decode(&drep.encode(1)), drep);
        let (question, answer) = (SidrReq::decode(&bytes), SidrRep::decode(&bytes));
        prop_assert_eq!(SidrReq::decode(&question.encode(1)), question);
        prop_assert_eq!(SidrRep::decode(&answer.encode(1)), answer);
    }
}
