//! Requests of managed queues: fetched when they may start, and executed where that needs no peer.
//!
//! WAIT, ENABLE, NOP and LOCAL requests end before the next slot is fetched and never enter the send window: a
//! retransmission goes back in the window only, so that none of them is executed twice.
//!
//! * [`local`]: LOCAL requests; [`order`]: WAIT and ENABLE; [`ends`]: errors, and the end of a group.

pub(super) mod ends;
mod local;
pub(super) mod order;

use super::Exec;
use crate::chain::{Executed, ManagedSend, Side, Target};
use crate::platform::Platform;
use crate::schedule::cost;
use alloc::boxed::Box;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class, Request};
use rdmesh_verbs::{Key, Precedence, SendFlags, SendOp, WcStatus};

/// A managed send queue in its turn.
struct Turn<'a, P: Platform> {
    exec: Exec<'a, P>,
    queue: Box<ManagedSend<P::Memory>>,
}

/// Result of a step.
enum Step {
    /// Nothing can start before the queue is woken.
    Parked,
    /// Nothing can start before an earlier request of the queue has ended.
    Blocked,
    /// The request is in the send window, or goes on in the next step.
    Done,
    /// The request has ended.
    Ended(Ended),
}

/// A request that has ended without entering the window.
struct Ended {
    wr_id: u64,
    op: ChainOp,
    is_signaled: bool,
    len: u32,
    index: u64,
    result: Result<(), Failure>,
}

/// Failure of a request, with what it named.
struct Failure {
    status: WcStatus,
    addr: u64,
    key: u32,
}

impl Failure {
    fn new(status: WcStatus) -> Self {
        Self { status, addr: 0, key: 0 }
    }
}

impl<P: Platform> Exec<'_, P> {
    /// Takes the next step of a managed send queue; false where there is none now.
    pub(super) fn step(&mut self) -> bool {
        let Some(queue) = self.qp.send.chain.take() else { return false };
        let mut turn = Turn { exec: self.reborrow(), queue };
        let step = turn.step();
        let Turn { mut queue, .. } = turn;
        queue.is_parked = matches!(step, Step::Parked);
        self.qp.send.chain = Some(queue);
        match step {
            Step::Parked | Step::Blocked => false,
            Step::Done => true,
            Step::Ended(ended) => {
                self.end_step(&ended);
                true
            }
        }
    }

    fn end_step(&mut self, ended: &Ended) {
        let Ended { wr_id, op, is_signaled, len, .. } = *ended;
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        match &ended.result {
            Ok(()) if self.finish_send(wr_id, op.wc_opcode(), flags, len, WcStatus::Success) => {}
            // The completion found no room.
            Ok(()) => {
                ends::blame_send(self, ends::Blamed { index: ended.index, addr: 0, key: 0 }, WcStatus::General);
                self.fail_send();
            }
            Err(failure) => {
                let blamed = ends::Blamed { index: ended.index, addr: failure.addr, key: failure.key };
                ends::blame_send(self, blamed, failure.status);
                self.qp.counters.errors += 1;
                self.finish_send(wr_id, op.wc_opcode(), flags, 0, failure.status);
                self.fail_send();
            }
        }
    }
}

impl<P: Platform> Turn<'_, P> {
    fn step(&mut self) -> Step {
        let (qp, index, now) = (self.exec.qp.made().handle, self.exec.index, self.exec.out.now);
        if !self.exec.cx.chains.may_start(Target { qp, side: Side::Send }, self.queue.next()) {
            self.exec.cx.chains.rest(qp);
            return Step::Parked;
        }
        if let Some(at) = self.exec.out.schedule.steps_wait(index, now) {
            self.exec.cx.chains.starve(qp, now);
            if let Some(before) = self.queue.refill.replace(at) {
                self.exec.out.chains.forget(index, before, self.queue.last);
            }
            self.exec.out.chains.wake_at(index, at, self.queue.last);
            return Step::Parked;
        }
        if self.exec.qp.send.window.is_full() {
            return Step::Blocked;
        }
        if let Err(unfit) = self.queue.fetch() {
            return self.enter_unfit(unfit.wr_id);
        }
        let request = self.queue.request();
        let (op, is_local) = (request.control.op, request.is_local());
        let is_fenced = request.flags.contains(ChainFlags::FENCE);
        let has_packets =
            !is_local && !matches!(op, ChainOp::Nop | ChainOp::Wait | ChainOp::Enable | ChainOp::RecvEnable);
        if has_packets && op == ChainOp::WideCompareSwap {
            // No packet has room for its operands.
            let wr_id = request.wr_id;
            return self.enter_unfit(wr_id);
        }
        if has_packets {
            return self.enter_window();
        }
        if is_fenced && self.must_wait() {
            return Step::Blocked;
        }
        match op {
            ChainOp::Nop => self.end(Ok(())),
            ChainOp::Wait => self.wait(),
            ChainOp::Enable | ChainOp::RecvEnable => {
                let result = self.enable();
                self.end(result)
            }
            _ => match self.perform() {
                Ok(false) => Step::Done,
                Ok(true) => self.end(Ok(())),
                Err(failure) => self.end(Err(failure)),
            },
        }
    }

    /// Whether a READ or an atomic is under way.
    fn must_wait(&self) -> bool {
        let fence = Precedence { is_fenced: true, ..Precedence::default() };
        self.exec.qp.must_wait(fence, self.exec.qp.send.window.len())
    }

    /// The request has ended; the next one may be fetched.
    fn end(&mut self, result: Result<(), Failure>) -> Step {
        let request = self.queue.request();
        // The lengths of the others are operands, or nothing.
        let moves = request.control.op != ChainOp::Nop && request.control.op.class() != Class::Order;
        let len = if moves { request.length() } else { 0 };
        let (wr_id, op, is_signaled) = (request.wr_id, request.control.op, request.is_signaled());
        let ended = Ended { wr_id, op, is_signaled, len: len as u32, index: self.queue.next(), result };
        self.started(op, len, 0);
        Step::Ended(ended)
    }

    /// The request has started: it counts, and the next one is behind it. `carried` bytes are charged when they are sent.
    fn started(&mut self, op: ChainOp, len: u64, carried: u64) {
        let index = self.queue.next();
        self.queue.advance();
        self.queue.last = self.exec.out.chains.start();
        let (qp, at) = (self.exec.qp.made().handle, self.exec.out.now);
        let steps = self.exec.cx.chains.count(Executed { number: 0, qp, is_receive: false, index, op, bytes: len, at });
        let Exec { index, out, .. } = &mut self.exec;
        out.schedule.charge_steps(*index, out.now, steps);
        if carried == 0 {
            out.spend(0);
            out.chains.spend(cost(1, 0));
        }
    }

    /// A request with packets enters the send window.
    fn enter_window(&mut self) -> Step {
        let request = self.queue.request();
        let (op, length) = (request.control.op, request.length());
        let is_inline = request.flags.contains(ChainFlags::INLINE) && op.sends_data();
        let copy = if is_inline { self.queue.keep_inline() } else { None };
        if is_inline && copy.is_none() {
            return self.enter_unfit(self.queue.request().wr_id);
        }
        let request = self.queue.request();
        let entry = self.exec.qp.send.window.next();
        fill(&mut entry.wr, request);
        entry.begin(if op.is_atomic() { WORD } else { length }, copy);
        entry.soft = op == ChainOp::Read && request.flags.contains(ChainFlags::SOFT);
        entry.index = self.queue.next();
        self.exec.qp.send.window.push();
        self.started(op, length, length.max(1));
        Step::Done
    }

    /// A slot that cannot be understood: earlier requests complete first, so that the error waits for its turn.
    fn enter_unfit(&mut self, wr_id: u64) -> Step {
        let entry = self.exec.qp.send.window.next();
        entry.begin(0, None);
        (entry.wr.wr_id, entry.wr.op, entry.bad) = (wr_id, SendOp::Send { imm: None }, true);
        (entry.wr.flags, entry.index) = (SendFlags::empty(), self.queue.next());
        self.exec.qp.send.window.push();
        self.queue.advance();
        Step::Done
    }
}

/// The request as an ordinary queue would have it.
fn fill(wr: &mut rdmesh_verbs::SendWr, request: &Request) {
    let Request { wr_id, control, flags, imm, args, inline_len, .. } = *request;
    let (remote_addr, rkey) = (args.remote_addr, Key(args.rkey));
    wr.wr_id = wr_id;
    wr.flags = SendFlags::from_bits_truncate(flags.bits());
    wr.flags.set(SendFlags::SIGNALED, request.is_signaled());
    wr.flags.set(SendFlags::INLINE, flags.contains(ChainFlags::INLINE) && control.op.sends_data());
    wr.inline_len = inline_len;
    wr.sges.clear();
    // Both lists have room for the same number.
    let _ = wr.sges.try_extend_from_slice(&request.sges);
    wr.op = match control.op {
        ChainOp::Send => SendOp::Send { imm: None },
        ChainOp::SendImm => SendOp::Send { imm: Some(imm) },
        ChainOp::Write => SendOp::Write { remote_addr, rkey, imm: None },
        ChainOp::WriteImm => SendOp::Write { remote_addr, rkey, imm: Some(imm) },
        ChainOp::Read => SendOp::Read { remote_addr, rkey },
        ChainOp::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: args.compare_add, swap: args.swap },
        ChainOp::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: args.compare_add },
        op => SendOp::Calc { op, args },
    };
}

/// Bytes of an atomic.
const WORD: u64 = 8;
