//! Tests of telemetry between two engines: who asks for it, who gets it, and who goes on without.

use super::world::*;
use crate::congestion::CongestionControl;
use crate::path::{NativeConfig, Routes};
use crate::timer::Time;
use crate::wire::{Header, Op, SelectiveAck, Telemetry, geneve, ip};
use rdmesh_verbs::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Mb/s.
const RATE: u32 = 10_000;

fn two_hosts(congestion: CongestionControl) -> World {
    World::of(2, 1, Some(Routes::default()), NativeConfig { congestion, link_rate: RATE, ..NativeConfig::default() })
}

/// Packets on the wire: whether they ask for telemetry, and what the selective acknowledgements tell.
#[derive(Default)]
struct Seen {
    asking: usize,
    requests: usize,
    plain: usize,
    told: Vec<Telemetry>,
}

fn watch(world: &mut World) -> Rc<RefCell<Seen>> {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let log = seen.clone();
    world.lose = Box::new(move |_, bytes| {
        let (_, inner) = geneve::decode(bytes).expect("the tunnel's header");
        let (header, payload) = Header::decode(ip::IpUdp::decode(inner).expect("an IP header").1).expect("a packet");
        let mut seen = log.borrow_mut();
        match (header.op, header.has_telemetry) {
            (Op::SelectiveAcknowledge, true) => {
                let (told, rest) = Telemetry::decode(payload).expect("telemetry");
                SelectiveAck::decode(rest).expect("what was acknowledged");
                seen.told.push(told);
            }
            (Op::SelectiveAcknowledge, false) => seen.plain += 1,
            (op, asks) if !op.is_answer() => {
                seen.requests += 1;
                seen.asking += usize::from(asks);
            }
            _ => {}
        }
        false
    });
    seen
}

fn write_some(world: &mut World, a: &Node, b: &Node) {
    for id in 0..8 {
        world.post(a, wr(id, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, 32 * 1024)]));
        world.run_until(Time(world.now.0 + 10_000_000));
        assert_eq!(a.done(), Some((id, WcStatus::Success)));
    }
}

#[test]
fn with_hpcc_acknowledgements_tell_what_the_link_has_carried() {
    let mut world = two_hosts(CongestionControl::Hpcc);
    let (a, b) = world.pair(Setup::default());
    let seen = watch(&mut world);
    write_some(&mut world, &a, &b);
    let seen = seen.borrow();
    assert_eq!((seen.requests, seen.plain), (seen.asking, 0));
    let carried: Vec<_> = seen.told.iter().map(|told| u64::from(told.carried) * Telemetry::UNIT).collect();
    assert!(carried.is_sorted() && seen.told.iter().all(|told| told.rate == RATE), "{:?}", seen.told);
    let last = *carried.last().expect("they have told");
    assert!((8 * 32 * 1024..9 * 36 * 1024).contains(&last), "{last}");
}

#[test]
fn without_hpcc_nothing_is_asked_or_told() {
    let mut world = two_hosts(CongestionControl::Window);
    let (a, b) = world.pair(Setup::default());
    let seen = watch(&mut world);
    write_some(&mut world, &a, &b);
    let seen = seen.borrow();
    assert!(seen.requests > 0 && seen.plain > 0);
    assert_eq!((seen.asking, seen.told.len()), (0, 0));
}
