//! A program with managed queues, connected to itself or to a peer.

use super::super::world::*;
use crate::chain::{ChainEntry, INLINE_COPIES, Manage, ManageSend, RingInit};
use crate::command::{Capabilities, CqInit, QpInit};
use crate::engine::{Device, RingRegion};
use crate::policy::{Bucket, Policy, Rate};
use rdmesh_verbs::chain::{Args, ChainFlags, ChainOp, Control, Request, offset};
use rdmesh_verbs::*;
use std::sync::Arc;

pub(super) const STRIDE: usize = 256;
pub(super) const RECV_STRIDE: usize = 128;
pub(super) const GROUP: u32 = 5;

/// A managed queue pair of a node's program, with completion queues of its own.
pub(super) struct Queue {
    pub(super) qp: u32,
    pub(super) node: Node,
    pub(super) ring: Bytes,
    pub(super) receive_ring: Bytes,
    pub(super) cq: u32,
    pub(super) completions: Completions,
}

/// An operation on the chain's own memory, or none.
pub(super) fn request(op: ChainOp) -> Request {
    Request { flags: ChainFlags::SIGNALED, ..Request::new(Control::new(op)) }
}

/// WAIT and ENABLE.
pub(super) fn order(op: ChainOp, object: u32, count: u64, step: u32) -> Request {
    let sges = [Sge { addr: count, length: step, lkey: Key(object) }].into_iter().collect();
    Request { flags: ChainFlags::empty(), sges, ..request(op) }
}

/// An unsignaled LOCAL atomic on the word at `at` of a node's memory.
pub(super) fn local(op: ChainOp, node: &Node, at: u64, compare_add: u64) -> Request {
    let args = Args { remote_addr: BASE + at, rkey: node.key.0, compare_add, ..Args::default() };
    Request { flags: ChainFlags::LOCAL, args, ..request(op) }
}

impl World {
    pub(in crate::engine::tests) fn device_of(&mut self, node: &Node) -> Device<'_, Test> {
        self.engines[node.engine].device(node.context).unwrap()
    }

    /// A second queue pair in the program of `node`, in RESET, that is not managed.
    pub(super) fn plain(&mut self, node: &Node, room: usize, ignores_overrun: bool) -> Queue {
        let completions = super::super::world::Completions { entries: Arc::default(), room, armed: Arc::default() };
        let (sends, recvs) = (Sends::default(), Recvs::default());
        let cqe = room as u32;
        let mut device = self.device_of(node);
        let cq = device.context_mut().create_cq(CqInit { queue: completions.clone(), cqe, ignores_overrun }).unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: node.pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: Capabilities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 3, max_recv_sge: 3, max_inline: 48 },
            signal_all: false,
            send: sends.clone(),
            recv: Some(recvs.clone()),
        };
        let (qp, qpn) = device.create_qp(init).unwrap();
        let Node { engine, context, pd, gid, qp_type, mr, key, .. } = *node;
        let memory = node.memory.clone();
        let node =
            Node { engine, context, pd, qp, qpn, gid, qp_type, sends, recvs, cq: completions.clone(), memory, mr, key };
        let (ring, receive_ring) = (Bytes::new(64 * STRIDE), Bytes::new(8 * RECV_STRIDE));
        Queue { qp, node, ring, receive_ring, cq, completions }
    }

    /// A managed one in RTS, connected to itself.
    pub(super) fn queue(&mut self, node: &Node, group: u32, requests: &[Request]) -> Queue {
        let queue = self.plain(node, 64, false);
        self.manage(&queue, group, requests.len() as u32).unwrap();
        queue.put(requests);
        self.connect(&queue.node, &queue.node);
        queue
    }

    pub(super) fn manage(&mut self, queue: &Queue, group: u32, cycle: u32) -> Result<(), crate::CommandError> {
        let ring = RingInit { memory: queue.ring.clone(), stride: STRIDE as u32, slots: 64, cycle };
        let copies = Bytes::new(INLINE_COPIES as usize * 48);
        let memory = queue.receive_ring.clone();
        let receive = Some(RingInit { memory, stride: RECV_STRIDE as u32, slots: 8, cycle: 1 });
        let init = Manage { group, send: Some(ManageSend { ring, copies }), receive };
        self.device_of(&queue.node).manage_qp(queue.qp, init)
    }

    pub(super) fn enable(&mut self, queue: &Queue, limit: u64) {
        self.device_of(&queue.node).enable(queue.qp, limit).unwrap();
        self.settle();
    }

    pub(super) fn entry(&mut self, node: &Node, group: u32) -> ChainEntry {
        self.device_of(node).chains().list().into_iter().find(|entry| entry.group == group).unwrap()
    }

    pub(super) fn produced(&mut self, queue: &Queue) -> u64 {
        let cqs = self.device_of(&queue.node).context().list_cqs(queue.cq, 1);
        cqs[0].produced
    }

    /// Puts a queue that was not enabled, and its count of completions, to where they would be after a long time.
    pub(super) fn preset(&mut self, queue: &Queue, next: u64, produced: u64) {
        let device = self.device_of(&queue.node);
        device.cx.cq(queue.cq).unwrap().preset(produced);
        let index = device.cx.qp(queue.qp).unwrap();
        device.qps.get_mut(index).unwrap().core_mut().send.chain.as_mut().unwrap().preset(next);
    }

    pub(super) fn ring_region(&mut self, queue: &Queue) -> RingRegion {
        self.device_of(&queue.node).register_send_ring(queue.qp, None, Access::LOCAL_WRITE).unwrap()
    }
}

impl Queue {
    /// Writes requests to the slots from the first on.
    pub(super) fn put(&self, requests: &[Request]) {
        for (i, request) in requests.iter().enumerate() {
            let mut slot = [0; STRIDE];
            request.encode(&mut slot);
            self.ring.put(i * STRIDE, &slot);
        }
    }

    /// The receive request of the managed receive queue.
    pub(super) fn put_receive(&self, sges: &[Sge]) {
        self.receive_ring.put(offset::RECV_NUM_SGE, &(sges.len() as u32).to_ne_bytes());
        for (i, sge) in sges.iter().enumerate() {
            let bytes = [&sge.addr.to_ne_bytes()[..], &sge.length.to_ne_bytes(), &sge.lkey.0.to_ne_bytes()].concat();
            self.receive_ring.put(offset::RECV_SGES + i * offset::SGE_LEN, &bytes);
        }
    }

    /// Statuses of the completions since the last call.
    pub(super) fn statuses(&self) -> Vec<WcStatus> {
        self.completions.entries.lock().unwrap().drain(..).map(|completion| completion.status).collect()
    }
}

impl Node {
    pub(super) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.memory.get(at, 8).try_into().unwrap())
    }
}

/// The policy of an endpoint whose chains have a budget.
pub(super) fn steps_policy(rate: Option<Rate>) -> Policy {
    Policy { steps: rate.map(|rate| Arc::new(Bucket::new(rate))), ..Policy::default() }
}
