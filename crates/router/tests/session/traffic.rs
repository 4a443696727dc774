//! Test of a message from one endpoint to another, by session messages and rings alone.

use crate::client::Client;
use crate::rings::{Wc, poll, post_recv, post_send};
use crate::world::{World, gid};
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::page::Arm;
use rdmesh_uverbs::session::{Segment, SegmentKind};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{AttrMask, QpState};
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_fd};
use std::os::fd::{AsFd, OwnedFd};

pub(crate) const LEN: usize = 8192;
const LOCAL_WRITE: u32 = 1;

/// Sealed memory, as an arena is.
pub(crate) fn arena() -> (SharedMemory, OwnedFd) {
    SharedMemory::create("arena", LEN).unwrap()
}

pub(crate) fn arena_segment(memory: &SharedMemory, len: usize) -> Segment {
    let (addr, kind) = (memory.as_ptr() as u64, SegmentKind::Arena as u32);
    Segment { addr, len: len as u64, kind, reserved: 0, offset: 0 }
}

pub(crate) fn reg_mr(pd: u32, start: u64, len: usize) -> RegMr {
    RegMr { start, length: len as u64, hca_va: start, pd_handle: pd, access_flags: LOCAL_WRITE, ..Default::default() }
}

/// Takes an RC queue pair to RTS, connected to `dest_qpn` at endpoint `peer`.
pub(crate) fn connect(client: &mut Client, qp: u32, dest_qpn: u32, peer: u8) {
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let rts = AttrMask::STATE
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        let request = ModifyQp {
            dest: QpDest {
                dgid: gid(peer).0,
                sgid_index: 1,
                hop_limit: 64,
                is_global: 1,
                port_num: 1,
                ..Default::default()
            },
            qp_handle: qp,
            attr_mask: mask.bits(),
            dest_qp_num: dest_qpn,
            qp_state: state as u8,
            path_mtu: 5,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        client.order(number::MODIFY_QP, &request).unwrap();
        assert_eq!(client.page.as_ref().unwrap().qp_state(qp), state as u8);
    }
}

/// Says that a send queue has work.
pub(crate) fn ring_doorbell(client: &Client, qp: u32) {
    client.page.as_ref().unwrap().ring(qp);
    rustix::io::write(client.wake.as_ref().unwrap(), &1u64.to_ne_bytes()).unwrap();
}

fn wait_for(fd: &OwnedFd) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll_fd(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(1), "no event");
}

/// From shared memory into private memory, with an event for the receiver.
fn send_between(workers: usize) {
    let world = World::new(workers);
    let (mut a, mut b) = (world.device(1), world.device(2));

    let (pd_a, (cq_a, wc_a)) = (a.alloc_pd(), a.create_cq(8));
    let (qp_a, qpn_a, send_a, _) = a.create_qp(pd_a, cq_a, 2);
    let pd_b = b.alloc_pd();
    let (channel, events) = b.create_channel();
    let (cq_b, wc_b) = b.try_create_cq(8, channel as i32).unwrap();
    let (qp_b, qpn_b, _, recv_b) = b.create_qp(pd_b, cq_b, 2);
    connect(&mut a, qp_a, qpn_b, 2);
    connect(&mut b, qp_b, qpn_a, 1);

    let (source, arena) = arena();
    let start = source.as_ptr() as u64;
    let mr_a = a.reg_mr(&reg_mr(pd_a, start, LEN), &[arena_segment(&source, LEN)], Some(arena.as_fd())).unwrap();
    let mut target = vec![0u8; LEN];
    let to = target.as_mut_ptr() as u64;
    let private = Segment { addr: to, len: LEN as u64, kind: SegmentKind::Private as u32, reserved: 0, offset: 0 };
    let mr_b = b.reg_mr(&reg_mr(pd_b, to, LEN), &[private], None).unwrap();

    let words: Vec<u8> = (0..LEN).map(|i| (i * 7) as u8).collect();
    rustix::io::pwrite(&arena, &words, 0).unwrap();
    b.page.as_ref().unwrap().arm_cq(cq_b, Arm::Any);
    post_recv(&recv_b, 22, to, LEN as u32, mr_b.lkey);
    post_send(&send_a, 11, start, LEN as u32, mr_a.lkey);
    ring_doorbell(&a, qp_a);

    let sent = poll(&wc_a);
    assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.qpn), (11, 0, 0, qpn_a));
    assert_eq!(poll(&wc_b), Wc { wr_id: 22, status: 0, opcode: 128, byte_len: LEN as u32, qpn: qpn_b });
    assert_eq!(target, words);
    wait_for(&events);
    let mut event = [0; 8];
    assert_eq!(rustix::io::read(&events, &mut event), Ok(8));
    assert_eq!(u64::from_ne_bytes(event), 0xc0);

    check_listing(&world, qpn_a, qpn_b);
    tear_down_by_hand(&mut b, qp_b, cq_b, mr_b.mr_handle, pd_b);
    drop((a, b));
    let totals = world.expect_reclaimed();
    assert_eq!((totals.objects_created, totals.objects_destroyed), (9, 4));
}

#[test]
fn a_message_crosses_one_worker() {
    send_between(1);
}

#[test]
fn a_message_crosses_two_workers() {
    send_between(2);
}

fn check_listing(world: &World, qpn_a: u32, qpn_b: u32) {
    let listing = world.server.snapshot();
    let of_a = listing.iter().find(|c| c.name == "e1").unwrap();
    assert_eq!((of_a.network.as_str(), of_a.pid), ("blue", std::process::id() as i32));
    assert_eq!((of_a.objects.qps, of_a.objects.cqs, of_a.objects.mrs, of_a.objects.pds), (1, 1, 1, 1));
    assert_eq!(of_a.pinned_bytes, LEN as u64);
    let row = of_a.qps[0];
    assert_eq!((row.qpn.value(), row.state, row.dest_qpn.value(), row.dgid), (qpn_a, QpState::Rts, qpn_b, gid(2)));
    assert_eq!((row.counters.tx_messages, row.counters.tx_bytes), (1, LEN as u64));
}

/// In the order of use: what is in use cannot go, and one event was read.
fn tear_down_by_hand(client: &mut Client, qp: u32, cq: u32, mr: u32, pd: u32) {
    use rustix::io::Errno;
    let destroy_cq = DestroyCq { cq_handle: cq, ..Default::default() };
    let busy = client.command::<DestroyCqResponse>(number::DESTROY_CQ, &destroy_cq, 0);
    assert_eq!(busy.err(), Some(Errno::BUSY));
    assert_eq!(client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }).err(), Some(Errno::BUSY));
    let destroy_qp = DestroyQp { qp_handle: qp, ..Default::default() };
    let (gone, _) = client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy_qp, 0).unwrap();
    assert_eq!(gone.events_reported, 0);
    let (gone, _) = client.command::<DestroyCqResponse>(number::DESTROY_CQ, &destroy_cq, 0).unwrap();
    assert_eq!((gone.comp_events_reported, gone.async_events_reported), (1, 0));
    client.order(number::DEREG_MR, &DeregMr { mr_handle: mr }).unwrap();
    client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }).unwrap();
}
