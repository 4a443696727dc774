//! Checks of an engine's accesses to memory.

use super::{Check, Kind, Model, Op, violated};
use crate::layout::{CELLS, DATA, READABLE, RECV, SLOT, TARGET};
use crate::platform::{Atomic, Region};
use rdmesh_verbs::QpType;
use std::collections::VecDeque;

/// A program's memory.
pub struct Space {
    /// The bytes.
    pub region: Region,
    /// Owner of each slot.
    pub slots: Vec<Owner>,
    changes: VecDeque<Change>,
}

/// Owner of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Unassigned: not a byte may be written.
    Nobody,
    /// A queue pair's, by index.
    End(usize),
    /// A shared receive queue's, by index.
    Queue(usize),
}

/// Bytes that were changed, and when.
struct Change {
    step: u64,
    offset: u64,
    old: Vec<u8>,
}

impl Space {
    /// Memory with `slots` slots.
    pub fn new(region: Region, slots: usize) -> Self {
        Self { region, slots: vec![Owner::Nobody; slots], changes: VecDeque::new() }
    }

    /// Records the content of a place before a change.
    pub fn changed(&mut self, step: u64, offset: u64, old: &[u8]) {
        self.changes.push_back(Change { step, offset, old: old.to_vec() });
    }

    /// The first position at which `bytes` differs from all contents at `offset` after step `lower`.
    fn never_held(&self, offset: u64, bytes: &[u8], lower: u64) -> Option<usize> {
        let now = self.region.get(offset, bytes.len());
        let mut wrong: Vec<usize> = (0..bytes.len()).filter(|&i| now[i] != bytes[i]).collect();
        for change in self.changes.iter().rev().take_while(|change| change.step > lower) {
            if wrong.is_empty() {
                break;
            }
            wrong.retain(|&i| {
                let at = (offset + i as u64).wrapping_sub(change.offset);
                change.old.get(at as usize) != Some(&bytes[i])
            });
        }
        wrong.first().copied()
    }
}

impl Model {
    pub(super) fn written(&mut self, region: u32, offset: u64, bytes: &[u8], old: &[u8]) -> Check {
        let Some(&space) = self.by_region.get(&region) else {
            return violated("P6", format!("write to memory of a dead program at {offset:#x}"));
        };
        let (slot, at) = ((offset / SLOT) as usize, offset % SLOT);
        let owner = self.spaces[space].slots.get(slot).copied().unwrap_or(Owner::Nobody);
        if RECV.contains(&at) {
            let queue = match owner {
                Owner::Queue(queue) => queue,
                Owner::End(end) => self.ends[end].queue,
                Owner::Nobody => return violated("P6", format!("write of {} bytes to a free slot", bytes.len())),
            };
            return self.queues[queue].written(offset, bytes.len() as u64);
        }
        let Owner::End(end) = owner else {
            return violated("P6", format!("write of {} bytes at {offset:#x}, slot of {owner:?}", bytes.len()));
        };
        if DATA.contains(&at) {
            return self.wrote_result(end, offset, bytes.len() as u64);
        }
        if !TARGET.contains(&at) {
            return violated("P6", format!("write of {} bytes at {at:#x} of end {end}'s slot", bytes.len()));
        }
        self.spaces[space].changed(self.step, offset, old);
        let sender = self.ends[end].peer;
        if self.ends[end].qp_type == QpType::Rc {
            self.wrote_reliably(sender, offset, bytes)
        } else {
            self.wrote_unreliably(sender, offset, bytes)
        }
    }

    /// The data of READs and atomics goes to the place that a request in progress names.
    fn wrote_result(&mut self, end: usize, offset: u64, len: u64) -> Check {
        let flow = &self.ends[end].flow;
        let within = |op: &Op| {
            let results = matches!(op.kind, Kind::Read { .. } | Kind::Add { .. } | Kind::Swap { .. });
            results && op.local <= offset && offset + len <= op.local + op.len
        };
        if flow.ops[flow.completed..].iter().any(within) {
            return Ok(());
        }
        violated("P6", format!("end {end}: {len} bytes of data at {offset:#x}, which no request waits for"))
    }

    /// WRITE on a reliable connection: every byte once, in order.
    fn wrote_reliably(&mut self, sender: usize, offset: u64, bytes: &[u8]) -> Check {
        self.advance(sender);
        let step = self.step;
        let flow = &mut self.ends[sender].flow;
        let index = flow.executed;
        let Some(op) = flow.ops.get_mut(index) else {
            return violated("P6", format!("end {sender} has no request left, but {} bytes were written", bytes.len()));
        };
        let Kind::Write { target, .. } = op.kind else {
            return violated("P2", format!("a WRITE while request {index} of end {sender} is next: {:?}", op.kind));
        };
        if op.fault.is_some() || offset != target + op.done || op.done + bytes.len() as u64 > op.len {
            let (done, len, fault) = (op.done, op.len, op.fault);
            let text = format!(
                "request {index} of end {sender} writes {len} at {target:#x} ({done} done, {fault:?}), not {} at {offset:#x}",
                bytes.len()
            );
            return violated("P2", text);
        }
        if op.data[op.done as usize..][..bytes.len()] != *bytes {
            return violated("P8", format!("request {index} of end {sender}: other bytes than posted at {}", op.done));
        }
        op.done += bytes.len() as u64;
        op.lower = Some(step);
        self.advance(sender);
        Ok(())
    }

    /// WRITE on an unreliable connection: some request's bytes, in their place. A late one may be of an earlier connection.
    fn wrote_unreliably(&mut self, sender: usize, offset: u64, bytes: &[u8]) -> Check {
        let pair = self.ends[sender].pair;
        let older = self.ends[..=sender].iter_mut().rev().filter(|end| end.pair == pair);
        let mut found = false;
        for op in older.flat_map(|end| end.flow.ops.iter_mut()) {
            let Kind::Write { target, .. } = op.kind else { continue };
            let within = target <= offset && offset + bytes.len() as u64 <= target + op.len;
            // A few bytes may be like those of several.
            if within && op.data[(offset - target) as usize..][..bytes.len()] == *bytes {
                op.done += bytes.len() as u64;
                found = true;
            }
        }
        if !found {
            return violated("P6", format!("{} bytes at {offset:#x} that end {sender} never sent", bytes.len()));
        }
        Ok(())
    }

    pub(super) fn executed_atomic(&mut self, region: u32, offset: u64, kind: Atomic, old: u64) -> Check {
        let Some(&space) = self.by_region.get(&region) else {
            return violated("P6", "atomic on a dead program's memory");
        };
        if !CELLS.contains(&(offset % SLOT)) {
            return violated("P6", format!("atomic at {offset:#x}"));
        }
        self.spaces[space].changed(self.step, offset, &old.to_ne_bytes());
        // Operands are unique, so they identify the request.
        let senders: Vec<usize> = (0..self.ends.len())
            .filter(|&end| self.ends[self.ends[end].peer].space == space && self.ends[self.ends[end].peer].alive)
            .collect();
        for sender in senders {
            self.advance(sender);
            let flow = &mut self.ends[sender].flow;
            if let Some(op) = flow.ops.get_mut(flow.executed)
                && op.fault.is_none()
                && atomic_of(&op.kind) == Some((offset, kind))
            {
                op.result = Some(old);
                flow.executed += 1;
                self.advance(sender);
                return Ok(());
            }
        }
        violated("P4", format!("{kind:?} at {offset:#x} is not the next request of anybody"))
    }

    /// Checks what READs have returned, once all effects until now are known.
    pub fn check_reads(&mut self) -> Check {
        let reads = std::mem::take(&mut self.reads);
        reads.into_iter().try_for_each(|(end, index)| self.check_read(end, index))
    }

    fn check_read(&self, end: usize, index: usize) -> Check {
        let this = &self.ends[end];
        let op = &this.flow.ops[index];
        let Kind::Read { target } = op.kind else { return Ok(()) };
        let Some(lower) = op.lower else {
            return violated("P3", format!("end {end}: READ {index} is done, but requests before it are not"));
        };
        let data = self.spaces[this.space].region.get(op.local, op.len as usize);
        match self.spaces[self.ends[this.peer].space].never_held(target, &data, lower) {
            None => Ok(()),
            Some(at) => violated("P5", format!("end {end}: READ {index}: byte {at} of {} was never there", op.len)),
        }
    }
}

fn atomic_of(kind: &Kind) -> Option<(u64, Atomic)> {
    match *kind {
        Kind::Add { cell, add } => Some((cell, Atomic::Add(add))),
        Kind::Swap { cell, compare, swap } => Some((cell, Atomic::Swap { compare, swap })),
        Kind::Put { cell, value } => Some((cell, Atomic::Write(value.to_ne_bytes()))),
        _ => None,
    }
}

const _: () = assert!(TARGET.end == READABLE.start && READABLE.end == CELLS.start, "READs may cross these borders");
