//! Tests of messages that are posted just before their queue pair ends, or before a command that depends on their completions.

use crate::client::{Client, Ring};
use crate::rings::{poll, post_recv, post_send};
use crate::traffic::{LEN, arena, arena_segment, connect, reg_mr};
use crate::world::World;
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{AttrMask, QpState};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Messages of a round: more than a worker sends to another before it has an answer.
const MESSAGES: u64 = 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Error,
    Reset,
    Drained,
    Destroyed,
    Closed,
}

/// One side: a queue pair and memory.
struct Side {
    client: Client,
    qp: u32,
    qpn: u32,
    cq: u32,
    completions: Ring,
    send: Ring,
    recv: Ring,
    memory: (SharedMemory, OwnedFd),
    lkey: u32,
}

impl Side {
    fn open(world: &World, endpoint: u8) -> Self {
        let mut client = world.device(endpoint);
        let (pd, (cq, completions)) = (client.alloc_pd(), client.create_cq(256));
        let slots = CreateQp { max_send_wr: MESSAGES as u32, max_recv_wr: MESSAGES as u32, ..Default::default() };
        let (qp, qpn, send, recv) = client.create_qp_like(pd, cq, 2, slots);
        let memory = arena();
        let start = memory.0.as_ptr() as u64;
        let segments = [arena_segment(&memory.0, LEN)];
        let lkey = client.reg_mr(&reg_mr(pd, start, LEN), &segments, Some(memory.1.as_fd())).unwrap().lkey;
        Self { client, qp, qpn, cq, completions, send, recv, memory, lkey }
    }

    fn start(&self) -> u64 {
        self.memory.0.as_ptr() as u64
    }

    /// Ends the queue pair at once: the worker, which sleeps, is not even told that there is something to send.
    fn end(mut self, ending: Ending) {
        self.client.page.as_ref().unwrap().ring(self.qp);
        let state = match ending {
            Ending::Error => QpState::Error,
            Ending::Reset => QpState::Reset,
            Ending::Drained => QpState::Sqd,
            Ending::Destroyed => {
                let destroy = DestroyQp { qp_handle: self.qp, ..Default::default() };
                self.client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy, 0).unwrap();
                // The message contains the data of that time, not what the program writes now.
                return rustix::io::pwrite(&self.memory.1, &[0xee; LEN], 0).map(drop).unwrap();
            }
            Ending::Closed => return,
        };
        let modify = ModifyQp {
            qp_handle: self.qp,
            attr_mask: AttrMask::STATE.bits(),
            qp_state: state as u8,
            ..Default::default()
        };
        self.client.order(number::MODIFY_QP, &modify).unwrap();
    }
}

/// Two connected sides.
fn connected(world: &World) -> (Side, Side) {
    let (mut a, mut b) = (Side::open(world, 1), Side::open(world, 2));
    connect(&mut a.client, a.qp, b.qpn, 2);
    connect(&mut b.client, b.qp, a.qpn, 1);
    (a, b)
}

/// Posts all messages of a round from `a` to `b`.
fn post_all(a: &Side, b: &Side) {
    for n in 0..MESSAGES {
        post_recv(&b.recv, n, b.start(), LEN as u32, b.lkey);
        post_send(&a.send, n, a.start(), LEN as u32, a.lkey);
    }
}

fn messages_arrive(workers: usize, ending: Ending) {
    let world = World::new(workers);
    let (a, b) = connected(&world);
    let words: Vec<u8> = (0..LEN).map(|i| (i * 7) as u8).collect();
    rustix::io::pwrite(&a.memory.1, &words, 0).unwrap();
    post_all(&a, &b);
    a.end(ending);
    for n in 0..MESSAGES {
        let received = poll(&b.completions);
        assert_eq!((received.wr_id, received.status), (n, 0), "{ending:?} with {workers} workers");
    }
    let mut arrived = vec![0; LEN];
    rustix::io::pread(&b.memory.1, &mut arrived, 0).unwrap();
    assert_eq!(arrived, words, "{ending:?} with {workers} workers");
    drop(b);
    world.expect_reclaimed();
}

#[test]
fn what_was_posted_before_a_queue_pair_ends_arrives() {
    for workers in [1, 2] {
        for ending in [Ending::Error, Ending::Reset, Ending::Drained, Ending::Destroyed, Ending::Closed] {
            messages_arrive(workers, ending);
        }
    }
}

#[test]
fn a_completion_queue_does_not_become_smaller_than_what_was_posted_fills() {
    for workers in [1, 2] {
        let world = World::new(workers);
        let (mut a, b) = connected(&world);
        post_all(&a, &b);
        a.client.page.as_ref().unwrap().ring(a.qp);
        let resize = ResizeCq { cq_handle: a.cq, cqe: 1, ..Default::default() };
        let resized = a.client.command::<ResizeCqResponse>(number::RESIZE_CQ, &resize, 16);
        assert_eq!(resized.err(), Some(Errno::INVAL), "with {workers} workers");
        (0..MESSAGES).for_each(|n| assert_eq!(poll(&a.completions).wr_id, n));
        a.client.command::<ResizeCqResponse>(number::RESIZE_CQ, &resize, 16).unwrap();
    }
}
