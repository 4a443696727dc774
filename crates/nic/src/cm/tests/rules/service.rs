//! Tests of service ID resolution (SIDR).

use super::*;

#[test]
fn a_question_is_answered() {
    let mut two = Two::new();
    let a = two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    two.run();
    let Some((b, Event::ServiceRequest { sidr, path: from })) = two.b.poll_event() else { panic!("no question") };
    assert_eq!((from, sidr.service_id, &sidr.private[..5]), (path(B, A), 0x111_0001, &b"who?\0"[..]));
    two.b.answer_service(two.now, b, &found()).unwrap();
    assert_eq!((two.b.counters().live, two.b.info(b)), (0, None));
    two.run();
    let Some((id, Event::ServiceResolved(rep))) = two.a.poll_event() else { panic!("no answer") };
    assert_eq!((id, rep.status, rep.qpn, rep.qkey), (a, 0, Qpn::new(9), rdmesh_verbs::Qkey(0x0123_4567)));
    assert_eq!((&rep.private[..3], two.a.poll_timeout()), (&b"me\0"[..], None));
    two.a.destroy(two.now, a);
    assert!(two.a.exchange.table().is_empty() && two.b.exchange.table().is_empty());
}

#[test]
fn a_repeated_question_is_told_once() {
    let mut two = Two::new();
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    two.run();
    two.wait(Duration::from_millis(10));
    two.run();
    assert_eq!(events(&mut two.b).len(), 1);
    assert_eq!(two.b.counters().duplicate[Kind::SidrReq.index()], 1);
}

#[test]
fn a_question_without_answer_ends() {
    let mut two = Two::new();
    let a = two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    for _ in 0..4 {
        assert_eq!((kinds(&all(&mut two.a)), two.a.poll_event()), (vec![Kind::SidrReq], None));
        two.wait(Duration::from_millis(10));
    }
    assert_eq!(two.a.poll_event(), Some((a, Event::Unreachable)));
}

#[test]
fn a_forgotten_question_comes_again() {
    let mut two = Two::new();
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    two.run();
    let (b, _) = two.b.poll_event().unwrap();
    two.b.forget(b);
    assert!(two.b.poll_mad().is_none() && two.b.exchange.table().is_empty());
    two.wait(Duration::from_millis(10));
    two.run();
    assert!(matches!(two.b.poll_event(), Some((_, Event::ServiceRequest { .. }))));
}

#[test]
fn a_question_given_up_is_refused() {
    let mut two = Two::new();
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    two.run();
    let (b, _) = two.b.poll_event().unwrap();
    two.b.destroy(two.now, b);
    two.run();
    assert!(matches!(two.a.poll_event(), Some((_, Event::ServiceResolved(rep))) if rep.status == 2));
}

#[test]
fn an_answer_from_elsewhere_is_none() {
    let mut two = Two::new();
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    two.run();
    let (b, _) = two.b.poll_event().unwrap();
    two.b.answer_service(two.now, b, &found()).unwrap();
    let mad = mirrored(one(&mut two.b));
    two.a.handle_mad(two.now, &Mad { path: path(A, gid(3)), ..mad });
    assert_eq!(two.a.poll_event(), None);
    two.a.handle_mad(two.now, &mad);
    assert!(two.a.poll_event().is_some());
}
