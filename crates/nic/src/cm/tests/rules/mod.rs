//! Tests of single rules of the connection protocol.

mod ends;
mod service;

use super::world::*;
use crate::cm::messages::{Mra, Rej, Rejected};
use crate::cm::*;
use crate::path::{ExternalId, ExternalPort};
use core::time::Duration;
use rdmesh_verbs::{Psn, QpType, Qpn, Vni};

const LONG: Duration = Duration::from_secs(3600);
/// A little more than the interval at which A repeats its REQ.
const REQ_INTERVAL: Duration = Duration::from_millis(26);

#[test]
fn both_ends_learn_what_to_tell_their_qps() {
    let (two, a, b) = Two::connected();
    let (active, passive) = (two.a.info(a).unwrap(), two.b.info(b).unwrap());
    assert_eq!((active.state, passive.state), (CmState::Established, CmState::Established));
    assert_eq!((active.is_active, passive.is_active), (true, false));
    assert_eq!((active.local_qpn, active.remote_qpn), (Qpn::new(0x11), Qpn::new(0x22)));
    assert_eq!((passive.local_qpn, passive.remote_qpn), (Qpn::new(0x22), Qpn::new(0x11)));
    assert_eq!((active.rq_psn, active.sq_psn), (Psn::new(0x79_8a3d), Psn::new(0x1e_0236)));
    assert_eq!((passive.rq_psn, passive.sq_psn), (active.sq_psn, active.rq_psn));
    // B answers 2 at a time and asks for 3.
    assert_eq!((active.initiator_depth, active.responder_resources), (2, 3));
    assert_eq!((passive.initiator_depth, passive.responder_resources), (3, 2));
    // Each end retries as often as the other one says.
    assert_eq!((active.rnr_retry_count, passive.rnr_retry_count), (5, 6));
    assert_eq!((active.retry_count, passive.retry_count), (7, 7));
    assert_eq!((active.ack_timeout, passive.ack_timeout), (15, 11));
    assert_eq!((active.srq, passive.srq), (true, false));
    assert_eq!((passive.flow_label, passive.hop_limit), (0x9_5a8e, 64));
}

#[test]
fn the_passive_end_is_offered_what_the_active_one_has() {
    let (two, _, b) = Two::asked();
    let info = two.b.info(b).unwrap();
    assert_eq!((info.initiator_depth, info.responder_resources), (4, 2));
    assert_eq!((info.state, info.local_qpn), (CmState::ReqRcvd, Qpn::new(0)));
}

#[test]
fn uc_is_connected_and_ud_is_not() {
    let mut two = Two::new();
    let (uc, ud) = (ReqParams { qp_type: QpType::Uc, ..req() }, ReqParams { qp_type: QpType::Ud, ..req() });
    assert_eq!(two.a.connect(two.now, path(A, B), &ud), Err(CmError::QpType));
    two.a.connect(two.now, path(A, B), &uc).unwrap();
    two.run();
    let (id, _) = two.b.poll_event().unwrap();
    assert_eq!(two.b.info(id).map(|info| info.qp_type), Some(QpType::Uc));
}

#[test]
fn a_request_is_repeated_until_the_retries_are_used_up() {
    let mut two = Two::new();
    let id = two.a.connect(two.now, path(A, B), &req()).unwrap();
    let first = one(&mut two.a);
    for _ in 0..15 {
        two.wait(REQ_INTERVAL);
        assert_eq!(one(&mut two.a), first);
    }
    assert_eq!(two.a.poll_event(), None);
    two.wait(REQ_INTERVAL);
    assert_eq!(two.a.poll_event(), Some((id, Event::Unreachable)));
    assert_eq!(kinds(&all(&mut two.a)), [Kind::Rej]);
    assert_eq!(two.a.poll_timeout(), None);
    let counters = two.a.counters();
    assert_eq!((counters.sent[Kind::Req.index()], counters.retried[Kind::Req.index()]), (1, 15));
    two.a.destroy(two.now, id);
    assert_eq!((two.a.counters().live, two.a.info(id)), (0, None));
}

#[test]
fn the_interval_is_the_peers_time_to_answer_and_the_way_there_and_back() {
    let mut cm = Cm::new(1);
    cm.connect(crate::Time(0), path(A, B), &req()).unwrap();
    assert_eq!(cm.poll_timeout(), Some(crate::Time((4096 << 12) + 2 * (4096 << 10))));
}

#[test]
fn a_reply_is_repeated_until_the_retries_are_used_up() {
    let (mut two, _, b) = Two::asked();
    two.b.accept(two.now, b, &rep()).unwrap();
    let first = one(&mut two.b);
    for _ in 0..15 {
        two.wait(Duration::from_millis(17));
        assert_eq!(one(&mut two.b), first);
    }
    two.wait(Duration::from_millis(17));
    assert_eq!(two.b.poll_event(), Some((b, Event::Unreachable)));
}

#[test]
fn a_lost_reply_is_sent_again_for_a_repeated_request() {
    let (mut two, _, b) = Two::asked();
    two.b.accept(two.now, b, &rep()).unwrap();
    let lost = one(&mut two.b);
    two.a.handle_timeout(two.now.after(REQ_INTERVAL));
    two.b.handle_mad(two.now, &mirrored(one(&mut two.a)));
    assert_eq!(one(&mut two.b), lost);
    assert_eq!(two.b.counters().duplicate[Kind::Req.index()], 1);
}

#[test]
fn a_repeated_request_that_the_owner_has_not_answered_is_no_news() {
    let (mut two, _, _) = Two::asked();
    two.wait(REQ_INTERVAL);
    two.run();
    assert_eq!((two.b.poll_event(), two.b.counters().live), (None, 1));
}

#[test]
fn a_lost_rtu_is_sent_again_for_a_repeated_reply() {
    let (mut two, a, b) = Two::replied();
    two.a.ready(two.now, a, b"go").unwrap();
    let lost = one(&mut two.a);
    two.wait(Duration::from_millis(17));
    two.a.handle_mad(two.now, &mirrored(one(&mut two.b)));
    assert_eq!(one(&mut two.a), lost);
    two.b.handle_mad(two.now, &mirrored(lost));
    let Some((id, Event::Established { private })) = two.b.poll_event() else { panic!("not established") };
    assert_eq!((id, &private[..3]), (b, &b"go\0"[..]));
    two.b.handle_mad(two.now, &mirrored(lost));
    assert_eq!((two.b.poll_event(), two.b.poll_timeout()), (None, None));
}

#[test]
fn data_before_rtu_is_as_good_as_rtu() {
    let (mut two, a, b) = Two::replied();
    two.b.notify_established(two.now, b).unwrap();
    assert_eq!((two.b.poll_event(), two.b.poll_timeout()), (None, None));
    assert_eq!(two.b.notify_established(two.now, b), Err(CmError::State(CmState::Established)));
    two.a.ready(two.now, a, b"").unwrap();
    two.run();
    assert_eq!(two.b.poll_event(), None);
    assert_eq!(two.states(a, b), (Some(CmState::Established), Some(CmState::Established)));
}

#[test]
fn more_time_is_given_once() {
    let (mut two, a, b) = Two::asked();
    two.b.prepare(two.now, b, 20, b"").unwrap();
    two.run();
    assert_eq!(two.states(a, b), (Some(CmState::MraReqRcvd), Some(CmState::MraReqSent)));
    let deadline = two.now.after(Duration::from_nanos((4096 << 20) + (4096 << 11)));
    assert_eq!(two.a.poll_timeout(), Some(deadline));
    two.now = deadline;
    two.wait(Duration::ZERO);
    // The request is repeated, and so is the answer to it, which changes nothing now.
    two.run();
    assert_eq!(two.a.counters().duplicate[Kind::Mra.index()], 1);
    two.b.accept(two.now, b, &rep()).unwrap();
    two.run();
    assert!(matches!(two.a.poll_event(), Some((_, Event::Reply(_)))));
}

#[test]
fn more_time_is_asked_for_only_when_the_peer_repeats_itself() {
    let (mut two, a, b) = Two::asked();
    two.b.prepare(two.now, b, 0x80 | 24, b"").unwrap();
    assert_eq!(two.b.poll_mad(), None);
    two.wait(REQ_INTERVAL);
    two.run();
    assert_eq!(two.states(a, b).0, Some(CmState::MraReqRcvd));
    two.b.accept(two.now, b, &rep()).unwrap();
    two.run();
    assert!(matches!(two.a.poll_event(), Some((_, Event::Reply(_)))));

    two.a.prepare(two.now, a, 20, b"").unwrap();
    two.run();
    assert_eq!(two.states(a, b), (Some(CmState::MraRepSent), Some(CmState::MraRepRcvd)));
    two.a.ready(two.now, a, b"").unwrap();
    two.run();
    assert_eq!(two.states(a, b), (Some(CmState::Established), Some(CmState::Established)));
}

#[test]
fn a_peer_cannot_ask_for_more_time_than_linux_asks_for() {
    let (mut two, a, _) = Two::asked();
    let mra = |service_timeout| Mra {
        local_comm_id: 1,
        remote_comm_id: a.0,
        mraed: Mra::REQ,
        service_timeout,
        private: Default::default(),
    };
    two.a.handle_mad(two.now, &Mad { path: path(A, B), bytes: mra(31).encode(0) });
    assert!(two.a.poll_timeout().unwrap() < two.now.after(Duration::from_secs(70)));
}

#[test]
fn private_data_must_fit() {
    let mut two = Two::new();
    let too_long = ReqParams { private: &[0; 93], ..req() };
    assert_eq!(two.a.connect(two.now, path(A, B), &too_long), Err(CmError::TooLong));
    assert_eq!(two.a.counters().live, 0);
    let (mut two, a, b) = Two::replied();
    assert_eq!(two.a.ready(two.now, a, &[0; 225]), Err(CmError::TooLong));
    assert_eq!(two.b.accept(two.now, b, &rep()), Err(CmError::State(CmState::RepSent)));
    assert_eq!(two.b.ready(two.now, a, &[]), Err(CmError::Unknown));
    two.a.ready(two.now, a, &[0; 224]).unwrap();
}

#[test]
fn a_request_for_another_transport_or_mtu_or_gid_is_refused() {
    let mut two = Two::new();
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    let good = mirrored(one(&mut two.a));
    for (at, value, reason) in [
        (24 + 43, 0x04, RejectReason::INVALID_TRANSPORT_TYPE),
        (24 + 43, 0x06, RejectReason::INVALID_TRANSPORT_TYPE),
        (24 + 50, 0x00, RejectReason::INVALID_MTU),
        (24 + 50, 0x60, RejectReason::INVALID_MTU),
        (24 + 56 + 15, 9, RejectReason::INVALID_GID),
        (24 + 72 + 15, 9, RejectReason::INVALID_GID),
    ] {
        let mut bad = good;
        bad.bytes[at] = value;
        two.b.handle_mad(two.now, &bad);
        let rej = Rej::decode(&one(&mut two.b).bytes);
        assert_eq!((rej.rejected, rej.reason), (Rejected::Req, reason));
    }
    assert_eq!((two.b.poll_event(), two.b.counters().live), (None, 0));
}

#[test]
fn a_message_counts_only_on_its_connections_path() {
    let (mut two, a, b) = Two::replied();
    two.a.ready(two.now, a, b"").unwrap();
    let rtu = mirrored(one(&mut two.a));
    for other in [
        CmPath { vni: Vni(8), ..rtu.path },
        CmPath { local: gid(9), ..rtu.path },
        CmPath { remote: gid(9), ..rtu.path },
        CmPath { local: rtu.path.remote, remote: rtu.path.local, ..rtu.path },
    ] {
        two.b.handle_mad(two.now, &Mad { path: other, ..rtu });
        assert_eq!(two.b.info(b).map(|info| info.state), Some(CmState::RepSent));
    }
    // The external path is no part of it.
    let external = Some(ExternalPort { id: ExternalId(1), source_port: 9 });
    two.b.handle_mad(two.now, &Mad { path: CmPath { external, ..rtu.path }, ..rtu });
    assert_eq!(two.b.info(b).map(|info| info.state), Some(CmState::Established));
}

#[test]
fn answers_go_back_the_way_that_the_request_came() {
    let mut two = Two::new();
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    let mut mad = mirrored(one(&mut two.a));
    mad.path.external = Some(ExternalPort { id: ExternalId(1), source_port: 9 });
    two.b.handle_mad(two.now, &mad);
    let (b, _) = two.b.poll_event().unwrap();
    two.b.accept(two.now, b, &rep()).unwrap();
    assert_eq!(one(&mut two.b).path, mad.path);
}

#[test]
fn one_endpoint_connects_to_itself() {
    let (mut cm, now) = (Cm::new(5), crate::Time(0));
    let carry = |cm: &mut Cm| all(cm).into_iter().for_each(|mad| cm.handle_mad(now, &mirrored(mad)));
    let a = cm.connect(now, path(A, A), &req()).unwrap();
    carry(&mut cm);
    let Some((b, Event::Request { .. })) = cm.poll_event() else { panic!("no request") };
    cm.accept(now, b, &RepParams { ca_guid: guid(1), ..rep() }).unwrap();
    carry(&mut cm);
    assert!(matches!(cm.poll_event(), Some((id, Event::Reply(_))) if id == a));
    cm.ready(now, a, b"").unwrap();
    carry(&mut cm);
    assert!(matches!(cm.poll_event(), Some((id, Event::Established { .. })) if id == b));
    cm.disconnect(now, b, b"").unwrap();
    carry(&mut cm);
    assert!(matches!(cm.poll_event(), Some((id, Event::DisconnectRequested { .. })) if id == a));
    cm.disconnect(now, a, b"").unwrap();
    carry(&mut cm);
    assert_eq!(cm.poll_event(), Some((b, Event::Disconnected)));
    cm.handle_timeout(now.after(LONG));
    assert_eq!(events(&mut cm).len(), 2);
    cm.destroy(now, a);
    cm.destroy(now, b);
    assert!(cm.exchange.table().is_empty());
}

/// Connects this many times, all from the same side. `tests/tests/counts.rs` counts the instructions.
#[inline(never)]
fn counted_connections(two: &mut Two, count: u32) -> Vec<(CommId, CommId)> {
    let connect = |n: u32| {
        let params = ReqParams { qpn: Qpn::new(n + 2), ..req() };
        let a = two.a.connect(two.now, path(A, B), &params).unwrap();
        two.run();
        let (b, _) = two.b.poll_event().unwrap();
        two.b.accept(two.now, b, &RepParams { qpn: Qpn::new(n + 2), ..rep() }).unwrap();
        two.run();
        assert!(matches!(two.a.poll_event(), Some((_, Event::Reply(_)))));
        two.a.ready(two.now, a, b"").unwrap();
        two.run();
        assert!(two.b.poll_event().is_some());
        (a, b)
    };
    (0..count).map(connect).collect()
}

#[test]
fn a_thousand_connections_live_at_once() {
    let mut two = Two::new();
    counted_connections(&mut two, 1000);
    assert_eq!(two.a.counters().live, 1000);
}

#[test]
fn ten_thousand_connections_live_at_once() {
    let mut two = Two::new();
    let ids = counted_connections(&mut two, 10_000);
    assert_eq!((two.a.counters().live, two.a.poll_timeout()), (10_000, None));
    for (a, b) in ids {
        two.a.destroy(two.now, a);
        two.run();
        two.b.destroy(two.now, b);
    }
    two.run();
    assert_eq!((two.a.counters().time_wait, two.b.counters().time_wait), (10_000, 10_000));
    two.wait(LONG);
    assert!(two.a.exchange.table().is_empty() && two.b.exchange.table().is_empty());
}
