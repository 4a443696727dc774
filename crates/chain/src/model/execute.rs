//! Execution of one work request.

use super::memory::Memory;
use super::{InFlight, Message, Model};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Request, offset};
use rdmesh_verbs::{Access, WcStatus};

impl Model {
    /// Starts the next request of a queue; what is local has then ended.
    pub(super) fn start(&mut self, queue: u32) {
        if self.queues[queue as usize].fetched.is_empty() {
            self.fetch(queue);
        }
        let q = &mut self.queues[queue as usize];
        let Some((slot, request)) = q.fetched.pop_front() else { return };
        let index = q.next;
        q.next += 1;
        let Ok(request) = request else { return self.fail(queue, index, WcStatus::LocalQpOperationError) };
        let op = request.control.op;
        if let Some(trace) = &mut self.trace {
            trace.push((queue, index, op));
        }
        let bytes = if op == ChainOp::Nop || request.ordering().is_none() { 0 } else { request.length() };
        self.counts
            .add(op, if matches!(op, ChainOp::Wait | ChainOp::Enable | ChainOp::RecvEnable) { 0 } else { bytes });
        let result = match op {
            ChainOp::Nop => Ok(()),
            ChainOp::Wait | ChainOp::Enable | ChainOp::RecvEnable => self.order(queue, index, &request),
            _ if request.is_local() => self.perform_locally(&request, &slot),
            _ => {
                let in_flight = InFlight { index, request, slot, result: None };
                return self.queues[queue as usize].in_flight.push_back(in_flight);
            }
        };
        self.end(queue, index, &request, result);
    }

    /// Executes, at its responder, the oldest request that is not executed.
    pub(super) fn execute(&mut self, queue: u32) {
        let q = &self.queues[queue as usize];
        let client = q.client;
        let Some(at) = q.in_flight.iter().position(|f| f.result.is_none()) else { return };
        let InFlight { index, request, slot, .. } = q.in_flight[at].clone();
        match self.perform(client, &request, &slot) {
            Ok(data) => self.queues[queue as usize].in_flight[at].result = Some(data),
            Err(status) => self.fail(queue, index, status),
        }
    }

    /// Takes the result of the oldest request.
    pub(super) fn finish(&mut self, queue: u32) {
        let Some(InFlight { index, request, result, .. }) = self.queues[queue as usize].in_flight.pop_front() else {
            return;
        };
        let result = match result {
            Some(data) if request.control.op.returns_data() => self.memory.scatter(&request.sges, &data),
            _ => Ok(()),
        };
        self.end(queue, index, &request, result);
    }

    fn end(&mut self, queue: u32, index: u64, request: &Request, result: Result<(), WcStatus>) {
        match result {
            Err(status) => self.fail(queue, index, status),
            Ok(()) if request.is_signaled() => {
                let cq = self.queues[queue as usize].cq;
                self.produced[cq as usize] += 1;
            }
            Ok(()) => {}
        }
    }

    fn order(&mut self, queue: u32, index: u64, request: &Request) -> Result<(), WcStatus> {
        let order = request.ordering().ok_or(WcStatus::LocalQpOperationError)?;
        let executing = &self.queues[queue as usize];
        let count = order.at(index / executing.cycle);
        let limit = match request.control.op {
            ChainOp::Wait => {
                let exists = (order.object as usize) < self.produced.len();
                return if exists { Ok(()) } else { Err(WcStatus::LocalQpOperationError) };
            }
            ChainOp::Enable => self.queues.get_mut(order.object as usize).map(|q| &mut q.limit),
            _ => self.receives.get_mut(order.object as usize).map(|q| &mut q.limit),
        };
        let limit = limit.ok_or(WcStatus::LocalQpOperationError)?;
        *limit = if order.relative { limit.saturating_add(order.count) } else { (*limit).max(count) };
        Ok(())
    }

    fn perform_locally(&mut self, request: &Request, slot: &[u8]) -> Result<(), WcStatus> {
        if matches!(request.control.op, ChainOp::Send | ChainOp::SendImm | ChainOp::WriteImm) {
            return Err(WcStatus::LocalQpOperationError);
        }
        let data = outgoing(&mut self.memory, request, slot)?;
        let (result, faults) = respond(&mut self.memory, request, &data, true)?;
        self.counts.soft_faults += faults;
        if request.sges.is_empty() {
            return Ok(());
        }
        if request.control.op.returns_data() { self.memory.scatter(&request.sges, &result) } else { Ok(()) }
    }

    fn perform(&mut self, client: Option<u32>, request: &Request, slot: &[u8]) -> Result<Vec<u8>, WcStatus> {
        let op = request.control.op;
        let data = outgoing(&mut self.memory, request, slot)?;
        if op.is_atomic() && request.length() != op.width() as u64 {
            return Err(WcStatus::LocalLengthError);
        }
        let Some(client) = client else {
            if matches!(op, ChainOp::Send | ChainOp::SendImm | ChainOp::WriteImm) {
                return Err(WcStatus::RemoteInvalidRequest);
            }
            let (result, faults) = respond(&mut self.memory, request, &data, false)?;
            self.counts.soft_faults += faults;
            return Ok(result);
        };
        // The other atomics have no packet.
        if op.is_atomic() && !matches!(op, ChainOp::CompareSwap | ChainOp::FetchAdd) {
            return Err(WcStatus::LocalQpOperationError);
        }
        let client = &mut self.clients[client as usize];
        let mut result = Vec::new();
        if !matches!(op, ChainOp::Send | ChainOp::SendImm) {
            (result, _) = respond(&mut client.memory, request, &data, false)?;
        }
        if matches!(op, ChainOp::Send | ChainOp::SendImm | ChainOp::WriteImm) {
            client.inbox.push(Message { imm: op.has_imm().then_some(request.imm), data });
        }
        Ok(result)
    }
}

/// The data that a request sends.
fn outgoing(memory: &mut Memory, request: &Request, slot: &[u8]) -> Result<Vec<u8>, WcStatus> {
    if !request.control.op.sends_data() {
        return Ok(Vec::new());
    }
    let end = offset::SGES + request.inline_len as usize;
    if request.flags.contains(ChainFlags::INLINE) {
        return Ok(slot[offset::SGES..end].to_vec());
    }
    memory.gather(&request.sges)
}

/// Effect of a request on the responder's memory: the data it returns, and the number of checks that failed softly.
fn respond(memory: &mut Memory, request: &Request, data: &[u8], is_local: bool) -> Result<(Vec<u8>, u64), WcStatus> {
    let Request { args, flags, .. } = request;
    let right = |remote, local| if is_local { local } else { remote };
    let refused = right_status(is_local);
    match request.control.op {
        ChainOp::Read => {
            let length = request.length();
            match memory.copy(args.rkey, args.remote_addr, length, right(Access::REMOTE_READ, Access::empty())) {
                Some(bytes) => Ok((bytes, 0)),
                // Beyond its own memory a chain learns nothing of keys: a wrong one is an error.
                None if flags.contains(ChainFlags::SOFT)
                    && (is_local || memory.opens(args.rkey, Access::REMOTE_READ)) =>
                {
                    Ok((vec![0; length as usize], 1))
                }
                None => Err(refused),
            }
        }
        // A WRITE of nothing checks no key (IBA 9.4.3).
        ChainOp::Write | ChainOp::WriteImm if data.is_empty() => Ok((Vec::new(), 0)),
        ChainOp::Write | ChainOp::WriteImm => {
            let right = right(Access::REMOTE_WRITE, Access::LOCAL_WRITE);
            let bytes = memory.write(args.rkey, args.remote_addr, data.len() as u64, right).ok_or(refused)?;
            bytes.copy_from_slice(data);
            Ok((Vec::new(), 0))
        }
        op if op.is_atomic() => {
            if !args.remote_addr.is_multiple_of(8) {
                return Err(WcStatus::RemoteInvalidRequest);
            }
            let right = right(Access::REMOTE_ATOMIC, Access::LOCAL_WRITE);
            let bytes = memory.write(args.rkey, args.remote_addr, op.width() as u64, right).ok_or(refused)?;
            let old = bytes.to_vec();
            replace(request, bytes);
            Ok((old, 0))
        }
        _ => Err(WcStatus::LocalQpOperationError),
    }
}

fn replace(request: &Request, bytes: &mut [u8]) {
    if let Ok(word) = <[u8; 8]>::try_from(&*bytes) {
        bytes.copy_from_slice(&request.control.op.apply(u64::from_le_bytes(word), &request.args).to_le_bytes());
    } else if let Ok(words) = <[u8; 16]>::try_from(&*bytes) {
        bytes.copy_from_slice(&request.wide.apply(u128::from_le_bytes(words)).to_le_bytes());
    }
}

fn right_status(is_local: bool) -> WcStatus {
    if is_local { WcStatus::LocalProtectionError } else { WcStatus::RemoteAccessError }
}
