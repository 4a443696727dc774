//! Tests of release: REJ, DREQ and DREP, TIME-WAIT, stale connections, and identifiers that are given up.

use super::*;
use crate::cm::messages::{Apr, Drep, Rep, Rtu};

#[test]
fn a_refused_request_says_why() {
    let (mut two, a, b) = Two::asked();
    two.b.reject(two.now, b, RejectReason::INVALID_SERVICE_ID, &[1, 2], b"no").unwrap();
    two.run();
    let Some((id, Event::Rejected { reason, ari, private })) = two.a.poll_event() else { panic!("not rejected") };
    assert_eq!((id, reason, &ari[..], &private[..3]), (a, RejectReason::INVALID_SERVICE_ID, &[1, 2][..], &b"no\0"[..]));
    assert_eq!(two.states(a, b), (Some(CmState::Idle), Some(CmState::Idle)));
    assert_eq!((two.a.poll_timeout(), two.b.poll_timeout()), (None, None));
}

#[test]
fn a_refused_reply_ends_in_time_wait() {
    let (mut two, a, b) = Two::replied();
    two.a.reject(two.now, a, RejectReason::CONSUMER_DEFINED, b"", b"").unwrap();
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::Rejected { .. }))));
    assert_eq!(two.states(a, b), (Some(CmState::TimeWait), Some(CmState::Idle)));
    two.wait(LONG);
    assert_eq!(two.a.poll_event(), Some((a, Event::TimeWaitExit)));
}

#[test]
fn an_established_connection_can_be_broken_off_by_the_peer() {
    let (mut two, a, b) = Two::replied();
    two.a.ready(two.now, a, b"").unwrap();
    let _lost = one(&mut two.a);
    two.b.destroy(two.now, b);
    two.run();
    assert!(matches!(two.a.poll_event(), Some((_, Event::Rejected { .. }))));
    assert_eq!(two.states(a, b), (Some(CmState::TimeWait), None));
}

#[test]
fn a_connection_ends_with_dreq_and_drep() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"bye").unwrap();
    two.run();
    let Some((_, Event::DisconnectRequested { private })) = two.b.poll_event() else { panic!("not asked") };
    assert_eq!(&private[..4], b"bye\0");
    two.b.disconnect(two.now, b, b"").unwrap();
    two.run();
    assert_eq!(two.a.poll_event(), Some((a, Event::Disconnected)));
    assert_eq!(two.states(a, b), (Some(CmState::TimeWait), Some(CmState::TimeWait)));
    assert_eq!(two.a.disconnect(two.now, a, b""), Err(CmError::State(CmState::TimeWait)));
    // A's code is 15, B's 11.
    assert_eq!(two.a.poll_timeout(), Some(two.now.after(Duration::from_nanos(4096 << 15))));
    assert_eq!(two.b.poll_timeout(), Some(two.now.after(Duration::from_nanos(4096 << 11))));
    two.wait(LONG);
    assert_eq!(two.a.poll_event(), Some((a, Event::TimeWaitExit)));
    assert_eq!(two.b.poll_event(), Some((b, Event::TimeWaitExit)));
    assert_eq!(two.states(a, b), (Some(CmState::Idle), Some(CmState::Idle)));
}

#[test]
fn a_lost_drep_is_sent_again_in_time_wait_and_after_it() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    let dreq = mirrored(one(&mut two.a));
    two.b.handle_mad(two.now, &dreq);
    two.b.handle_mad(two.now, &dreq);
    assert_eq!((events(&mut two.b).len(), two.b.poll_mad()), (1, None));
    two.b.disconnect(two.now, b, b"well").unwrap();
    let lost = one(&mut two.b);
    two.b.handle_mad(two.now, &dreq);
    assert_eq!(one(&mut two.b), lost);
    two.b.destroy(two.now, b);
    two.b.handle_timeout(two.now.after(LONG));
    assert!(two.b.exchange.table().is_empty());
    two.b.handle_mad(two.now, &dreq);
    let again = one(&mut two.b);
    let (old, new) = (Drep::decode(&lost.bytes), Drep::decode(&again.bytes));
    assert_eq!((old.local_comm_id, old.remote_comm_id), (new.local_comm_id, new.remote_comm_id));
    two.a.handle_mad(two.now, &mirrored(again));
    assert_eq!(two.a.poll_event(), Some((a, Event::Disconnected)));
}

#[test]
fn a_disconnect_without_answer_ends_too() {
    let (mut two, a, _) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    for _ in 0..=15 {
        assert_eq!(two.a.poll_event(), None);
        assert_eq!(kinds(&all(&mut two.a)), [Kind::Dreq]);
        two.wait(REQ_INTERVAL);
    }
    assert_eq!(two.a.poll_event(), Some((a, Event::DisconnectTimedOut)));
}

#[test]
fn both_may_disconnect_at_once() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    two.b.disconnect(two.now, b, b"").unwrap();
    two.run();
    assert_eq!(events(&mut two.a), [(a, Event::Disconnected)]);
    assert_eq!(events(&mut two.b), [(b, Event::Disconnected)]);
    assert_eq!(two.states(a, b), (Some(CmState::TimeWait), Some(CmState::TimeWait)));
}

#[test]
fn one_of_two_disconnects_is_enough() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    let _lost = one(&mut two.a);
    two.b.disconnect(two.now, b, b"").unwrap();
    two.a.handle_mad(two.now, &mirrored(one(&mut two.b)));
    let drep = one(&mut two.a);
    assert_eq!(kinds(&[drep]), [Kind::Drep]);
    two.b.handle_mad(two.now, &mirrored(drep));
    assert_eq!(events(&mut two.a), [(a, Event::Disconnected)]);
    assert_eq!(events(&mut two.b), [(b, Event::Disconnected)]);
}

#[test]
fn a_connection_given_up_here_does_not_make_the_next_one_stale() {
    let (mut two, a, b) = Two::connected();
    two.b.destroy(two.now, b);
    let _lost = one(&mut two.b);
    two.a.destroy(two.now, a);
    let _lost = one(&mut two.a);
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::Request { .. }))));
}

#[test]
fn a_dreq_for_another_qp_is_not_obeyed() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    let mut dreq = mirrored(one(&mut two.a));
    dreq.bytes[24 + 10] ^= 1;
    two.b.handle_mad(two.now, &dreq);
    assert_eq!((two.b.poll_event(), two.b.poll_mad()), (None, None));
    assert_eq!(two.states(a, b).1, Some(CmState::Established));
}

#[test]
fn a_disconnect_may_overtake_the_rtu() {
    let (mut two, a, b) = Two::replied();
    two.a.ready(two.now, a, b"").unwrap();
    let rtu = mirrored(one(&mut two.a));
    two.a.disconnect(two.now, a, b"").unwrap();
    two.run();
    assert!(matches!(events(&mut two.b)[..], [(_, Event::DisconnectRequested { .. })]));
    two.b.handle_mad(two.now, &rtu);
    assert_eq!((two.b.poll_event(), two.states(a, b).1), (None, Some(CmState::DreqRcvd)));
}

#[test]
fn time_wait_does_not_keep_the_qp_from_being_used_again() {
    let (mut two, a, b) = Two::connected();
    two.a.destroy(two.now, a);
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::DisconnectRequested { .. }))));
    // B's owner has not even agreed yet.
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::Request { .. }))));
    two.b.destroy(two.now, b);
    two.run();
    assert_eq!(two.a.counters().live, 2);
}

#[test]
fn a_repeated_request_in_time_wait_is_stale() {
    let (mut two, a, b) = Two::asked();
    two.wait(REQ_INTERVAL);
    let late = mirrored(one(&mut two.a));
    two.b.accept(two.now, b, &rep()).unwrap();
    let _lost = one(&mut two.b);
    two.b.destroy(two.now, b);
    // The refusal names an end that A has not heard of.
    two.run();
    assert_eq!(two.a.poll_event(), None);
    two.b.handle_mad(two.now, &late);
    two.run();
    let Some((_, Event::Rejected { reason, .. })) = two.a.poll_event() else { panic!("not rejected") };
    assert_eq!((reason, two.states(a, b).0), (RejectReason::STALE_CONNECTION, Some(CmState::TimeWait)));
    two.wait(LONG);
    assert_eq!(two.a.poll_event(), Some((a, Event::TimeWaitExit)));
}

#[test]
fn a_peer_that_forgot_a_connection_can_make_a_new_one() {
    let (mut two, a, b) = Two::connected();
    two.a = Cm::new(99);
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    two.run();
    let Some((_, Event::Rejected { reason, .. })) = two.a.poll_event() else { panic!("not rejected") };
    assert_eq!(reason, RejectReason::STALE_CONNECTION);
    // The new A has answered for the old one.
    assert_eq!(two.b.poll_event(), Some((b, Event::Disconnected)));
    assert_eq!(two.states(a, b), (None, Some(CmState::TimeWait)));
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::Request { .. }))));
}

#[test]
fn a_reply_with_the_qp_of_another_connection_is_stale() {
    let (mut two, _, old) = Two::connected();
    let a = two.a.connect(two.now, path(A, B), &ReqParams { qpn: Qpn::new(0x12), ..req() }).unwrap();
    two.b = Cm::new(98);
    two.run();
    let (b, _) = two.b.poll_event().unwrap();
    assert_ne!(b, old);
    two.b.accept(two.now, b, &rep()).unwrap();
    two.run();
    let Some((_, Event::Rejected { reason, .. })) = two.b.poll_event() else { panic!("not rejected") };
    assert_eq!(reason, RejectReason::STALE_CONNECTION);
    assert!(matches!(two.a.poll_event(), Some((id, Event::Disconnected)) if id != a));
    assert_eq!(two.a.info(a).map(|info| info.state), Some(CmState::ReqSent));
    assert_eq!(events(&mut two.b), []);
    two.wait(REQ_INTERVAL);
    two.b.handle_timeout(two.now);
    two.run();
    assert_eq!(two.b.poll_event(), Some((b, Event::TimeWaitExit)));
    // By now nothing is in the way.
    assert!(matches!(two.b.poll_event(), Some((id, Event::Request { .. })) if id != b));
}

#[test]
fn a_reply_to_an_unknown_identifier_is_refused() {
    let (mut two, a, b) = Two::asked();
    two.a.destroy(two.now, a);
    let lost = one(&mut two.a);
    assert_eq!(Rej::decode(&lost.bytes).reason, RejectReason::TIMEOUT);
    two.b.accept(two.now, b, &rep()).unwrap();
    two.run();
    let Some((_, Event::Rejected { reason, .. })) = two.b.poll_event() else { panic!("not rejected") };
    assert_eq!(reason, RejectReason::INVALID_COMM_ID);
}

#[test]
fn a_request_that_is_given_up_is_taken_back() {
    let (mut two, a, b) = Two::asked();
    two.a.destroy(two.now, a);
    two.run();
    let Some((id, Event::Rejected { reason, ari, .. })) = two.b.poll_event() else { panic!("not rejected") };
    assert_eq!((id, reason, &ari[..]), (b, RejectReason::TIMEOUT, &guid(1)[..]));
    assert_eq!(two.a.counters().live, 0);
}

#[test]
fn another_path_is_refused() {
    let (mut two, a, b) = Two::connected();
    two.a.disconnect(two.now, a, b"").unwrap();
    let mut lap = mirrored(one(&mut two.a));
    lap.bytes[17] = Kind::Lap as u8;
    two.b.handle_mad(two.now, &lap);
    let apr = Apr { local_comm_id: b.0, remote_comm_id: a.0, status: Apr::UNSUPPORTED };
    assert_eq!(one(&mut two.b).bytes, apr.encode(mad::tid(&lap.bytes)));
}

/// State at both ends after an id was destroyed, for each state that it was in.
#[test]
fn a_destroyed_id_is_dead_at_once_and_leaves_nothing() {
    type Start = fn() -> (Two, CommId, CommId);
    let disconnecting: Start = || {
        let (mut two, a, b) = Two::connected();
        two.a.disconnect(two.now, a, b"").unwrap();
        (two, a, b)
    };
    let asked_to: Start = || {
        let (mut two, a, b) = Two::connected();
        two.b.disconnect(two.now, b, b"").unwrap();
        two.run();
        (two, a, b)
    };
    let accepted: Start = || {
        let (mut two, a, b) = Two::asked();
        two.b.accept(two.now, b, &rep()).unwrap();
        (two, a, b)
    };
    for (n, start) in
        [Two::asked, Two::replied, Two::connected, disconnecting, asked_to, accepted].into_iter().enumerate()
    {
        for is_a_first in [false, true] {
            let (mut two, a, b) = start();
            let destroy_a = |two: &mut Two| {
                two.a.destroy(two.now, a);
                assert_eq!((two.a.info(a), two.a.poll_event()), (None, None));
                two.run();
            };
            if is_a_first {
                destroy_a(&mut two);
            }
            two.b.destroy(two.now, b);
            assert_eq!((two.b.info(b), two.b.poll_event()), (None, None));
            two.run();
            if !is_a_first {
                destroy_a(&mut two);
            }
            for _ in 0..20 {
                two.wait(LONG);
                two.run();
            }
            assert!(two.a.exchange.table().is_empty() && two.b.exchange.table().is_empty(), "{n} {is_a_first}");
            assert_eq!((two.a.poll_timeout(), two.b.poll_timeout()), (None, None));
            assert_eq!((two.a.poll_event(), two.b.poll_event()), (None, None));
        }
    }
}

#[test]
fn a_lost_dreq_of_a_destroyed_id_is_sent_again() {
    let (mut two, a, b) = Two::connected();
    two.a.destroy(two.now, a);
    let _lost = one(&mut two.a);
    two.wait(REQ_INTERVAL);
    two.run();
    assert!(matches!(two.b.poll_event(), Some((id, Event::DisconnectRequested { .. })) if id == b));
}

#[test]
fn what_an_owner_leaves_behind_is_done_soon() {
    // With the longest times that an owner can ask for; destroyed at once, or while it disconnects.
    let long_timeouts = ReqParams { remote_cm_response_timeout: 31, packet_life_time: 255, ..req() };
    for disconnects in [false, true] {
        let mut two = Two::new();
        let a = two.a.connect(two.now, path(A, B), &long_timeouts).unwrap();
        assert!(two.a.poll_timeout().unwrap() < two.now.after(Duration::from_secs(26)));
        two.run();
        let (b, _) = two.b.poll_event().unwrap();
        two.b.accept(two.now, b, &rep()).unwrap();
        two.run();
        two.a.ready(two.now, a, b"").unwrap();
        all(&mut two.a);
        if disconnects {
            two.a.disconnect(two.now, a, b"").unwrap();
        }
        two.a.destroy(two.now, a);
        for seconds in [1, 2, 4, 8] {
            assert_eq!(kinds(&all(&mut two.a)), [Kind::Dreq]);
            assert_eq!(two.a.poll_timeout(), Some(two.now.after(Duration::from_secs(seconds))));
            two.wait(Duration::from_secs(seconds));
        }
        assert_eq!((two.a.counters().time_wait, two.a.poll_mad()), (1, None));
    }
}

#[test]
fn a_forgotten_request_comes_again() {
    let (mut two, a, b) = Two::asked();
    two.b.forget(b);
    assert_eq!((two.b.info(b), two.b.poll_mad(), two.b.poll_timeout()), (None, None, None));
    assert!(two.b.exchange.table().is_empty());
    two.wait(REQ_INTERVAL);
    two.run();
    let (again, event) = two.b.poll_event().unwrap();
    assert!(matches!(event, Event::Request { .. }) && again != b);
    // The request was answered, so it is not forgotten.
    two.b.accept(two.now, again, &rep()).unwrap();
    two.b.forget(again);
    two.run();
    assert!(matches!(two.a.poll_event(), Some((id, Event::Reply(_))) if id == a));
    assert_eq!(two.states(a, again), (Some(CmState::RepRcvd), Some(CmState::RepSent)));
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let (mut two, a, b) = Two::asked();
    let (sent, asked) = (Err(CmError::State(CmState::ReqSent)), Err(CmError::State(CmState::ReqRcvd)));
    assert_eq!(two.a.ready(two.now, a, b""), sent);
    assert_eq!(two.a.accept(two.now, a, &rep()), sent);
    assert_eq!(two.a.prepare(two.now, a, 1, b""), sent);
    assert_eq!(two.a.disconnect(two.now, a, b""), sent);
    assert_eq!(two.a.answer_service(two.now, a, &found()), sent);
    assert_eq!(two.b.ready(two.now, b, b""), asked);
    assert_eq!(two.b.notify_established(two.now, b), asked);
    assert_eq!(two.b.disconnect(two.now, b, b""), asked);
    assert_eq!((two.a.poll_mad(), two.b.poll_mad()), (None, None));
    let rtu = Rtu { local_comm_id: a.0, remote_comm_id: b.0, private: Default::default() };
    two.b.handle_mad(two.now, &Mad { path: path(B, A), bytes: rtu.encode(1) });
    assert_eq!((two.b.poll_event(), two.states(a, b).1), (None, Some(CmState::ReqRcvd)));
}

#[test]
fn a_second_reply_does_not_replace_the_first() {
    let (mut two, a, _) = Two::replied();
    let before = two.a.info(a);
    let second = Rep {
        local_comm_id: 1,
        remote_comm_id: a.0,
        qkey: rdmesh_verbs::Qkey(0),
        qpn: Qpn::new(77),
        starting_psn: Psn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: 0,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 0,
        srq: false,
        ca_guid: guid(2),
        private: Default::default(),
    };
    two.a.handle_mad(two.now, &Mad { path: path(A, B), bytes: second.encode(1) });
    assert_eq!((two.a.info(a), two.a.poll_event()), (before, None));
}
