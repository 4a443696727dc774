//! Errors of managed queues: the first ends all queues of the group.

use super::Exec;
use crate::chain::ChainFault;
use crate::platform::Platform;
use rdmesh_verbs::{AsyncEvent, SendOp, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// Notes the error that the oldest request is about to end in.
    pub(in crate::exec) fn blame_oldest(&mut self, status: WcStatus) {
        let Some(entry) = self.qp.send.window.oldest().filter(|_| self.qp.send.chain.is_some()) else { return };
        let (index, named) = (entry.index, named(&entry.wr.op));
        self.blame_send(index, status, named);
    }

    pub(super) fn blame_send(&mut self, index: u64, status: WcStatus, (addr, key): (u64, u32)) {
        let qp = self.qp.handle;
        self.cx.chains.blame(ChainFault { qp, is_receive: false, index, status, addr, key });
    }

    /// Notes the error that the present receive request is about to end in.
    pub(in crate::exec) fn blame_receive(&mut self, status: WcStatus) {
        let Some(queue) = &self.qp.recv.chain else { return };
        let (qp, index) = (self.qp.handle, queue.next().saturating_sub(1));
        self.cx.chains.blame(ChainFault { qp, is_receive: true, index, status, addr: 0, key: 0 });
    }

    /// The queue pair has failed: so have all of its group. The program is told once.
    pub(in crate::exec) fn poison(&mut self) {
        self.forget_wait();
        if let Some(others) = self.cx.chains.fail(self.qp.handle) {
            self.out.chains.poison(others);
            self.out.async_event(self.qp.context, AsyncEvent::QpFatal, self.qp.handle);
        }
    }

    /// Nothing is enabled any more, and nothing fetched.
    pub(in crate::exec) fn reset_chain(&mut self) {
        self.forget_wait();
        self.qp.send.chain.iter_mut().for_each(|chain| chain.clear());
        self.qp.recv.chain.iter_mut().for_each(|chain| chain.clear());
        self.cx.chains.reset(self.qp.handle);
    }

    fn forget_wait(&mut self) {
        let index = self.index;
        self.out.chains.forget(index);
        let cq = self.qp.send.chain.as_mut().and_then(|chain| chain.waits_for.take());
        cq.and_then(|cq| self.cx.cq(cq)).into_iter().for_each(|cq| cq.forget(index));
    }
}

/// The remote address and key of a request.
fn named(op: &SendOp) -> (u64, u32) {
    match *op {
        SendOp::Write { remote_addr, rkey, .. }
        | SendOp::Read { remote_addr, rkey }
        | SendOp::CompareSwap { remote_addr, rkey, .. }
        | SendOp::FetchAdd { remote_addr, rkey, .. } => (remote_addr, rkey.0),
        SendOp::Calc { args, .. } => (args.remote_addr, args.rkey),
        _ => (0, 0),
    }
}
