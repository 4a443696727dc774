//! Simulated programs: they poll completions, post receives and requests, and change their memory.

use super::setup::receive_id;
use super::{Happening, World};
use crate::chance::pattern;
use crate::layout::{BASE, BUFFER, READABLE, SLOT};
use crate::model::{Buffer, Check, End, RECEIVE};
use rdmesh_nic::Time;
use rdmesh_verbs::{Completion, RecvWr, Sge};

impl World {
    /// A program has its turn.
    pub(super) fn tick(&mut self, node: usize) -> Check {
        if self.done {
            return Ok(());
        }
        let host = self.plan.nodes[node].host;
        let mut busy = false;
        if self.hosts[host].alive {
            while let Some(wc) = self.nodes[node].completions.poll() {
                busy = true;
                self.polled(node, &wc);
            }
            for end in self.ends_of(node) {
                busy |= self.post_receives(end);
                busy |= self.post_requests(end)?;
                self.change_memory(end);
            }
        }
        if self.is_done() {
            self.done = true;
            return Ok(());
        }
        let wait = self.workload.between(1, self.plan.tick * 2);
        let pace = &mut self.nodes[node].idle;
        *pace = if busy { 0 } else { (*pace + 1).min(6) };
        let at = Time(self.now.0 + (wait << *pace));
        self.schedule(at, Happening::Tick(node));
        Ok(())
    }

    fn ends_of(&self, node: usize) -> Vec<usize> {
        let live = self.pairs.iter().flatten().copied();
        live.filter(|&end| end != usize::MAX && self.model.ends[end].alive && self.node_of(end) == node).collect()
    }

    /// Completed buffers belong to the program again, which reuses them at once.
    fn polled(&mut self, node: usize, wc: &Completion) {
        if wc.wr_id & RECEIVE != 0 {
            let queue = ((wc.wr_id & !RECEIVE) >> 24) as usize;
            if let Some(start) = self.model.queues[queue].polled(wc.wr_id) {
                let space = self.model.queues[queue].space;
                self.model.spaces[space].region.put(start, &[0xbb; BUFFER as usize]);
            }
            return;
        }
        let end = (wc.wr_id >> 24) as usize;
        let space = self.nodes[node].space;
        let this = &mut self.model.ends[end];
        if this.space != space {
            return;
        }
        while let Some(&(op, start, len)) = this.used.front()
            && op <= End::op_index(wc.wr_id)
        {
            this.used.pop_front();
            let at = this.slot as u64 * SLOT + start;
            self.model.spaces[space].region.put(at, &vec![0xdd; len as usize]);
        }
    }

    /// Posts all receives that there are buffers for, unless the program is late.
    pub(super) fn post_receives(&mut self, end: usize) -> bool {
        let starved = self.plan.starve > 0.0 && self.model.healed.is_none();
        if starved && self.workload.happens(self.plan.starve) {
            return false;
        }
        let queue = self.model.ends[end].queue;
        let key = self.nodes[self.node_of(end)].key;
        let mut posted = false;
        while let Some(start) = self.model.queues[queue].free.pop() {
            let target = &mut self.model.queues[queue];
            let wr_id = receive_id(queue, target.next);
            target.next += 1;
            let mut pieces = Vec::new();
            let mut at = start;
            for piece in 1..=self.workload.between(1, 4) {
                let rest = start + BUFFER - at;
                let len = if piece == 3 { rest } else { self.workload.between(0, rest + 1) };
                pieces.push((at, len));
                at += len;
            }
            let rest = start + BUFFER - at;
            if rest != 0 {
                pieces.push((at, rest));
            }
            let sge = |&(at, len): &(u64, u64)| Sge { addr: BASE + at, length: len as u32, lkey: key };
            target.recvs.post(RecvWr { wr_id, sges: pieces.iter().map(sge).collect() });
            target.post(Buffer { wr_id, start, pieces });
            posted = true;
        }
        posted
    }

    /// Changes something that the peer may be reading.
    fn change_memory(&mut self, end: usize) {
        if !self.workload.happens(0.1) {
            return;
        }
        let len = self.workload.scale(1, 300);
        let at = READABLE.start + self.workload.between(0, READABLE.end - READABLE.start - len);
        let offset = self.model.ends[end].slot as u64 * SLOT + at;
        let space = self.model.ends[end].space;
        self.model.step += 1;
        let (step, name) = (self.model.step, self.workload.draw());
        let space = &mut self.model.spaces[space];
        let old = space.region.put(offset, &pattern(name, len as usize));
        space.changed(step, offset, &old);
    }
}
