//! Errors of managed queues: the first ends all queues of the group.

use super::Exec;
use crate::chain::ChainFault;
use crate::platform::Platform;
use crate::qp::Inflight;
use crate::wire::NakCode;
use rdmesh_verbs::{AsyncEvent, SendOp, WcStatus};

/// Notes the error that the oldest request is about to end in.
pub(in crate::exec) fn blame_oldest<P: Platform>(exec: &mut Exec<'_, P>, status: WcStatus) {
    let Some(entry) = exec.qp.send.window.oldest().filter(|_| exec.qp.send.chain.is_some()) else { return };
    let blamed = Blamed::of(entry);
    blame_send(exec, blamed, status);
}

/// A request that ends in an error.
pub(super) struct Blamed {
    pub(super) index: u64,
    /// The memory that it names; 0 where it names none.
    pub(super) addr: u64,
    pub(super) key: u32,
}

impl Blamed {
    fn of<M>(entry: &Inflight<M>) -> Self {
        let (addr, key) = match entry.wr.op {
            SendOp::Write { remote_addr, rkey, .. }
            | SendOp::Read { remote_addr, rkey }
            | SendOp::CompareSwap { remote_addr, rkey, .. }
            | SendOp::FetchAdd { remote_addr, rkey, .. } => (remote_addr, rkey.0),
            SendOp::Calc { args, .. } => (args.remote_addr, args.rkey),
            _ => (0, 0),
        };
        Self { index: entry.index, addr, key }
    }
}

pub(super) fn blame_send<P: Platform>(exec: &mut Exec<'_, P>, blamed: Blamed, status: WcStatus) {
    let Blamed { index, addr, key } = blamed;
    let qp = exec.qp.made().handle;
    exec.cx.chains.blame(ChainFault { qp, is_receive: false, index, status, addr, key });
}

/// Notes the error that a message, or the present receive request, is about to end in. A queue pair that is connected to itself
/// has failed by its own request, which never learns of it.
pub(in crate::exec) fn blame_receive<P: Platform>(exec: &mut Exec<'_, P>, nak: NakCode, status: WcStatus) {
    if let Some(blamed) = own_request(exec) {
        let status = match nak {
            NakCode::RemoteAccess => WcStatus::RemoteAccessError,
            NakCode::RemoteOperation => WcStatus::RemoteOperationError,
            _ => WcStatus::RemoteInvalidRequest,
        };
        return blame_send(exec, blamed, status);
    }
    let Some(queue) = &exec.qp.recv.chain else { return };
    let (qp, index) = (exec.qp.made().handle, queue.next().saturating_sub(1));
    exec.cx.chains.blame(ChainFault { qp, is_receive: true, index, status, addr: 0, key: 0 });
}

/// The request, of a managed queue whose packets come back to it, that the expected packet belongs to, and what it names.
fn own_request<P: Platform>(exec: &Exec<'_, P>) -> Option<Blamed> {
    let (send, own) = (&exec.qp.send, exec.qp.made().qpn);
    if send.chain.is_none() || exec.qp.attr.dest_qpn != own || exec.qp.recv.busy {
        return None;
    }
    let psn = exec.qp.recv.expected_psn;
    let entry = send.window.iter().filter(|entry| entry.started && psn.since(entry.first_psn) >= 0).last()?;
    Some(Blamed::of(entry))
}

/// The queue pair has failed: so have all of its group. The program is told once.
pub(in crate::exec) fn poison<P: Platform>(exec: &mut Exec<'_, P>) {
    if !exec.qp.is_managed() {
        return;
    }
    forget_wait(exec);
    if let Some(others) = exec.cx.chains.fail(exec.qp.made().handle) {
        exec.out.chains.poison(others);
        exec.out.async_event(exec.qp.made().context, AsyncEvent::QpFatal, exec.qp.made().handle);
    }
}

/// Nothing is enabled any more, and nothing fetched.
pub(in crate::exec) fn reset<P: Platform>(exec: &mut Exec<'_, P>) {
    if !exec.qp.is_managed() {
        return;
    }
    forget_wait(exec);
    exec.qp.send.chain.iter_mut().for_each(|chain| chain.clear());
    exec.qp.recv.chain.iter_mut().for_each(|chain| chain.clear());
    exec.cx.chains.reset(exec.qp.made().handle);
}

fn forget_wait<P: Platform>(exec: &mut Exec<'_, P>) {
    let index = exec.index;
    let Some(chain) = &mut exec.qp.send.chain else { return };
    if let Some(at) = chain.refill.take() {
        exec.out.chains.forget(index, at, chain.last);
    }
    chain.waits_for.take().and_then(|cq| exec.cx.cq(cq)).into_iter().for_each(|cq| cq.forget(index));
}
