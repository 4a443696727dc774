//! Tests with hostile peers: noise, malformed messages, floods, and identifiers of other tenants.

use super::world::*;
use crate::cm::table::{MAX_ORPHANS, MAX_PENDING, MAX_TIME_WAITS};
use crate::cm::*;
use crate::timer::Time;
use core::time::Duration;
use rdmesh_verbs::{Gid, Qpn};

/// One message of every kind that two ends say to each other, as B or A hears it.
fn real_messages() -> (Two, Vec<Mad>) {
    let mut two = Two::new();
    let mut heard = Vec::new();
    let mut carry = |two: &mut Two| {
        for _ in 0..3 {
            for mad in all(&mut two.a).into_iter().map(mirrored) {
                heard.push(mad);
                two.b.handle_mad(two.now, &mad);
            }
            for mad in all(&mut two.b).into_iter().map(mirrored) {
                heard.push(mad);
                two.a.handle_mad(two.now, &mad);
            }
        }
    };
    for n in 0..4 {
        let a = two.a.connect(two.now, path(A, B), &ReqParams { qpn: Qpn::new(16 + n), ..req() }).unwrap();
        carry(&mut two);
        let (b, _) = two.b.poll_event().unwrap();
        two.b.prepare(two.now, b, 10, b"").unwrap();
        carry(&mut two);
        two.b.accept(two.now, b, &RepParams { qpn: Qpn::new(32 + n), ..rep() }).unwrap();
        carry(&mut two);
        events(&mut two.a);
        match n {
            0 => two.a.reject(two.now, a, RejectReason::CONSUMER_DEFINED, b"", b"").unwrap(),
            1 => two.a.ready(two.now, a, b"").unwrap(),
            2 => {
                two.a.ready(two.now, a, b"").unwrap();
                carry(&mut two);
                two.a.disconnect(two.now, a, b"").unwrap();
                carry(&mut two);
                two.b.disconnect(two.now, b, b"").unwrap();
            }
            _ => {}
        }
        carry(&mut two);
        events(&mut two.b);
    }
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    carry(&mut two);
    let (b, _) = two.b.poll_event().unwrap();
    two.b.answer_service(two.now, b, &found()).unwrap();
    carry(&mut two);
    events(&mut two.a);
    (two, heard)
}

#[test]
fn noise_is_neither_answered_nor_kept() {
    let (mut cm, mut dice) = (Cm::new(1), Dice(1));
    for _ in 0..20_000 {
        let mut bytes = [0; MAD_LEN];
        bytes.fill_with(|| dice.next() as u8);
        cm.handle_mad(Time(0), &Mad { path: path(B, A), bytes });
        assert_eq!((cm.poll_mad(), cm.poll_event()), (None, None));
    }
    assert_eq!((cm.counters().malformed, cm.exchange.table().is_empty()), (20_000, true));
}

#[test]
fn broken_messages_do_no_harm() {
    for seed in 0..300 {
        let (mut two, heard) = real_messages();
        let mut dice = Dice(seed);
        for _ in 0..200 {
            let mut mad = heard[dice.below(heard.len() as u64) as usize];
            for _ in 0..dice.below(4) {
                // Mostly the fields, seldom the header.
                let at = if dice.chance(5) { dice.below(24) } else { 16 + dice.below(100) } as usize;
                mad.bytes[at] = if dice.chance(50) { dice.next() as u8 } else { mad.bytes[at] ^ 1 << dice.below(8) };
            }
            if dice.chance(30) {
                mad.bytes[17] = 0x10 + dice.below(12) as u8;
            }
            let cm = if mad.path.local == A { &mut two.a } else { &mut two.b };
            cm.handle_mad(two.now, &mad);
            let answers = all(cm);
            // The second one is the DREQ of a stale connection, once in its life.
            assert!(answers.len() < 2 || kinds(&answers) == [Kind::Rej, Kind::Dreq], "{:?}", kinds(&answers));
            answers.iter().for_each(|answer| assert_eq!(answer.path, mad.path));
            for (id, event) in events(cm) {
                match event {
                    Event::Request { .. } if dice.chance(50) => cm.accept(two.now, id, &rep()).unwrap(),
                    Event::ServiceRequest { .. } if dice.chance(50) => {
                        cm.answer_service(two.now, id, &found()).unwrap();
                    }
                    _ if dice.chance(50) => cm.destroy(two.now, id),
                    _ => {}
                }
            }
            all(&mut two.a);
            all(&mut two.b);
            if dice.chance(10) {
                two.wait(Duration::from_millis(dice.below(40)));
                all(&mut two.a);
                all(&mut two.b);
            }
        }
        finish(&mut two.a, two.now);
        finish(&mut two.b, two.now);
    }
}

/// Gives up everything, and checks that nothing is left of it.
fn finish(cm: &mut Cm, mut now: Time) {
    cm.exchange.table().ids().into_iter().for_each(|id| cm.destroy(now, CommId(id)));
    for _ in 0..40 {
        now = now.after(Duration::from_secs(100));
        cm.handle_timeout(now);
        all(cm);
    }
    assert_eq!((cm.poll_event(), cm.poll_timeout()), (None, None));
    assert!(cm.exchange.table().is_empty());
}

#[test]
fn a_flood_of_requests_is_bounded_for_each_endpoint() {
    let mut two = Two::new();
    two.a.connect(two.now, path(A, B), &req()).unwrap();
    let good = mirrored(one(&mut two.a));
    let flood = |two: &mut Two, n: u32, to: Gid| {
        for n in 0..n {
            let mut mad = good;
            mad.path.local = to;
            mad::put(&mut mad.bytes, 0, &n.to_be_bytes());
            mad::put(&mut mad.bytes, 32, &n.to_be_bytes()[1..]);
            mad::put(&mut mad.bytes, 72, &to.0);
            two.b.handle_mad(two.now, &mad);
        }
    };
    flood(&mut two, 100_000, B);
    assert_eq!((two.b.counters().live, events(&mut two.b).len()), (MAX_PENDING, MAX_PENDING));
    assert_eq!((two.b.counters().overflow, two.b.poll_mad()), (100_000 - MAX_PENDING as u64, None));
    // The neighbour is still served.
    flood(&mut two, 1, gid(3));
    let (id, _) = two.b.poll_event().unwrap();
    two.b.accept(two.now, id, &rep()).unwrap();
    finish(&mut two.b, two.now);
}

#[test]
fn a_flood_of_questions_is_bounded() {
    let mut two = Two::new();
    two.a.resolve_service(two.now, path(A, B), &question()).unwrap();
    let mut mad = mirrored(one(&mut two.a));
    for n in 0..10_000u32 {
        mad::put(&mut mad.bytes, 0, &n.to_be_bytes());
        two.b.handle_mad(two.now, &mad);
    }
    assert_eq!(two.b.counters().live, MAX_PENDING);
    finish(&mut two.b, two.now);
}

#[test]
fn time_wait_is_bounded() {
    let mut two = Two::new();
    for n in 0..MAX_TIME_WAITS as u32 + 100 {
        let a = two.a.connect(two.now, path(A, B), &ReqParams { qpn: Qpn::new(n), ..req() }).unwrap();
        two.run();
        let (b, _) = two.b.poll_event().unwrap();
        two.b.accept(two.now, b, &rep()).unwrap();
        two.b.destroy(two.now, b);
        all(&mut two.b);
        two.a.destroy(two.now, a);
        all(&mut two.a);
    }
    assert_eq!((two.b.counters().time_wait, two.b.counters().live), (MAX_TIME_WAITS, MAX_TIME_WAITS));
    finish(&mut two.b, two.now);
}

#[test]
fn what_peers_without_an_answer_keep_alive_is_bounded() {
    let mut two = Two::new();
    let mut leave = |local: Gid, n: u32| {
        let a = two.a.connect(two.now, path(local, B), &ReqParams { qpn: Qpn::new(n), ..req() }).unwrap();
        two.run();
        let (b, _) = two.b.poll_event().unwrap();
        two.b.accept(two.now, b, &RepParams { qpn: Qpn::new(n), ..rep() }).unwrap();
        two.run();
        two.a.ready(two.now, a, b"").unwrap();
        two.run();
        events(&mut two.b);
        two.a.destroy(two.now, a);
        // Each is told once at least.
        assert_eq!(kinds(&all(&mut two.a)), [Kind::Dreq]);
        two.a.counters().live
    };
    let last = (0..MAX_ORPHANS as u32 + 100).map(|n| leave(A, n)).last();
    assert_eq!(last, Some(MAX_ORPHANS));
    assert_eq!(leave(gid(3), 0), MAX_ORPHANS + 1);
    finish(&mut two.a, two.now);
}

#[test]
fn a_peer_cannot_speak_for_another() {
    let (mut two, heard) = real_messages();
    let states = |cm: &Cm| -> Vec<_> {
        cm.exchange.table().ids().into_iter().map(|id| (id, cm.exchange.table().get(id).unwrap().state)).collect()
    };
    let before = (states(&two.a), states(&two.b));
    for mut mad in heard {
        if mad::kind(&mad.bytes).is_some_and(|kind| matches!(kind, Kind::Req | Kind::SidrReq)) {
            continue;
        }
        mad.path.remote = gid(66);
        two.a.handle_mad(two.now, &mad);
        mad.path.local = if mad.path.local == A { B } else { A };
        two.b.handle_mad(two.now, &mad);
    }
    assert_eq!((states(&two.a), states(&two.b)), before);
    assert_eq!((two.a.poll_event(), two.b.poll_event()), (None, None));
}
