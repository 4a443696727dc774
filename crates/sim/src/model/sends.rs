//! Checks of completions of send requests.

use super::{Check, End, Kind, Model, WindowState, violated};
use crate::coverage::Seen;
use rdmesh_nic::Time;
use rdmesh_verbs::{Completion, QpType, WcOpcode, WcStatus};

impl Model {
    /// Checks the completion of a request of `end`.
    pub(super) fn sent(&mut self, now: Time, end: usize, wc: &Completion) -> Check {
        let index = End::op_index(wc.wr_id);
        let flow = &self.ends[end].flow;
        if wc.wr_id >> 24 != end as u64 || index >= flow.ops.len() {
            return violated("P2", format!("end {end}: completion of a request that it never posted: {wc:?}"));
        }
        if index < flow.completed {
            return violated(
                "P2",
                format!("end {end}: request {index} completes again, {} is next: {wc:?}", flow.completed),
            );
        }
        if wc.opcode != opcode(&flow.ops[index].kind) {
            return violated("P1", format!("end {end}: request {index} is {:?}: {wc:?}", flow.ops[index].kind));
        }
        let (first, failed) = (flow.completed, flow.failed);
        if failed && index != first {
            return violated("P7", format!("end {end}: request {index} is flushed before {first}"));
        }
        for earlier in first..index {
            if self.ends[end].flow.ops[earlier].signaled {
                return violated("P3", format!("end {end}: request {index} completes before {earlier}: {wc:?}"));
            }
            self.succeeded(end, earlier)?;
        }
        if wc.status == WcStatus::Success {
            if failed {
                return violated("P7", format!("end {end}: request {index} succeeds after one that failed"));
            }
            self.succeeded(end, index)?;
        } else {
            self.failed(now, end, index, wc.status)?;
            self.ends[end].flow.failed = true;
        }
        self.ends[end].flow.completed = index + 1;
        Ok(())
    }

    fn succeeded(&mut self, end: usize, index: usize) -> Check {
        self.advance(end);
        let this = &self.ends[end];
        let op = &this.flow.ops[index];
        if let Some(fault) = op.fault {
            return violated("P7", format!("end {end}: request {index} succeeds in spite of {fault:?}"));
        }
        if this.qp_type == QpType::Rc && this.flow.executed <= index {
            let text = format!("end {end}: request {index} succeeds, but {} is not executed", this.flow.executed);
            return violated("P1", format!("{text}: {:?}", this.flow.ops[this.flow.executed].kind));
        }
        let what = match op.kind {
            Kind::Send { .. } | Kind::Datagram { .. } => Seen::SendDone,
            Kind::Write { .. } => Seen::WriteDone,
            Kind::Flush => Seen::FlushDone,
            Kind::Put { .. } => Seen::AtomicDone,
            Kind::Read { .. } => {
                self.reads.push((end, index));
                Seen::ReadDone
            }
            Kind::Add { .. } | Kind::Swap { .. } => {
                let found = self.spaces[this.space].region.get(op.local, 8);
                if op.result.map(u64::to_ne_bytes).map(Vec::from) != Some(found) {
                    return violated(
                        "P4",
                        format!("end {end}: atomic {index} found {:?}, returned another", op.result),
                    );
                }
                Seen::AtomicDone
            }
            Kind::Bind { window } => {
                self.ends[end].windows[window].state = WindowState::Ready;
                return Ok(());
            }
        };
        self.seen.count(what);
        Ok(())
    }

    fn failed(&mut self, now: Time, end: usize, index: usize, status: WcStatus) -> Check {
        self.advance(end);
        self.advance(self.ends[end].peer);
        let this = &self.ends[end];
        let op = &this.flow.ops[index];
        let (expected, what) = match status {
            WcStatus::FlushError => (this.flow.failed || this.excused || self.peer_is_wrong(end), Seen::Flushed),
            WcStatus::RetryExceeded => (this.qp_type == QpType::Rc && self.may_give_up(now, end), Seen::RetryExceeded),
            WcStatus::RnrRetryExceeded => (this.plan.rnr_retry < 7 && op.takes_receive(), Seen::RnrRetryExceeded),
            status => {
                let what = match status {
                    WcStatus::RemoteAccessError => Seen::RemoteAccess,
                    WcStatus::RemoteInvalidRequest => Seen::RemoteInvalid,
                    _ => Seen::LocalProtection,
                };
                (op.fault.map(super::Fault::status) == Some(status), what)
            }
        };
        if !expected {
            let (plan, lossy, healed) = (&this.plan, self.lossy, self.healed);
            let setup = format!("timeout {}, {} retries, lossy {lossy}, healed {healed:?}", plan.timeout, plan.retry);
            return violated("P7", format!("end {end}: request {index} ends with {status:?} ({setup}): {op:?}"));
        }
        self.seen.count(what);
        Ok(())
    }

    /// Whether a request of the peer breaks this side's queue pair.
    fn peer_is_wrong(&self, end: usize) -> bool {
        let flow = &self.ends[self.ends[end].peer].flow;
        flow.ops.get(flow.executed).is_some_and(|op| op.fault.is_some())
    }

    /// Whether the peer may have been silent for as long as the retries take.
    fn may_give_up(&self, now: Time, end: usize) -> bool {
        let (this, peer) = (&self.ends[end], &self.ends[self.ends[end].peer]);
        if !peer.alive || peer.excused || peer.flow.failed {
            return true;
        }
        let sender = &peer.flow;
        if sender.ops.get(sender.executed).is_some_and(|op| op.fault.is_some()) {
            return true;
        }
        if this.flow.ops.get(this.flow.executed).is_some_and(|op| op.fault.is_some()) {
            return true;
        }
        self.lossy && self.healed.is_none_or(|healed| now.0 <= healed.0 + this.plan.retry_time())
    }
}

fn opcode(kind: &Kind) -> WcOpcode {
    match kind {
        Kind::Send { .. } | Kind::Datagram { .. } => WcOpcode::Send,
        Kind::Write { .. } => WcOpcode::RdmaWrite,
        Kind::Read { .. } => WcOpcode::RdmaRead,
        Kind::Add { .. } => WcOpcode::FetchAdd,
        Kind::Swap { .. } => WcOpcode::CompareSwap,
        Kind::Put { .. } => WcOpcode::AtomicWrite,
        Kind::Flush => WcOpcode::Flush,
        Kind::Bind { .. } => WcOpcode::BindMw,
    }
}
