//! Attacks by chains, by session messages and rings alone: the router serves others, and gives everything back.

use crate::chains::*;
use crate::client::Client;
use crate::rings::{poll, post_recv, post_send, slot_word, write_slot};
use crate::traffic::{LEN, arena, arena_segment, connect, reg_mr, ring_doorbell};
use crate::world::World;
use rdmesh_uverbs::session::chain::*;
use rdmesh_verbs::QpState;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Request, offset};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Commands of a neighbour, which the same worker executes.
fn is_served(neighbour: &mut Client) {
    for _ in 0..5 {
        neighbour.alloc_pd();
    }
}

fn kill(client: &mut Client) {
    order(client, Call::Kill, &Order { group: GROUP, reserved: 0 }).unwrap();
    assert_eq!(groups(client)[0].state, 2);
}

#[test]
fn rings_that_change_while_they_are_fetched_are_survived() {
    let world = World::new(1);
    let (mut client, mut neighbour) = (world.device(1), world.device(2));
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (queue, key) = managed(&mut client, pd, cq, |key| (0..8).map(|n| add(64 * n, key.key, n)).collect());
    let slots: Vec<[u8; SLOT]> = [
        add(0, key.key, 1),
        add(8, key.key ^ 1, 2),
        request(ChainOp::Nop, 3),
        wait(cq, 0),
        wait(cq, u64::MAX),
        Request { flags: ChainFlags::INLINE, ..request(ChainOp::SendImm, 4) },
    ]
    .iter()
    .map(bytes)
    .collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0_usize;
            while !is_over.load(Ordering::Relaxed) {
                n = n.wrapping_mul(31).wrapping_add(7);
                write_slot(&queue.send, (n % 8) as u32, &slots[n / 8 % slots.len()]);
            }
        });
        for _ in 0..50 {
            let _ = enable(&mut client, queue.qp, u64::MAX);
            is_served(&mut neighbour);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(client);
    is_served(&mut neighbour);
    drop(neighbour);
    world.expect_reclaimed();
}

#[test]
fn waits_for_each_other_and_for_themselves_cost_nothing_and_end() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, cqs) = (client.alloc_pd(), [client.create_cq(8).0, client.create_cq(8).0]);
    let (first, _) = managed(&mut client, pd, cqs[0], |_| vec![wait(cqs[1], 1), request(ChainOp::Nop, 1)]);
    let (second, _) = managed(&mut client, pd, cqs[1], |_| vec![wait(cqs[0], 1), request(ChainOp::Nop, 1)]);
    let (own, _) = managed(&mut client, pd, cqs[0], |_| vec![wait(cqs[0], u64::MAX), request(ChainOp::Nop, 1)]);
    for queue in [&first, &second, &own] {
        enable(&mut client, queue.qp, u64::MAX).unwrap();
    }
    world.expect_rest();
    assert_eq!(groups(&mut client)[0].steps, 0);
    kill(&mut client);
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn a_storm_of_enables_leaves_others_their_turns() {
    let world = World::new(1);
    let (mut client, mut neighbour) = (world.device(1), world.device(2));
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let handles: Vec<u32> = (0..4).map(|n| n + next_qp(&mut client, pd, cq)).collect();
    let storm = |target: u32| Request { imm: 1, ..enable_of(target, 1000) };
    let queues: Vec<_> = (0..4)
        .map(|n| {
            let target = handles[(n + 1) % 4];
            managed(&mut client, pd, cq, |_| (0..8).map(|_| storm(target)).collect()).0
        })
        .collect();
    assert_eq!(queues.iter().map(|queue| queue.qp).collect::<Vec<_>>(), handles);
    enable(&mut client, queues[0].qp, 8).unwrap();
    eventually("storming", || groups(&mut client)[0].orders > 10_000);
    is_served(&mut neighbour);
    kill(&mut client);
    let last = groups(&mut client)[0].orders;
    is_served(&mut neighbour);
    assert_eq!(groups(&mut client)[0].orders, last, "ended within one turn");
    drop((client, neighbour));
    world.expect_reclaimed();
}

#[test]
fn objects_of_other_groups_and_forged_keys_end_the_chain_alone() {
    let world = World::new(1);
    let (mut client, mut neighbour) = (world.device(1), world.device(2));
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(64));
    let (memory, fd) = arena();
    let base = memory.as_ptr() as u64;
    let their_pd = neighbour.alloc_pd();
    let segments = [arena_segment(&memory, LEN)];
    let theirs = neighbour.reg_mr(&reg_mr(their_pd, base, LEN), &segments, Some(fd.as_fd())).unwrap().lkey;
    let foreign = managed_in(&mut client, pd, cq, GROUP + 1);
    // Each group is one more.
    let mut attempts = vec![enable_of(foreign.qp, 1), enable_of(999, 1), wait(999, 1)];
    let forged = (0..64_u32).map(|n| theirs ^ n);
    attempts.extend(forged.map(|key| add(base, key, 1)));
    for (n, attempt) in (10..).zip(attempts) {
        let queue = managed_in(&mut client, pd, cq, n);
        write_slot(&queue.send, 0, &bytes(&attempt));
        enable(&mut client, queue.qp, 1).unwrap();
        let group = |client: &mut Client| groups(client).into_iter().find(|group| group.group == n).unwrap();
        eventually("refused", || group(&mut client).state == 2);
        assert_eq!(group(&mut client).fault_index, 0);
    }
    assert_eq!(groups(&mut client).iter().filter(|group| group.state == 0).count(), 1, "the foreign one");
    // SAFETY: the arena is mapped, and nobody else has it.
    #[allow(unsafe_code)]
    let content = unsafe { std::slice::from_raw_parts(memory.as_ptr(), LEN) };
    assert!(content.iter().all(|byte| *byte == 0));
    drop((client, neighbour));
    world.expect_reclaimed();
}

/// The program that a message goes to says how long it has to be.
#[test]
fn a_message_of_any_other_length_ends_the_chain_and_changes_nothing() {
    for len in [0, 1, 7, 8, 9, 4096] {
        let world = World::new(1);
        let (mut server, mut client) = (world.device(1), world.device(2));
        let (pd, (cq, _)) = (server.alloc_pd(), server.create_cq(8));
        let (qp, qpn, send, receive) = server.create_qp(pd, cq, 2);
        let sides = Manage::SEND | Manage::RECEIVE;
        let shape: Result<Managed, _> = chain(
            &mut server,
            Call::Manage,
            &Manage { qp, group: GROUP, sides, receive_cycle: 1, ..Manage::default() },
        );
        assert!(shape.is_ok());
        let key = register(&mut server, qp).unwrap();
        let mut element = [0; 64];
        element[offset::RECV_NUM_SGE] = 1;
        let to = SLOT as u64 * 5 + offset::SWAP as u64;
        element[offset::RECV_SGES..][..8].copy_from_slice(&to.to_ne_bytes());
        element[offset::RECV_SGES + offset::SGE_LENGTH] = 8;
        element[offset::RECV_SGES + offset::SGE_KEY..][..4].copy_from_slice(&key.key.to_ne_bytes());
        write_slot(&receive, 0, &element);

        let (their_pd, (their_cq, wc)) = (client.alloc_pd(), client.create_cq(8));
        let (their_qp, their_qpn, their_send, their_recv) = client.create_qp(their_pd, their_cq, 2);
        let (memory, fd) = arena();
        // SAFETY: the arena is mapped, and nobody else has it yet.
        #[allow(unsafe_code)]
        unsafe {
            memory.as_ptr().write_bytes(7, LEN);
        }
        let base = memory.as_ptr() as u64;
        let segments = [arena_segment(&memory, LEN)];
        let lkey = client.reg_mr(&reg_mr(their_pd, base, LEN), &segments, Some(fd.as_fd())).unwrap().lkey;
        connect(&mut server, qp, their_qpn, 2);
        connect(&mut client, their_qp, qpn, 1);
        post_recv(&their_recv, 1, base, 64, lkey);
        order(&mut server, Call::Enable, &Enable { qp, side: QueueSide::Receive as u32, limit: 1 }).unwrap();
        post_send(&their_send, 2, base, len, lkey);
        ring_doorbell(&client, their_qp);
        let done = poll(&wc);
        let is_right = len == 8;
        assert_eq!(done.status == 0, is_right, "{len}");
        let page = server.page.as_ref().unwrap();
        eventually("ended or not", || (page.qp_state(qp) == QpState::Error as u8) != is_right);
        let group = groups(&mut server)[0];
        assert_eq!((group.state == 2, group.has_fault == 1, group.fault_side == 1), (!is_right, !is_right, !is_right));
        assert_eq!(slot_word(&send, 5, offset::SWAP) == 0x0707_0707_0707_0707, is_right, "{len}");
        drop((server, client));
        world.expect_reclaimed();
    }
}

/// A device whose chains spin, wait and stand still for want of steps moves to and fro.
#[test]
fn chains_go_on_while_their_device_moves() {
    let world = World::new(2);
    let mut client = world.device(1);
    let (pd, (cq, _), (counted, wc)) = (client.alloc_pd(), client.create_cq(8), client.create_cq(8));
    let silent = || Request { flags: ChainFlags::empty(), ..request(ChainOp::Nop, 0) };
    let (spinning, _) = managed(&mut client, pd, cq, |_| (0..8).map(|_| silent()).collect());
    let step = |request: Request| Request {
        sges: request.sges.iter().map(|sge| rdmesh_verbs::Sge { length: 1, ..*sge }).collect(),
        ..request
    };
    let (ticks, _) = managed(&mut client, pd, counted, |_| (1..=8).map(|n| request(ChainOp::Nop, n)).collect());
    let (counting, key) = managed(&mut client, pd, cq, |_| Vec::new());
    // Eight slots are a lap: one WAIT, one ADD on the last slot, six that do nothing.
    write_slot(&counting.send, 0, &bytes(&step(wait(counted, 1))));
    let place = 7 * SLOT as u64 + offset::COMPARE as u64;
    write_slot(&counting.send, 1, &bytes(&Request { flags: ChainFlags::LOCAL, ..add(place, key.key, 0) }));
    (2..8).for_each(|slot| write_slot(&counting.send, slot, &bytes(&silent())));
    enable(&mut client, counting.qp, u64::MAX).unwrap();
    enable(&mut client, spinning.qp, u64::MAX).unwrap();
    for round in 1..=40_u64 {
        enable(&mut client, ticks.qp, round).unwrap();
        let moved = world.server.move_devices(rdmesh_router::endpoint::EndpointId(1), None, (round % 2) as usize);
        assert_eq!(moved, Ok(1));
        world.server.set_chain_steps(rdmesh_router::endpoint::EndpointId(1), [2_000_000, 50_000][(round % 2) as usize]);
        assert_eq!(poll(&wc).status, 0);
        eventually("counted", || slot_word(&counting.send, 7, offset::COMPARE) == 5 * round);
    }
    assert_eq!(groups(&mut client)[0].state, 0);
    kill(&mut client);
    drop(client);
    world.expect_reclaimed();
}

/// Chains of a hundred tenants that wait for messages: nobody wakes up for them.
#[test]
fn armed_chains_cost_nothing() {
    const TENANTS: u8 = 100;
    const CHAINS: u32 = 10;
    let world = World::new(1);
    let mut clients = Vec::new();
    for n in 1..=TENANTS {
        let path = world.endpoint_with(n, |spec| spec.vni = rdmesh_verbs::Vni(100 + u32::from(n)));
        let mut client = Client::device(&path);
        let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
        for group in 0..CHAINS {
            let queue = managed_in(&mut client, pd, cq, group);
            write_slot(&queue.send, 0, &bytes(&wait(cq, 1)));
            enable(&mut client, queue.qp, u64::MAX).unwrap();
        }
        clients.push(client);
    }
    world.expect_rest();
    assert_eq!(groups(&mut clients[99]).len(), 10);
    drop(clients);
    world.expect_reclaimed();
}
