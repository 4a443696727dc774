//! Limits, counts, LOCAL requests, rings as memory, sealed images.

use super::super::world::*;
use super::world::*;
use crate::chain::{ChainState, Image};
use crate::command::CommandError;
use crate::policy::Rate;
use crate::timer::Time;
use rdmesh_verbs::chain::{Args, ChainFlags, ChainOp, Control, Ordering, Request, Wide, offset};
use rdmesh_verbs::*;
use std::time::Duration;

fn node(world: &mut World) -> Node {
    world.node(0, 1, Setup { signal_all: false, ..Setup::default() })
}

#[test]
fn a_request_is_fetched_when_it_is_enabled_and_not_before() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let add = |n| local(ChainOp::FetchAdd, &a, 0, n);
    let queue = world.queue(&a, GROUP, &[add(1), add(2), add(4)]);
    world.enable(&queue, 2);
    assert_eq!(a.word(0), 3);
    queue.put(&[add(1), add(2), add(8)]);
    // A lower limit changes nothing.
    world.enable(&queue, 1);
    assert_eq!(a.word(0), 3);
    world.enable(&queue, 5);
    assert_eq!(a.word(0), 3 + 8 + 1 + 2);
}

#[test]
fn a_wait_counts_laps_and_successful_completions_only() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let quiet = Request { control: Control::new(ChainOp::Nop).quiet(), ..request(ChainOp::Nop) };
    let suppressed = Request { flags: ChainFlags::empty(), ..request(ChainOp::Nop) };
    let source = world.queue(&a, GROUP, &[request(ChainOp::Nop), quiet, suppressed]);
    let waiting = [order(ChainOp::Wait, source.cq, 1, 1), local(ChainOp::FetchAdd, &a, 0, 1)];
    let queue = world.queue(&a, GROUP, &waiting);
    world.enable(&queue, u64::MAX);
    assert_eq!(a.word(0), 0);
    for n in 1..=20 {
        world.enable(&source, 3 * n);
        assert_eq!((a.word(0), world.produced(&source)), (n, n));
    }
    assert!(!world.engines[0].has_work(), "a queue that waits costs nothing");
}

#[test]
fn completions_beyond_the_room_count_where_overrun_is_ignored() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = world.plain(&a, 2, true);
    world.manage(&queue, GROUP, 1).unwrap();
    queue.put(&[request(ChainOp::Nop)]);
    world.connect(&queue.node, &queue.node);
    world.enable(&queue, 5);
    assert_eq!((world.produced(&queue), queue.statuses().len()), (5, 2));
}

#[test]
fn a_chain_of_several_queues_ends_in_the_poll_that_started_it() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let last = world.queue(&a, GROUP, &[local(ChainOp::FetchAdd, &a, 0, 1)]);
    let mut steps = vec![request(ChainOp::Nop); 31];
    steps.push(order(ChainOp::Enable, last.qp, 1, 0));
    let first = world.queue(&a, GROUP, &steps);
    world.device_of(&a).enable(first.qp, 32).unwrap();
    world.engines[0].poll(world.now);
    assert_eq!(a.word(0), 1);
}

#[test]
fn relative_enables_add_up() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let target = world.queue(&a, GROUP, &[local(ChainOp::FetchAdd, &a, 0, 1)]);
    let more = Request { imm: 1, ..order(ChainOp::Enable, target.qp, 2, 0) };
    let queue = world.queue(&a, GROUP, &[more, order(ChainOp::Enable, target.qp, 1, 3)]);
    // 2; max(2, 1); 2 more; max(4, 1 + 3); 2 more.
    for (limit, done) in [(1, 2), (2, 2), (3, 4), (4, 4), (5, 6)] {
        world.enable(&queue, limit);
        assert_eq!(a.word(0), done);
    }
}

#[test]
fn an_ordinary_queue_may_post_the_first_enable() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = world.queue(&a, GROUP, &[local(ChainOp::FetchAdd, &a, 0, 1)]);
    queue.put_receive(&[a.sge(64, 8)]);
    let plain = world.plain(&a, 64, false);
    world.connect(&plain.node, &plain.node);
    let order = |object, relative| Ordering { object, count: 2, step: 9, relative };
    let enable = |world: &mut World, order, is_receive| {
        world.post(&plain.node, wr(1, SendOp::Enable { order, is_receive }, &[]));
        world.settle();
    };
    for (relative, done) in [(false, 2), (false, 2), (true, 4)] {
        enable(&mut world, order(queue.qp, relative), false);
        assert_eq!(a.word(0), done);
    }
    enable(&mut world, order(queue.qp, false), true);
    assert_eq!(plain.statuses(), [WcStatus::Success; 4]);
    enable(&mut world, order(plain.qp, false), false);
    assert_eq!(plain.statuses(), [WcStatus::LocalQpOperationError]);
}

#[test]
fn a_queue_can_change_its_own_next_request() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = world.plain(&a, 64, false);
    world.manage(&queue, GROUP, 2).unwrap();
    let region = world.ring_region(&queue);
    assert_eq!((region.stride, region.slots), (STRIDE as u32, 64));
    let (from, to) = (Control::with(ChainOp::Nop, 77), Control::new(ChainOp::FetchAdd));
    let args = Args {
        remote_addr: (STRIDE + offset::CONTROL) as u64,
        rkey: region.key.0,
        compare_add: from.encode(),
        swap: to.encode(),
        ..Args::default()
    };
    let cas = Request { flags: ChainFlags::LOCAL, args, ..request(ChainOp::CompareSwap) };
    let target =
        |operand| Request { control: Control::with(ChainOp::Nop, operand), ..local(ChainOp::FetchAdd, &a, 0, 1) };
    let encode = |operand| {
        let mut slot = [0; STRIDE];
        Request { control: to, ..target(operand) }.encode(&mut slot);
        slot[offset::CONTROL..][..8].copy_from_slice(&target(operand).control.encode().to_le_bytes());
        slot
    };
    queue.put(&[cas]);
    world.connect(&queue.node, &queue.node);
    for (lap, (operand, sum)) in [(77, 1), (78, 1), (77, 2)].into_iter().enumerate() {
        queue.ring.put(STRIDE, &encode(operand));
        world.enable(&queue, 2 * (lap as u64 + 1));
        assert_eq!(a.word(0), sum);
    }
}

#[test]
fn every_atomic_is_executed_locally_and_between_queue_pairs_of_a_host() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let (compare_mask, swap_mask) = (0xff, 0xff00);
    for flags in [ChainFlags::LOCAL, ChainFlags::empty()] {
        for op in ChainOp::ALL.into_iter().filter(|op| op.is_atomic() && op.width() == 8) {
            let args =
                Args { remote_addr: BASE + 64, rkey: a.key.0, compare_add: 5, swap: 0x1234, compare_mask, swap_mask };
            let sges = [a.sge(128, 8)].into_iter().collect();
            let wr = Request { flags: flags | ChainFlags::SIGNALED, args, sges, ..request(op) };
            let queue = world.queue(&a, GROUP, &[wr]);
            for old in [5_u64, 0x705, 9] {
                a.memory.put(64, &old.to_ne_bytes());
                let done = world.produced(&queue);
                world.enable(&queue, done + 1);
                assert_eq!((a.word(64), a.word(128)), (op.apply(old, &args), old), "{op:?} {flags:?}");
            }
            assert_eq!(queue.statuses(), [WcStatus::Success; 3]);
        }
    }
}

/// Sixteen bytes at once: LOCAL only, because no packet has room for the operands.
#[test]
fn a_wide_compare_swap_changes_both_words_or_none() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let wide = Wide { compare: 7 << 64 | 5, swap: 9 << 64, compare_mask: u128::MAX, swap_mask: u128::MAX << 64 };
    let args = Args { remote_addr: BASE + 64, rkey: a.key.0, ..Args::default() };
    let sges = [a.sge(128, 16)].into_iter().collect();
    let wr = Request { flags: ChainFlags::LOCAL, args, wide, sges, ..request(ChainOp::WideCompareSwap) };
    let queue = world.queue(&a, GROUP, std::slice::from_ref(&wr));
    for (limit, high, after) in [(1, 7, 9), (2, 6, 6)] {
        a.memory.put(64, &[5_u64, high].map(u64::to_ne_bytes).concat());
        world.enable(&queue, limit);
        assert_eq!([64, 72, 128, 136].map(|at| a.word(at)), [5, after, 5, high]);
    }
    let queue = world.queue(&a, GROUP + 1, &[Request { flags: ChainFlags::SIGNALED, ..wr }]);
    world.enable(&queue, 1);
    assert_eq!(queue.statuses(), [WcStatus::LocalQpOperationError]);
}

#[test]
fn what_has_no_packet_is_refused_between_hosts() {
    let soft = Request { flags: ChainFlags::SOFT, ..request(ChainOp::Read) };
    for wr in [request(ChainOp::Min), request(ChainOp::MaskedCompareSwap), soft] {
        let mut world = World::two_hosts();
        let (a, b) = (node(&mut world), world.node(1, 2, Setup::default()));
        let queue = world.plain(&a, 64, false);
        world.manage(&queue, GROUP, 1).unwrap();
        queue.put(&[wr]);
        world.connect(&queue.node, &b);
        world.connect(&b, &queue.node);
        world.enable(&queue, 1);
        assert_eq!(queue.statuses(), [WcStatus::LocalQpOperationError]);
    }
}

#[test]
fn a_large_local_request_leaves_turns_to_others() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let (source, pd) = (Bytes::new(LEN), a.pd);
    source.put(0, &[7; LEN]);
    let (_, key) = world.device_of(&a).context_mut().reg_mr(pd, 0, LEN as u64, ALL, source).unwrap();
    let args = Args { rkey: key.0, ..Args::default() };
    let sges = [a.sge(0, 100), a.sge(100, LEN as u32 - 100)].into_iter().collect();
    let read = Request { flags: ChainFlags::LOCAL | ChainFlags::SIGNALED, args, sges, ..request(ChainOp::Read) };
    let queue = world.queue(&a, GROUP, &[read]);
    world.device_of(&a).enable(queue.qp, 1).unwrap();
    world.engines[0].poll(world.now);
    assert_eq!(world.produced(&queue), 0);
    world.settle();
    assert_eq!(world.produced(&queue), 1);
    assert_eq!(a.memory.get(0, LEN), vec![7; LEN]);
    let counts = world.entry(&a, GROUP).counts;
    assert_eq!((counts.copies, counts.steps, counts.bytes), (1, 1 + LEN as u64 / 4096, LEN as u64));
}

#[test]
fn inline_data_is_copied_when_the_request_is_fetched() {
    let mut world = World::two_hosts();
    let (a, b) = (node(&mut world), world.node(1, 2, Setup::default()));
    let queue = world.plain(&a, 64, false);
    world.manage(&queue, GROUP, 1).unwrap();
    let args = Args { remote_addr: BASE, rkey: b.key.0, ..Args::default() };
    let inline_len = 8;
    let write =
        Request { flags: ChainFlags::INLINE | ChainFlags::SIGNALED, args, inline_len, ..request(ChainOp::Write) };
    queue.put(&[write]);
    queue.ring.put(offset::SGES, &1_u64.to_ne_bytes());
    world.connect(&queue.node, &b);
    world.connect(&b, &queue.node);
    // The first packet is lost, and sent again when the slot has been changed.
    let mut lost = false;
    world.lose = Box::new(move |to, _| to == 1 && !std::mem::replace(&mut lost, true));
    world.enable(&queue, 1);
    queue.ring.put(offset::SGES, &2_u64.to_ne_bytes());
    world.run_until(Time(10_000_000_000));
    assert_eq!((queue.statuses(), b.word(0)), (vec![WcStatus::Success], 1));
}

#[test]
fn local_requests_need_the_rights_of_any_request() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let read_only = Bytes::new(64);
    let pd = a.pd;
    let (_, key) = world.device_of(&a).context_mut().reg_mr(pd, 0, 64, Access::empty(), read_only).unwrap();
    let other_pd = world.device_of(&a).context_mut().alloc_pd().unwrap();
    let (_, foreign) = world.device_of(&a).context_mut().reg_mr(other_pd, 0, 64, ALL, Bytes::new(64)).unwrap();
    let at = |rkey: Key, remote_addr| Args { remote_addr, rkey: rkey.0, ..Args::default() };
    let bad = [
        (at(key, 0), WcStatus::LocalProtectionError),
        (at(foreign, 0), WcStatus::LocalProtectionError),
        (at(Key(0), 0), WcStatus::LocalProtectionError),
        (at(a.key, BASE + LEN as u64 - 4), WcStatus::RemoteInvalidRequest),
        (at(a.key, BASE + LEN as u64), WcStatus::LocalProtectionError),
    ];
    for (i, (args, status)) in bad.into_iter().enumerate() {
        let wr = Request { flags: ChainFlags::LOCAL, args, ..request(ChainOp::FetchAdd) };
        let queue = world.queue(&a, i as u32, &[wr]);
        world.enable(&queue, 1);
        let fault = world.entry(&a, i as u32).fault.unwrap();
        assert_eq!((queue.statuses(), fault.status), (vec![status], status), "{args:?}");
        assert_eq!((fault.index, fault.addr, fault.key, fault.qp), (0, args.remote_addr, args.rkey, queue.qp));
    }
}

#[test]
fn a_soft_read_of_a_wrong_pointer_gives_zeros() {
    let mut world = World::new(1);
    let a = node(&mut world);
    for (i, flags) in [ChainFlags::LOCAL, ChainFlags::empty()].into_iter().enumerate() {
        a.memory.put(0, &[0xff; 16]);
        let args = Args { remote_addr: 1, rkey: a.key.0, ..Args::default() };
        let sges = [a.sge(0, 9)].into_iter().collect();
        let read = Request { flags: flags | ChainFlags::SOFT, args, sges, ..request(ChainOp::Read) };
        let queue = world.queue(&a, i as u32, &[read]);
        world.enable(&queue, 1);
        assert_eq!(a.memory.get(0, 16), [[0; 9].as_slice(), &[0xff; 7]].concat());
        assert_eq!(world.entry(&a, i as u32).counts.soft_faults, 1);
    }
}

#[test]
fn a_soft_read_with_a_wrong_key_tells_the_peer_nothing() {
    let mut world = World::new(1);
    let a = node(&mut world);
    a.memory.put(0, &[0xff; 16]);
    let args = Args { remote_addr: 1, rkey: a.key.0 ^ 1, ..Args::default() };
    let sges = [a.sge(0, 9)].into_iter().collect();
    let read = Request { flags: ChainFlags::SOFT, args, sges, ..request(ChainOp::Read) };
    let queue = world.queue(&a, 0, &[read]);
    world.enable(&queue, 1);
    assert!(!queue.statuses().contains(&WcStatus::Success));
    assert_eq!((a.memory.get(0, 16), world.entry(&a, 0).counts.soft_faults), (vec![0xff; 16], 0));
}

#[test]
fn the_key_of_a_ring_ends_with_its_queue_pair() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let victim = world.queue(&a, 1, &[request(ChainOp::Nop)]);
    let region = world.ring_region(&victim);
    let args = Args { remote_addr: 0, rkey: region.key.0, ..Args::default() };
    let read =
        Request { flags: ChainFlags::LOCAL, args, sges: [a.sge(0, 8)].into_iter().collect(), ..request(ChainOp::Read) };
    let queue = world.queue(&a, 2, &[read]);
    world.enable(&queue, 1);
    world.device_of(&a).destroy_qp(victim.qp).unwrap();
    world.enable(&queue, 2);
    assert_eq!(queue.statuses(), [WcStatus::LocalProtectionError]);
    // A region that the program has deregistered itself, and whose handle is another's now, stays.
    let other = world.queue(&a, 3, &[request(ChainOp::Nop)]);
    let ring = world.ring_region(&other);
    let pd = a.pd;
    world.device_of(&a).context_mut().dereg_mr(ring.mr).unwrap();
    let (mr, _) = world.device_of(&a).context_mut().reg_mr(pd, 0, 64, ALL, Bytes::new(64)).unwrap();
    assert_eq!(mr, ring.mr);
    world.device_of(&a).destroy_qp(other.qp).unwrap();
    assert!(world.device_of(&a).context_mut().dereg_mr(mr).is_ok());
}

#[test]
fn a_ring_has_so_many_regions_and_no_more() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let [queue, other] = [1, 2].map(|group| world.queue(&a, group, &[request(ChainOp::Nop)]));
    let mut regions: Vec<_> = (0..256).map(|_| world.ring_region(&queue)).collect();
    let mut more = |queue: &Queue| world.device_of(&a).register_send_ring(queue.qp, None, Access::LOCAL_WRITE);
    assert_eq!(more(&queue).err(), Some(CommandError::Exhausted));
    assert!(more(&other).is_ok(), "each queue pair has its own");
    let last = regions.pop().unwrap();
    world.device_of(&a).context_mut().dereg_mr(last.mr).unwrap();
    assert_eq!(world.ring_region(&queue).mr, last.mr);
    world.device_of(&a).destroy_qp(queue.qp).unwrap();
    assert!(
        regions.iter().all(|region| world.device_of(&a).context_mut().dereg_mr(region.mr).is_err()),
        "they went with it"
    );
}

#[test]
fn of_a_sealed_ring_only_holes_and_proved_operations_count() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let add = |op, at, n| local(op, &a, at, n);
    let queue = world.plain(&a, 64, false);
    world.manage(&queue, GROUP, 1).unwrap();
    let mut slot = [0; STRIDE];
    add(ChainOp::FetchAdd, 0, 1).encode(&mut slot);
    let image = || {
        let mut image = Image::new(STRIDE, 1).unwrap();
        let mut holes = [0; STRIDE / 8];
        (offset::COMPARE..offset::COMPARE + 8).chain([offset::OPERATION]).for_each(|at| holes[at / 8] |= 1 << (at % 8));
        assert!(image.push(&slot, &holes, 1 << ChainOp::FetchAdd.code() | 1 << ChainOp::Max.code()));
        image
    };
    let mut of_others = Image::new(512, 1).unwrap();
    assert!(of_others.push(&[0; 512], &[0; 64], u64::MAX));
    assert!(world.device_of(&a).seal_sends(queue.qp, of_others).is_err());
    assert!(world.device_of(&a).seal_sends(queue.qp, image()).is_ok());
    world.connect(&queue.node, &queue.node);
    // The address lies in no hole; the addend does.
    queue.put(&[add(ChainOp::FetchAdd, 8, 5)]);
    world.enable(&queue, 1);
    assert_eq!((a.word(0), a.word(8)), (5, 0));
    assert!(world.device_of(&a).seal_sends(queue.qp, image()).is_err(), "too late");
    queue.put(&[add(ChainOp::Max, 0, 9)]);
    world.enable(&queue, 2);
    assert_eq!(a.word(0), 9);
    queue.put(&[add(ChainOp::Min, 0, 1)]);
    world.enable(&queue, 3);
    assert_eq!((a.word(0), queue.statuses()), (9, vec![WcStatus::LocalQpOperationError]));
}

#[test]
fn a_message_has_the_declared_length() {
    for len in [7, 8, 9] {
        let mut world = World::new(1);
        let (a, b) = (node(&mut world), world.node(0, 2, Setup::default()));
        let queue = world.plain(&a, 64, false);
        world.manage(&queue, GROUP, 1).unwrap();
        queue.put_receive(&[a.sge(0, 5), a.sge(64, 3)]);
        world.connect(&queue.node, &b);
        world.connect(&b, &queue.node);
        b.memory.put(0, &[3; 16]);
        world.post(&b, wr(1, SendOp::Send { imm: None }, &[b.sge(0, len)]));
        world.settle();
        assert_eq!(b.done(), None, "nothing is enabled");
        world.device_of(&a).enable_receives(queue.qp, 1).unwrap();
        world.run_until(Time(1_000_000_000));
        let status = if len == 8 { WcStatus::Success } else { WcStatus::RemoteInvalidRequest };
        assert_eq!(b.done(), Some((1, status)), "{len}");
        assert_eq!(a.memory.get(0, 5) == [3; 5], len == 8);
        assert_eq!(world.entry(&a, GROUP).fault.map(|fault| fault.is_receive), (len != 8).then_some(true));
    }
}

/// Within a host the sender of a refused message does not wait for its timer.
#[test]
fn a_refused_message_comes_as_soon_as_a_receive_is_enabled() {
    for (engines, other) in [(1, 0), (2, 1)] {
        let mut world = World::new(engines);
        let (a, b) = (node(&mut world), world.node(other, 2, Setup::default()));
        let queue = world.plain(&a, 64, false);
        world.manage(&queue, GROUP, 1).unwrap();
        queue.put_receive(&[a.sge(0, 8)]);
        world.connect(&queue.node, &b);
        world.connect(&b, &queue.node);
        // The chain enables the second receive itself.
        let control = world.queue(&a, GROUP, &[order(ChainOp::RecvEnable, queue.qp, 2, 0)]);
        world.device_of(&a).chains().trace(GROUP, 0, Duration::from_secs(1)).unwrap();
        let refused = |world: &mut World, number| {
            world.post(&b, wr(number, SendOp::Send { imm: None }, &[b.sge(0, 8)]));
            world.settle();
            assert_eq!(b.done(), None, "nothing is enabled");
        };
        refused(&mut world, 1);
        world.device_of(&a).enable_receives(queue.qp, 1).unwrap();
        world.settle();
        assert_eq!(b.done(), Some((1, WcStatus::Success)));
        refused(&mut world, 2);
        world.enable(&control, 1);
        assert_eq!(b.done(), Some((2, WcStatus::Success)));
        assert!(world.engines.iter().all(|engine| engine.poll_timeout().is_none()), "no timer is left");
        let trace = world.device_of(&a).chains().trace(GROUP, 0, Duration::ZERO).unwrap();
        let trace: Vec<_> = trace.iter().map(|step| (step.is_receive, step.index, step.op, step.bytes)).collect();
        let message = |index| (true, index, ChainOp::Send, 8);
        assert_eq!(trace, [message(0), (false, 0, ChainOp::RecvEnable, 0), message(1)]);
        assert_eq!(world.entry(&a, GROUP).counts.steps, 1, "messages cost no steps");
    }
}

/// A chain whose queues wait for completions, for limits and for steps goes on where its device has moved to.
#[test]
fn a_chain_goes_on_after_a_move() {
    let mut world = World::new(2);
    // Places are others on the other engine.
    world.node(1, 9, Setup::default());
    let mut a = node(&mut world);
    let mut source = world.queue(&a, GROUP, &[request(ChainOp::Nop)]);
    let waiting = [order(ChainOp::Wait, source.cq, 1, 1), local(ChainOp::FetchAdd, &a, 0, 1)];
    let mut queue = world.queue(&a, GROUP, &waiting);
    world.enable(&queue, u64::MAX);
    for round in 1..=6u64 {
        // Of two steps in a second, which an endpoint has from the fourth round on, some are still owed when it moves again.
        let rate = Rate { per_second: 2, burst: 1 };
        world.device_of(&a).set_policy(steps_policy(Some(rate).filter(|_| round > 3)));
        world.enable(&source, 2 * round - 1);
        world.move_to(&mut a, (round % 2) as usize);
        for moved in [&mut source.node, &mut queue.node] {
            (moved.engine, moved.context) = (a.engine, a.context);
        }
        world.settle();
        world.enable(&source, 2 * round);
        world.run_until(world.now.after(Duration::from_secs(10)));
        assert_eq!((a.word(0), world.produced(&source)), (2 * round, 2 * round));
        assert!(!world.engines.iter().any(|engine| engine.has_work() || engine.poll_timeout().is_some()));
    }
    world.device_of(&a).chains().kill(GROUP).unwrap();
    world.settle();
    assert_eq!(world.entry(&a, GROUP).state, ChainState::Poisoned);
}
