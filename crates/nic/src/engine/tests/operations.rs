//! Tests of each operation without errors.

use super::world::*;
use crate::engine::Event;
use crate::{Capabilities, CommandError, MwType, QpInit};
use rdmesh_verbs::*;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn send_is_scattered_and_completes_on_both_sides() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        a.memory.put(0, &pattern(300));
        b.post_recv(7, &[b.sge(10, 100), b.sge(1000, 250)]);
        let op = SendOp::Send { imm: Some(0x0102_0304) };
        world.post(&a, wr(5, op, &[a.sge(0, 1), a.sge(1, 299)]));
        world.settle();
        assert_eq!(a.done(), Some((5, WcStatus::Success)));
        let wc = b.poll().unwrap();
        assert_eq!((wc.wr_id, wc.byte_len, wc.imm, wc.opcode), (7, 300, 0x0102_0304, WcOpcode::Recv));
        assert_eq!((wc.qpn, wc.src_qp, wc.flags), (b.qpn, a.qpn, WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!([b.memory.get(10, 100), b.memory.get(1000, 200)].concat(), pattern(300));
    }
}

#[test]
fn long_messages_of_many_pieces_arrive_whole() {
    for mut world in World::kinds() {
        for qp_type in [QpType::Rc, QpType::Uc] {
            let (a, b) = world.pair(Setup { qp_type, ..Setup::default() });
            a.memory.put(0, &pattern(300_000));
            let sges: Vec<_> = (0..6).map(|i| a.sge(i * 50_000, 50_000)).collect();
            b.post_recv(1, &[b.sge(3, 300_000)]);
            world.post(&a, wr(1, SendOp::Send { imm: None }, &sges));
            world.post(&a, wr(2, SendOp::Write { remote_addr: BASE + 300_003, rkey: b.key, imm: None }, &sges[..2]));
            world.settle();
            assert_eq!((a.done(), a.done()), (Some((1, WcStatus::Success)), Some((2, WcStatus::Success))));
            assert_eq!(b.poll().unwrap().byte_len, 300_000);
            assert_eq!(b.memory.get(3, 300_000), pattern(300_000));
            assert_eq!(b.memory.get(300_003, 100_000), pattern(100_000));
        }
    }
}

#[test]
fn read_brings_remote_bytes() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        b.memory.put(5, &pattern(200_000));
        let op = SendOp::Read { remote_addr: BASE + 5, rkey: b.key };
        world.post(&a, wr(1, op, &[a.sge(0, 70_000), a.sge(100_000, 130_000)]));
        world.settle();
        let wc = a.poll().unwrap();
        assert_eq!((wc.status, wc.byte_len, wc.opcode), (WcStatus::Success, 200_000, WcOpcode::RdmaRead));
        assert_eq!([a.memory.get(0, 70_000), a.memory.get(100_000, 130_000)].concat(), pattern(200_000));
        assert!(b.poll().is_none());
    }
}

#[test]
fn write_with_immediate_takes_a_receive() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    b.post_recv(9, &[]);
    let op = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: Some(3) };
    world.post(&a, wr(1, op, &[a.sge(0, 64)]));
    world.settle();
    let wc = b.poll().unwrap();
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvRdmaWithImm, 64, 3));
}

#[test]
fn atomics_return_the_old_value() {
    let mut world = World::new(2);
    let (a, b) = world.pair(Setup::default());
    b.memory.put(8, &5u64.to_ne_bytes());
    let target = (BASE + 8, b.key);
    let add = SendOp::FetchAdd { remote_addr: target.0, rkey: target.1, add: 10 };
    let swap = SendOp::CompareSwap { remote_addr: target.0, rkey: target.1, compare: 15, swap: 99 };
    let miss = SendOp::CompareSwap { remote_addr: target.0, rkey: target.1, compare: 15, swap: 1 };
    for (i, op) in [add, swap, miss].into_iter().enumerate() {
        world.post(&a, wr(i as u64, op, &[a.sge(i as u64 * 8, 8)]));
    }
    world.settle();
    let old: Vec<_> = (0..3).map(|i| u64::from_ne_bytes(a.memory.get(i * 8, 8).try_into().unwrap())).collect();
    assert_eq!(old, [5, 15, 99]);
    assert_eq!(b.memory.get(8, 8), 99u64.to_ne_bytes());
    let write = SendOp::AtomicWrite { remote_addr: target.0, rkey: target.1, value: *b"atomic!!" };
    world.post(&a, wr(3, write, &[]));
    world.settle();
    assert_eq!(b.memory.get(8, 8), b"atomic!!");
}

#[test]
fn inline_data_comes_from_the_queue() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    b.post_recv(1, &[b.sge(0, 64)]);
    let mut request = wr(1, SendOp::Send { imm: None }, &[]);
    request.flags |= SendFlags::INLINE;
    request.inline_len = 20;
    world.post(&a, request);
    world.settle();
    assert_eq!(b.poll().unwrap().byte_len, 20);
    assert_eq!(b.memory.get(0, 20), (0..20).collect::<Vec<u8>>());
}

#[test]
fn unsignaled_requests_give_their_slot_back_silently() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup { signal_all: false, ..Setup::default() });
    let write = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    let mut request = wr(1, write, &[a.sge(0, 8)]);
    request.flags = SendFlags::empty();
    world.post(&a, request);
    world.post(&a, wr(2, write, &[a.sge(0, 8)]));
    world.settle();
    assert_eq!((a.done(), a.done()), (Some((2, WcStatus::Success)), None));
    assert_eq!(*a.sends.taken.lock().unwrap(), 0);
}

#[test]
fn datagrams_carry_a_grh_and_find_their_qp() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup { qp_type: QpType::Ud, ..Setup::default() });
        let av = AddressVector { dgid: b.gid, hop_limit: 3, ..AddressVector::default() };
        let ah = world.engines[0].device(a.context).unwrap().create_ah(a.pd, av).unwrap() + 1;
        a.memory.put(0, &pattern(100));
        b.post_recv(4, &[b.sge(0, 30), b.sge(30, 200)]);
        let op = SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY, imm: Some(1) };
        let pieces: Vec<_> = (0..8).map(|i| a.sge(i * 12, 12)).collect();
        world.post(&a, wr(1, op, &pieces));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::Success)));
        let wc = b.poll().unwrap();
        assert_eq!((wc.byte_len, wc.src_qp, wc.flags), (136, a.qpn, WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!(wc.sl, 0xa, "UDP over IPv4");
        assert_eq!(b.memory.get(40, 96), pattern(96));
        assert_eq!((b.memory.get(28, 1)[0], b.memory.get(36, 4)), (3, vec![10, 0, 0, 2]));
        // The wrong Q_Key is not delivered, and the sender does not learn of it.
        let op = SendOp::Datagram { ah, qpn: b.qpn, qkey: Qkey(5), imm: None };
        b.post_recv(5, &[b.sge(0, 100)]);
        world.post(&a, wr(2, op, &[a.sge(0, 4)]));
        world.settle();
        assert_eq!(a.done(), Some((2, WcStatus::Success)));
        assert!(b.poll().is_none());
    }
}

#[test]
fn a_group_reaches_its_members_in_every_engine() {
    let mut world = World::new(3);
    let ud = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let (a, b) = world.pair(ud);
    let c = world.node(1, 3, ud);
    let elsewhere = world.node(1, 4, Setup { vni: 2, ..ud });
    let group = Gid::from_ip([239, 1, 2, 3].into());
    world.connect(&c, &a);
    world.connect(&elsewhere, &a);
    for node in [&b, &c, &elsewhere] {
        world.engines[node.engine].device(node.context).unwrap().attach_mcast(node.qp, group).unwrap();
        node.post_recv(1, &[node.sge(0, 100)]);
    }
    let av = AddressVector { dgid: group, ..AddressVector::default() };
    let ah = world.engines[0].device(a.context).unwrap().create_ah(a.pd, av).unwrap() + 1;
    let op = SendOp::Datagram { ah, qpn: Qpn::MULTICAST, qkey: QKEY, imm: None };
    world.post(&a, wr(1, op, &[a.sge(0, 8)]));
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
    assert_eq!((b.poll().is_some(), c.poll().is_some(), elsewhere.poll().is_some()), (true, true, false));
}

#[test]
fn windows_open_what_they_are_bound_to_and_no_more() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    let (_, mw) =
        world.engines[0].device(b.context).unwrap().context_mut().alloc_mw(b.pd, crate::MwType::Type2).unwrap();
    let key = Key(mw.0 ^ 1);
    let access = Access::REMOTE_WRITE;
    let bind = SendOp::BindMw { mw, new_key: key, mr: b.key, addr: BASE + 100, length: 50, access };
    world.post(&b, wr(1, bind, &[]));
    world.settle();
    assert_eq!(b.done(), Some((1, WcStatus::Success)));
    a.memory.put(0, b"window");
    let write = |addr| SendOp::Write { remote_addr: addr, rkey: key, imm: None };
    world.post(&a, wr(2, write(BASE + 144), &[a.sge(0, 6)]));
    world.settle();
    assert_eq!(a.done(), Some((2, WcStatus::Success)));
    assert_eq!(b.memory.get(144, 6), b"window");
    assert_eq!(
        world.engines[0].device(b.context).unwrap().context_mut().dereg_mr(b.mr).map(drop),
        Err(crate::CommandError::Invalid)
    );
    world.post(&b, wr(3, SendOp::LocalInvalidate { key }, &[]));
    world.settle();
    assert_eq!(b.done(), Some((3, WcStatus::Success)));
    world.post(&a, wr(4, write(BASE + 144), &[a.sge(0, 6)]));
    world.settle();
    assert_eq!(a.done(), Some((4, WcStatus::RemoteAccessError)));
    assert_eq!(world.engines[0].device(b.context).unwrap().context_mut().dereg_mr(b.mr).map(drop), Ok(()));
}

#[test]
fn an_srq_feeds_its_qps_and_announces_its_limit_once() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup { srq: true, ..Setup::default() });
    (0..3).for_each(|i| b.post_recv(i, &[b.sge(0, 8)]));
    world.engines[0].device(b.context).unwrap().context_mut().modify_srq(0, None, Some(2)).unwrap();
    let is_limit = |e: &&Event| matches!(e, Event::Async { event: AsyncEvent::SrqLimitReached, .. });
    // When fewer than two are left.
    for (i, limits) in [(0, 0), (1, 1), (2, 1)] {
        world.post(&a, wr(i, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(world.events.iter().filter(is_limit).count(), limits);
    }
    assert_eq!((0..3).map(|_| b.poll().unwrap().wr_id).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn events_come_when_armed_and_only_then() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    let count = |world: &World| world.events.iter().filter(|e| matches!(e, Event::Completion { .. })).count();
    let write = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    world.post(&a, wr(1, write, &[]));
    world.settle();
    assert_eq!(count(&world), 0);
    *a.cq.armed.lock().unwrap() = Some(false);
    for i in 0..3 {
        world.post(&a, wr(i, write, &[]));
        world.settle();
    }
    assert_eq!(count(&world), 1);
    *b.cq.armed.lock().unwrap() = Some(true);
    b.post_recv(1, &[]);
    b.post_recv(2, &[]);
    world.post(&a, wr(5, SendOp::Send { imm: None }, &[]));
    world.settle();
    assert_eq!(count(&world), 1);
    let mut solicited = wr(6, SendOp::Send { imm: None }, &[]);
    solicited.flags |= SendFlags::SOLICITED;
    world.post(&a, solicited);
    world.settle();
    assert_eq!(count(&world), 2);
    *a.cq.armed.lock().unwrap() = Some(true);
    world.post(&a, wr(7, write, &[]));
    world.settle();
    assert_eq!(count(&world), 2);
    let bad = SendOp::Write { remote_addr: 0, rkey: b.key, imm: None };
    world.post(&a, wr(8, bad, &[a.sge(0, 8)]));
    world.settle();
    assert_eq!(count(&world), 3, "an error counts as solicited");
}

#[test]
fn draining_finishes_what_was_fetched_and_is_announced() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    world.modify_state(&a, QpState::Sqd);
    world.settle();
    assert!(world.events.iter().any(|e| matches!(e, Event::Async { event: AsyncEvent::SqDrained, .. })));
    let write = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    world.post(&a, wr(1, write, &[]));
    world.settle();
    assert!(a.poll().is_none());
    world.modify_state(&a, QpState::Rts);
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
}

#[test]
fn large_messages_let_small_ones_through() {
    const BULK: u32 = LEN as u32;
    let mut world = World::new(1);
    let pairs: Vec<_> = (0..40).map(|i| world.pair_at(2 * i + 1, Setup::default())).collect();
    let write = |b: &Node| SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    for (a, b) in &pairs[1..] {
        for id in 0..8 {
            world.post(a, wr(id, write(b), &[a.sge(0, BULK)]));
        }
    }
    world.engines[0].poll(world.now);
    let (a, b) = &pairs[0];
    world.post(a, wr(1, write(b), &[a.sge(0, 8)]));
    while a.poll().is_none() {
        world.engines[0].poll(world.now);
    }
    let before_it: usize = pairs[1..].iter().map(|(a, _)| a.cq.entries.lock().unwrap().len()).sum();
    assert!(before_it < pairs.len(), "{before_it} large messages went before it");
    world.settle();
    let done = |a: &Node| std::iter::from_fn(|| a.poll()).last().map(|wc| wc.wr_id);
    assert!(pairs[1..].iter().all(|(a, _)| done(a) == Some(7)));
}

#[test]
fn bytes_are_counted_by_the_way_they_went() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        world.post(&a, wr(1, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, 5000)]));
        world.post(&a, wr(2, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 7000)]));
        world.post(&a, wr(3, SendOp::FetchAdd { remote_addr: BASE, rkey: b.key, add: 1 }, &[a.sge(0, 8)]));
        world.settle();
        let mut counters =
            |node: &Node| world.engines[node.engine].device(node.context).unwrap().query_qp(node.qp).unwrap().counters;
        let (one, other) = (counters(&a), counters(&b));
        assert_eq!((one.tx_bytes, one.read_bytes, one.rx_bytes, one.served_bytes), (12_008, 7008, 0, 0));
        assert_eq!((other.rx_bytes, other.served_bytes, other.tx_bytes, other.read_bytes), (12_008, 7008, 0, 0));
    }
}

#[test]
fn a_region_is_reached_as_it_is_registered_now() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        let engine = world.engines.len() - 1;
        let change = |world: &mut World, pd, access| {
            assert_eq!(
                world.engines[engine].device(b.context).unwrap().context_mut().rereg_mr(b.mr, pd, access),
                Ok(b.key)
            );
        };
        change(&mut world, None, Some(Access::LOCAL_WRITE | Access::REMOTE_READ));
        let read = |n| wr(n, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 8)]);
        world.post(&a, read(1));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::Success)));
        let other = world.engines[engine].device(b.context).unwrap().context_mut().alloc_pd().unwrap();
        change(&mut world, Some(other), None);
        world.post(&a, read(2));
        world.settle();
        assert_eq!(a.done(), Some((2, WcStatus::RemoteAccessError)));
    }
}

#[test]
fn a_request_that_waits_is_read_when_it_may_be_executed() {
    let mut world = World::new(2);
    let (a, b) = world.pair(Setup::default());
    b.post_recv(9, &[]);
    let read = SendOp::Read { remote_addr: BASE, rkey: b.key };
    world.post(&a, wr(1, read, &[a.sge(0, 8)]));
    let fenced = SendWr { flags: SendFlags::FENCE, ..wr(2, SendOp::Send { imm: Some(1) }, &[]) };
    world.post(&a, fenced);
    world.engines[0].poll(world.now);
    assert_eq!(*a.sends.taken.lock().unwrap(), 1, "the SEND stays in the ring while the READ is under way");
    a.sends.posted.lock().unwrap()[0].op = SendOp::Send { imm: Some(2) };
    world.settle();
    assert_eq!((a.done(), a.done()), (Some((1, WcStatus::Success)), Some((2, WcStatus::Success))));
    assert_eq!(b.poll().map(|wc| wc.imm), Some(2), "what the ring held when the READ was done");
}

#[test]
fn a_protection_domain_in_use_stays() {
    let mut world = World::new(1);
    let a = world.node(0, 1, Setup::default());
    let e = &mut world.engines[0];
    let pd = e.device(a.context).unwrap().context_mut().alloc_pd().unwrap();
    let busy = Err(CommandError::Busy);
    let (mr, _) = e.device(a.context).unwrap().context_mut().reg_mr(pd, BASE, 8, ALL, Bytes::new(8)).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(pd), busy);
    e.device(a.context).unwrap().context_mut().rereg_mr(mr, Some(a.pd), None).unwrap();
    let (mw, _) = e.device(a.context).unwrap().context_mut().alloc_mw(pd, MwType::Type1).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(pd), busy);
    e.device(a.context).unwrap().context_mut().dealloc_mw(mw).unwrap();
    let ah = e.device(a.context).unwrap().create_ah(pd, AddressVector::default()).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(pd), busy);
    e.device(a.context).unwrap().context_mut().destroy_ah(ah).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(pd), Ok(()));
    assert_eq!(
        e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd),
        busy,
        "its queue pair and the region that moved there"
    );
    e.device(a.context).unwrap().destroy_qp(a.qp).unwrap();
    e.device(a.context).unwrap().context_mut().dereg_mr(a.mr).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd), busy);
    e.device(a.context).unwrap().context_mut().dereg_mr(mr).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd), Ok(()));
}

#[test]
fn a_device_with_many_queue_pairs_is_closed_in_slices() {
    let mut world = World::new(1);
    let a = world.node(0, 1, Setup::default());
    let e = &mut world.engines[0];
    for _ in 0..1000 {
        let caps = Capabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: a.pd,
            send_cq: 0,
            recv_cq: 0,
            srq: None,
            caps,
            signal_all: true,
            send: a.sends.clone(),
            recv: Some(a.recvs.clone()),
        };
        e.device(a.context).unwrap().create_qp(init).unwrap();
    }
    let slices = std::iter::from_fn(|| e.close_some(a.context)).count();
    assert_eq!((slices, e.device(a.context).unwrap().qps().len()), (4, 0));
    assert!(e.close(a.context).is_some());
}
