//! Tests of the rings: wrap-around, hostile indices, every operation.

use super::*;
use crate::abi::{
    RxeAtomicArgs, RxeDmaInfo, RxeFlushArgs, RxeMwArgs, RxeRdmaArgs, RxeRecvWqe, RxeSendWqe, RxeSendWr, RxeUdArgs,
    WorkCompletion, wr_opcode as opcode,
};
use crate::guard::Alarm;
use crate::session::guest::Pages;
use proptest::prelude::*;
use rdmesh_verbs::chain::Ordering;
use rdmesh_verbs::{
    Access, Completion, Qkey, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};
use std::collections::VecDeque;
use zerocopy::Immutable;

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

/// Copies a struct of whole words to the memory at `offset`.
fn write<T: IntoBytes + Immutable>(queue: &Queue, offset: usize, value: &T) {
    let (words, rest) = value.as_bytes().as_chunks();
    assert!(rest.is_empty());
    queue.store(offset, &words.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>());
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
    write(queue, slot, &recv_wqe(wr_id, sges.len() as u32));
    for (i, sge) in sges.iter().enumerate() {
        let element = RxeSge { addr: sge.addr, length: sge.length, lkey: sge.lkey.0 };
        write(queue, slot + size_of::<RxeRecvWqe>() + i * SGE_LEN, &element);
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
    let blocks = || rustix::fs::fstat(file.fd().unwrap()).unwrap().st_blocks;
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
    write(&ring.queue, ring.queue.slot(0), &recv_wqe(77, 1000));
    assert_eq!(ring.take(&mut RecvWr::default()).unwrap().unwrap_err(), BadWqe { wr_id: 77 });
}

#[test]
fn elements_and_inline_data_stay_in_their_slot() {
    let mut ring = RecvRing::create(&file(), 3, 3).unwrap().ring;
    let fit = (ring.queue.elem_size() - size_of::<RxeRecvWqe>()) / SGE_LEN;
    for (index, num_sge, taken) in [(0, fit, Ok(())), (1, fit + 1, Err(BadWqe { wr_id: 77 }))] {
        assert!(post_recv(&ring.queue, 77, &[]));
        write(&ring.queue, ring.queue.slot(index), &recv_wqe(77, num_sge as u32));
        assert_eq!(ring.take(&mut RecvWr::default()), Some(taken));
    }
    let mut ring = SendRing::create(&file(), 3, 4, 64).unwrap().ring;
    let fit = (ring.queue.elem_size() - size_of::<RxeSendWqe>()) as u32;
    for (index, length, fetched) in [(0, fit, Ok(())), (1, fit + 1, Err(BadWqe { wr_id: 7 }))] {
        let wr = RxeSendWr { wr_id: 7, opcode: opcode::SEND, ..Default::default() };
        let dma = RxeDmaInfo { length, ..Default::default() };
        write(&ring.queue, ring.queue.slot(index), &RxeSendWqe { wr, dma, ..Default::default() });
        ring.queue.publish_producer(index + 1);
        assert_eq!(ring.fetch(QpType::Rc, &mut SendWr::empty()), Some(fetched));
    }
}

/// The operation that a send queue has for `opcode` with these arguments, and the inline data `data`.
fn operation<T: IntoBytes + Immutable>(opcode: u32, args: &T, data: u64, qp_type: QpType) -> Option<SendOp> {
    let mut ring = SendRing::create(&file(), 3, 4, 64).unwrap().ring;
    let wr = RxeSendWr { wr_id: 7, opcode, send_flags: 2, ex: 0x0a0b_0c0d, ..Default::default() };
    let dma = RxeDmaInfo { length: 8, ..Default::default() };
    let slot = ring.queue.slot(0);
    write(&ring.queue, slot, &RxeSendWqe { wr, dma, ..Default::default() });
    write(&ring.queue, slot + offset_of!(RxeSendWqe, args), args);
    write(&ring.queue, slot + size_of::<RxeSendWqe>(), &data);
    ring.queue.publish_producer(1);
    let mut wr = SendWr::empty();
    let fetched = ring.fetch(qp_type, &mut wr).unwrap();
    assert!(fetched.is_err() || (wr.wr_id, wr.flags & SendFlags::SIGNALED) == (7, SendFlags::SIGNALED));
    fetched.is_ok().then_some(wr.op)
}

#[test]
fn each_operation_has_its_own_arguments() {
    let (remote_addr, imm) = (0x1234_5678_9abc, Some(0x0a0b_0c0d));
    let rdma = RxeRdmaArgs { remote_addr, rkey: 5, reserved: 9 };
    let rc = |opcode| operation(opcode, &rdma, 0, QpType::Rc);
    assert_eq!(rc(opcode::SEND), Some(SendOp::Send { imm: None }));
    assert_eq!(rc(opcode::SEND_WITH_IMM), Some(SendOp::Send { imm }));
    assert_eq!(rc(opcode::SEND_WITH_INV), Some(SendOp::SendInvalidate { rkey: Key(0x0a0b_0c0d) }));
    assert_eq!(rc(opcode::LOCAL_INV), Some(SendOp::LocalInvalidate { key: Key(0x0a0b_0c0d) }));
    assert_eq!(rc(opcode::RDMA_WRITE), Some(SendOp::Write { remote_addr, rkey: Key(5), imm: None }));
    assert_eq!(rc(opcode::RDMA_WRITE_WITH_IMM), Some(SendOp::Write { remote_addr, rkey: Key(5), imm }));
    assert_eq!(rc(opcode::RDMA_READ), Some(SendOp::Read { remote_addr, rkey: Key(5) }));
    assert_eq!(rc(13), None);
    let value = 0x1122_3344_5566_7788u64;
    let written = SendOp::AtomicWrite { remote_addr, rkey: Key(5), value: value.to_ne_bytes() };
    assert_eq!(operation(opcode::ATOMIC_WRITE, &rdma, value, QpType::Rc), Some(written));

    let order = Ordering { object: 0, count: 9, step: 0, relative: false };
    for (op, is_receive) in [(0xf2, false), (0xf3, true)] {
        assert_eq!(operation(op, &rdma, 9, QpType::Rc), Some(SendOp::Enable { order, is_receive }));
        assert_eq!(operation(op, &rdma, 9, QpType::Ud), None);
    }
    assert_eq!(operation(0xf1, &rdma, 9, QpType::Rc), None, "only managed queues wait");

    let atomic = RxeAtomicArgs { remote_addr, compare_add: 1, swap: 2, rkey: 5, reserved: 9 };
    let rc = |opcode| operation(opcode, &atomic, 0, QpType::Rc);
    let swap = SendOp::CompareSwap { remote_addr, rkey: Key(5), compare: 1, swap: 2 };
    assert_eq!(rc(opcode::ATOMIC_CMP_AND_SWP), Some(swap));
    assert_eq!(rc(opcode::ATOMIC_FETCH_AND_ADD), Some(SendOp::FetchAdd { remote_addr, rkey: Key(5), add: 1 }));

    let bind = RxeMwArgs { addr: 1, length: 2, mr_lkey: 3, mw_rkey: 4, rkey: 5, access: 2 };
    let (mr, mw, new_key, access) = (Key(3), Key(4), Key(5), Access::REMOTE_WRITE);
    let bound = SendOp::BindMw { addr: 1, length: 2, mr, mw, new_key, access };
    assert_eq!(operation(opcode::BIND_MW, &bind, 0, QpType::Rc), Some(bound));

    let flush = RxeFlushArgs { remote_addr, length: 3, rkey: 5, kind: 1, level: 1, ..Default::default() };
    let flushed = SendOp::Flush { remote_addr, rkey: Key(5), length: 8, kind: 1, range: false };
    assert_eq!(operation(opcode::FLUSH, &flush, 0, QpType::Rc), Some(flushed));

    let ud = RxeUdArgs { remote_qpn: 4, remote_qkey: 5, ah_num: 6, ..Default::default() };
    let sent = SendOp::Datagram { ah: 6, qpn: Qpn::new(4), qkey: Qkey(5), imm };
    assert_eq!(operation(opcode::SEND_WITH_IMM, &ud, 0, QpType::Ud), Some(sent));
    assert_eq!(operation(opcode::RDMA_WRITE, &rdma, 0, QpType::Ud), None);
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

#[test]
fn queues_in_a_guest_lie_in_pages_anywhere_in_its_memory() {
    const PAGE: u64 = 4096;
    assert!(crate::guard::install(), "this kernel has no userfaultfd");
    let (guest, fd) = SharedMemory::create("guest", 64 * PAGE as usize).unwrap();
    let charge = |_| -> rustix::io::Result<file::Charge> { Ok(Box::new(())) };
    let file = QueueFile::in_guest(fd, &Alarm::default(), charge);
    assert_eq!(file.allocate(3 * PAGE as usize).err(), Some(rustix::io::Errno::NODATA));
    let wanted = file.take_wanted().unwrap();
    let places = vec![7 * PAGE, 3 * PAGE, 4 * PAGE];
    file.add_pages(&Pages { offset: wanted.offset, places: places.clone() }).unwrap();
    let (queue, offset) = file.allocate(3 * PAGE as usize).unwrap();
    assert_eq!(offset, wanted.offset);
    for (index, place) in places.iter().enumerate() {
        let byte = |memory: &SharedMemory, at: usize| memory.as_ptr().wrapping_add(at);
        let (from, to) = (byte(&guest, *place as usize), byte(&queue, index * PAGE as usize));
        #[allow(unsafe_code)]
        // SAFETY: both are within their mappings.
        let seen = unsafe {
            from.write_volatile(index as u8 + 1);
            to.read_volatile()
        };
        assert_eq!(usize::from(seen), index + 1);
    }
    // Beyond what was named, and beyond the memory's end.
    assert_eq!(file.allocate(100).err(), Some(rustix::io::Errno::NODATA));
    let wanted = file.take_wanted().unwrap();
    file.add_pages(&Pages { offset: wanted.offset, places: vec![64 * PAGE] }).unwrap();
    assert_eq!(file.allocate(100).err(), Some(rustix::io::Errno::INVAL));
}
