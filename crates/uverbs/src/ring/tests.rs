use super::*;
use crate::abi::{RxeDmaInfo, RxeRecvWqe, WorkCompletion};
use proptest::prelude::*;
use rdmesh_verbs::{Completion, QpType, Qpn, RecvWr, SendWr, WcFlags, WcOpcode, WcStatus};
use std::collections::VecDeque;

fn file() -> QueueFile {
    QueueFile::create().unwrap()
}

fn completion(wr_id: u64) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len: 7,
        imm: 9,
        qpn: Qpn::new(5),
        src_qp: Qpn::new(6),
        sl: 0,
        flags: WcFlags::WITH_IMM,
    }
}

fn recv_wqe(wr_id: u64, num_sge: u32) -> RxeRecvWqe {
    RxeRecvWqe { wr_id, dma: RxeDmaInfo { num_sge, ..Default::default() }, ..Default::default() }
}

/// Posts a receive as rdma-core's provider does.
fn post_recv(queue: &Queue, wr_id: u64, sges: &[Sge]) -> bool {
    let index = queue.producer();
    let next = (index + 1) & queue.mask;
    if next == queue.consumer() {
        return false;
    }
    let slot = queue.slot(index);
    queue.write(slot, &recv_wqe(wr_id, sges.len() as u32));
    for (i, sge) in sges.iter().enumerate() {
        let element = RxeSge { addr: sge.addr, length: sge.length, lkey: sge.lkey.0 };
        queue.write(slot + size_of::<RxeRecvWqe>() + i * SGE_LEN, &element);
    }
    queue.publish_producer(next);
    true
}

#[test]
fn slots_round_up_as_rxe_rounds() {
    for (asked, slots) in [(1, 1), (2, 3), (3, 3), (4, 7), (100, 127)] {
        assert_eq!(CompletionRing::create(&file(), asked).unwrap().slots, slots);
    }
}

#[test]
fn a_full_completion_ring_refuses() {
    let mut ring = CompletionRing::create(&file(), 3).unwrap().ring;
    assert!((0..3).all(|i| ring.push(&completion(i))));
    assert!(!ring.push(&completion(3)));
    ring.queue.publish_consumer(1);
    assert!(ring.push(&completion(3)));
}

#[test]
fn resizing_keeps_unpolled_entries() {
    let mut old = CompletionRing::create(&file(), 7).unwrap().ring;
    (0..5).for_each(|i| assert!(old.push(&completion(i))));
    old.queue.publish_consumer(2);
    let mut small = CompletionRing::create(&file(), 1).unwrap().ring;
    assert!(!old.move_into(&mut small));
    let mut new = CompletionRing::create(&file(), 3).unwrap().ring;
    assert!(old.move_into(&mut new));
    assert_eq!(new.len(), 3);
    assert_eq!(new.queue.read::<WorkCompletion>(new.queue.slot(0)).wr_id, 2);
}

#[test]
fn a_queue_that_is_gone_keeps_no_pages() {
    let file = file();
    let blocks = || rustix::fs::fstat(file.fd()).unwrap().st_blocks;
    let ring = CompletionRing::create(&file, 1000).unwrap();
    let other = CompletionRing::create(&file, 1).unwrap();
    assert_ne!(ring.offset, other.offset);
    let mut ring = ring.ring;
    (0..1000).for_each(|i| assert!(ring.push(&completion(i))));
    let full = blocks();
    drop(ring);
    assert!(blocks() < full / 8, "{} of {full} blocks are left", blocks());
}

#[test]
fn a_hostile_producer_index_stays_in_the_ring() {
    let mut ring = RecvRing::create(&file(), 3, 1).unwrap().ring;
    ring.queue.publish_producer(u32::MAX);
    for _ in 0..3 {
        assert!(ring.take(&mut RecvWr::default()).is_some());
    }
    assert!(ring.take(&mut RecvWr::default()).is_none());
}

#[test]
fn an_index_beyond_the_ring_is_counted_once_each_time_it_is_written() {
    let file = file();
    let mut recv = RecvRing::create(&file, 3, 1).unwrap().ring;
    let cq = CompletionRing::create(&file, 3).unwrap().ring;
    for index in 0..4 {
        recv.queue.publish_producer(index);
        cq.queue.publish_consumer(index);
        assert!(recv.len() < 4 && cq.len() < 4);
    }
    assert_eq!(file.take_bad_indices(), 0, "any index within the ring may be honest");
    recv.queue.publish_producer(4);
    while recv.take(&mut RecvWr::default()).is_some() {}
    cq.queue.publish_consumer(u32::MAX);
    (0..5).for_each(|_| assert!(cq.len() < 4));
    assert_eq!((file.take_bad_indices(), file.take_bad_indices()), (2, 0));
    recv.queue.publish_producer(5);
    assert!(recv.len() < 4);
    assert_eq!(file.take_bad_indices(), 1);
}

#[test]
fn too_many_elements_are_refused() {
    let mut ring = RecvRing::create(&file(), 3, 1).unwrap().ring;
    assert!(post_recv(&ring.queue, 77, &[]));
    ring.queue.write(ring.queue.slot(0), &recv_wqe(77, 1000));
    assert_eq!(ring.take(&mut RecvWr::default()).unwrap().unwrap_err(), BadWqe { wr_id: 77 });
}

proptest! {
    /// The ring against a queue: what is posted is taken, in order, once.
    #[test]
    fn receives_are_taken_in_order(steps in proptest::collection::vec(0..4u8, 1..200)) {
        let mut ring = RecvRing::create(&file(), 7, 2).unwrap().ring;
        let mut model = VecDeque::new();
        for (n, step) in steps.into_iter().enumerate() {
            if step < 3 {
                let sge = Sge { addr: n as u64, length: 3, lkey: Key(4) };
                let posted = post_recv(&ring.queue, n as u64, &[sge, sge][..usize::from(step)]);
                prop_assert_eq!(posted, model.len() < 7);
                if posted {
                    model.push_back((n as u64, usize::from(step)));
                }
            } else {
                let mut wr = RecvWr::default();
                let taken = ring.take(&mut wr).map(|taken| taken.map(|()| (wr.wr_id, wr.sges.len())));
                prop_assert_eq!(taken, model.pop_front().map(Ok));
            }
            prop_assert_eq!(ring.len() as usize, model.len());
        }
    }

    /// Any bytes in a send slot give a request or an error, and nothing is read outside the slot.
    #[test]
    fn any_send_element_is_survived(words in proptest::collection::vec(any::<u64>(), 64), ud in any::<bool>()) {
        let mut ring = SendRing::create(&file(), 3, 4, 64).unwrap().ring;
        let count = ring.queue.elem_size() / 8;
        ring.queue.store(ring.queue.slot(0), &words[..count.min(64)]);
        ring.queue.publish_producer(1);
        let qp_type = if ud { QpType::Ud } else { QpType::Rc };
        let mut wr = SendWr::empty();
        if ring.fetch(qp_type, &mut wr).unwrap().is_ok() {
            prop_assert!(wr.inline_len as usize <= ring.queue.elem_size());
        }
        ring.release(1);
    }
}
