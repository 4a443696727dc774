//! The send side of a queue pair: fetching work requests, sending them, and completing them in order.

use super::context::Context;
use super::output::Outputs;
use super::packet::{Body, Head, Nak, Packet, Reply, Request, RequestOp};
use super::qp::{Qp, Wait};
use super::window::Inflight;
use crate::memory::{BindRequest, CopyError, Payload, gather, scatter, scatter_bytes};
use crate::platform::{Platform, SendQueue};
use rdmesh_verbs::{
    AsyncEvent, Completion, QpState, QpType, Qpn, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus, ack_timeout,
    rnr_delay,
};

/// Bytes of one packet on the local path: large enough that packets cost little beside the copy, small enough that
/// QPs share a worker fairly.
pub(crate) const FRAGMENT: u32 = 64 * 1024;
/// Work requests of a QP on their way at once.
pub(crate) const WINDOW: usize = 64;
/// Packets that a QP sends before it lets the next one send.
const TURN: u32 = 16;
/// Requests of a broken queue that are flushed in one turn.
pub(crate) const FLUSH_TURN: usize = 256;
/// Bytes that a QP moves before it lets the next one.
const TURN_BYTES: u64 = 256 * 1024;
/// Packets of a QP without a reply.
const MAX_UNANSWERED: u32 = 32;
/// Largest datagram: the port's MTU.
const DATAGRAM_MAX: u64 = 4096;
/// Largest message (IBA 9.7.7).
const MESSAGE_MAX: u64 = 1 << 31;

/// Lets a QP send for one turn. Returns whether it did anything.
pub(crate) fn run<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) -> bool {
    if matches!(qp.state(), QpState::Error | QpState::Sqe) {
        return flush(index, qp, cx, out);
    }
    let mut worked = false;
    let end = out.moved + TURN_BYTES;
    for _ in 0..TURN {
        if out.moved >= end || !qp.can_send() || qp.send.unanswered >= MAX_UNANSWERED {
            break;
        }
        if qp.send.cursor == qp.send.window.len() && !fetch(qp) {
            break;
        }
        // An error while fetching leaves nothing to send.
        if qp.send.cursor < qp.send.window.len() && !send_next(index, qp, cx, out) {
            break;
        }
        worked = true;
    }
    worked
}

/// Takes the next work request from the ring into the window; false where there is none, or no room.
fn fetch<P: Platform>(qp: &mut Qp<P>) -> bool {
    if qp.send.window.is_full() {
        return false;
    }
    let entry = qp.send.window.next();
    let Some(fetched) = qp.send.queue.fetch(qp.qp_type, &mut entry.wr) else { return false };
    if let Err(bad) = fetched {
        // Earlier requests complete first: the error waits for its turn.
        entry.begin(0, None);
        (entry.wr.wr_id, entry.wr.op, entry.bad) = (bad.wr_id, SendOp::Send { imm: None }, true);
        qp.send.window.push();
        return true;
    }
    let inline = entry.wr.flags.contains(SendFlags::INLINE).then(|| qp.send.queue.inline_data());
    let total = match entry.wr.op {
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
        SendOp::Flush { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => 0,
        _ => entry.wr.length(),
    };
    entry.begin(total, inline);
    qp.send.window.push();
    true
}

/// Sends the next packet of the request at the cursor, or executes a local one; false where it has to wait.
fn send_next<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) -> bool {
    let cursor = qp.send.cursor;
    let entry = &qp.send.window[cursor];
    if !entry.started {
        if must_wait(qp, cursor) {
            return false;
        }
        if let Err(status) = check(qp, entry) {
            // Earlier requests complete first: the error waits for its turn.
            if cursor != 0 {
                return false;
            }
            fail_oldest(index, qp, cx, out, status);
            return true;
        }
        if matches!(entry.wr.op, SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. }) {
            return execute_local(index, qp, cx, out);
        }
    }
    let built = build(qp, cx, cursor);
    let (op, payload, len) = match built {
        Ok(parts) => parts,
        Err(_) if cursor != 0 => return false,
        Err(status) => {
            fail_oldest(index, qp, cx, out, status);
            return true;
        }
    };
    transmit(qp, cx, out, op, payload, len)
}

/// Whether the request at the cursor has to wait for earlier ones.
fn must_wait<P: Platform>(qp: &Qp<P>, cursor: usize) -> bool {
    let wr = &qp.send.window[cursor].wr;
    let mut earlier = qp.send.window.iter().take(cursor);
    match wr.op {
        // Local operations take effect after everything before them has.
        SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => cursor != 0,
        _ if wr.flags.contains(SendFlags::FENCE) => earlier.any(|e| e.wr.op.is_read_or_atomic()),
        _ if wr.op.is_read_or_atomic() => {
            let limit = usize::from(qp.attr.max_rd_atomic.max(1));
            earlier.filter(|e| e.wr.op.is_read_or_atomic()).count() >= limit
        }
        _ => false,
    }
}

/// Checks a request that is about to start.
fn check<P: Platform>(qp: &Qp<P>, entry: &Inflight<P::Memory>) -> Result<(), WcStatus> {
    let allowed = match (&entry.wr.op, qp.qp_type) {
        (SendOp::Datagram { .. }, t) => t == QpType::Ud,
        (_, QpType::Ud) => false,
        (_, QpType::Rc) => true,
        (op, QpType::Uc) => matches!(
            op,
            SendOp::Send { .. }
                | SendOp::SendInvalidate { .. }
                | SendOp::Write { .. }
                | SendOp::BindMw { .. }
                | SendOp::LocalInvalidate { .. }
        ),
    };
    if entry.bad || !allowed || entry.wr.sges.len() > qp.caps.max_send_sge as usize {
        return Err(WcStatus::LocalQpOperationError);
    }
    if entry.wr.op.is_read_or_atomic() && qp.attr.max_rd_atomic == 0 {
        return Err(WcStatus::LocalQpOperationError);
    }
    let max = if qp.qp_type == QpType::Ud { DATAGRAM_MAX } else { MESSAGE_MAX };
    if entry.total > max { Err(WcStatus::LocalLengthError) } else { Ok(()) }
}

type Built<M> = (RequestOp, Payload<M>, u32);

/// The next packet of the request at `cursor`: operation, payload, and bytes that it moves.
fn build<P: Platform>(qp: &Qp<P>, cx: &Context<P>, cursor: usize) -> Result<Built<P::Memory>, WcStatus> {
    let entry = &qp.send.window[cursor];
    let sent = entry.sent;
    let data = || -> Result<Payload<P::Memory>, WcStatus> {
        if let Some((memory, offset)) = &entry.inline {
            return Ok(Payload::single(memory.clone(), *offset, entry.wr.inline_len));
        }
        let whole = qp.qp_type == QpType::Ud;
        gather(&cx.keys, qp.pd, &entry.wr.sges, sent, FRAGMENT, whole).map_err(|_| WcStatus::LocalProtectionError)
    };
    let none = Payload::empty;
    Ok(match entry.wr.op {
        SendOp::Send { imm } => with_data(RequestOp::Send { imm, invalidate: None }, data()?),
        SendOp::SendInvalidate { rkey } => with_data(RequestOp::Send { imm: None, invalidate: Some(rkey) }, data()?),
        SendOp::Write { remote_addr, rkey, imm } => {
            let addr = remote_addr.wrapping_add(sent);
            with_data(RequestOp::Write { addr, rkey, remaining: entry.total - sent, imm }, data()?)
        }
        SendOp::Read { remote_addr, rkey } => {
            let remaining = entry.total - sent;
            let addr = remote_addr.wrapping_add(sent);
            (RequestOp::Read { addr, rkey, remaining }, none(), remaining.min(u64::from(FRAGMENT)) as u32)
        }
        SendOp::CompareSwap { remote_addr: addr, rkey, compare, swap } => {
            (RequestOp::CompareSwap { addr, rkey, compare, swap }, none(), 8)
        }
        SendOp::FetchAdd { remote_addr: addr, rkey, add } => (RequestOp::FetchAdd { addr, rkey, add }, none(), 8),
        SendOp::AtomicWrite { remote_addr: addr, rkey, value } => {
            (RequestOp::AtomicWrite { addr, rkey, value }, none(), 8)
        }
        SendOp::Flush { remote_addr: addr, rkey, length, kind, range } => {
            (RequestOp::Flush { addr, rkey, length, kind, range }, none(), 0)
        }
        SendOp::Datagram { ah, qkey, imm, .. } => {
            let av = address(cx, qp.pd, ah).ok_or(WcStatus::LocalQpOperationError)?.av;
            let qkey = if qkey.is_controlled() { qp.attr.qkey } else { qkey };
            let op = RequestOp::Datagram {
                qkey,
                imm,
                traffic_class: av.traffic_class,
                hop_limit: av.hop_limit,
                flow_label: av.flow_label,
            };
            with_data(op, data()?)
        }
        SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => return Err(WcStatus::LocalQpOperationError),
    })
}

fn with_data<M: crate::platform::Memory>(op: RequestOp, payload: Payload<M>) -> Built<M> {
    let len = payload.len();
    (op, payload, len)
}

/// The address handle that a ring names: numbers there start at 1.
fn address<P: Platform>(cx: &Context<P>, pd: u32, ah_num: u32) -> Option<&super::context::Ah> {
    cx.ahs.get(ah_num.checked_sub(1)?).filter(|ah| ah.pd == pd)
}

fn transmit<P: Platform>(
    qp: &mut Qp<P>,
    cx: &Context<P>,
    out: &mut Outputs<P::Memory>,
    op: RequestOp,
    payload: Payload<P::Memory>,
    len: u32,
) -> bool {
    let (dst, av) = match qp.send.window[qp.send.cursor].wr.op {
        SendOp::Datagram { ah, qpn, .. } => match address(cx, qp.pd, ah) {
            Some(ah) => (qpn, ah.av),
            None => return false,
        },
        _ => (qp.attr.dest_qpn, qp.attr.av),
    };
    let sgid = cx.network.gids.get(usize::from(av.sgid_index)).copied().unwrap_or_default();
    let send = &mut qp.send;
    let entry = &mut send.window[send.cursor];
    let first = !entry.started;
    let last = entry.sent + u64::from(len) == entry.total || matches!(op, RequestOp::Flush { .. });
    if first {
        entry.first_psn = send.next_psn;
    }
    let group = qp.qp_type == QpType::Ud && av.dgid.is_multicast();
    let head = Head {
        vni: cx.network.vni,
        src: qp.qpn,
        dst: if group { Qpn::MULTICAST } else { dst },
        sgid,
        dgid: av.dgid,
        epoch: send.epoch,
        psn: send.next_psn,
        len,
        shard: 0,
    };
    entry.started = true;
    entry.sent += u64::from(len);
    out.moved += u64::from(len);
    entry.complete = last;
    let solicited = entry.wr.flags.contains(SendFlags::SOLICITED);
    send.next_psn = send.next_psn.add(1);
    if last {
        send.cursor += 1;
    }
    let copies = if group { out.shards } else { 1 };
    let entry_index = if last { send.cursor - 1 } else { send.cursor };
    send.window[entry_index].outstanding += copies;
    send.unanswered += 1;
    if group {
        for shard in 1..out.shards {
            let payload = payload.clone();
            let body = Body::Request(Request { op, first, last, solicited, payload });
            out.packet(Packet { head: Head { shard, ..head }, body });
        }
    }
    out.packet(Packet { head, body: Body::Request(Request { op, first, last, solicited, payload }) });
    true
}

/// Executes a local operation, which is the oldest request.
fn execute_local<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) -> bool {
    let result = match qp.send.window[0].wr.op {
        SendOp::LocalInvalidate { key } => {
            cx.keys.invalidate(qp.pd, None, key).map_err(|_| WcStatus::LocalQpOperationError)
        }
        SendOp::BindMw { mw, new_key, mr, addr, length, access } => {
            let request = BindRequest { mw, new_key, mr, addr, length, access };
            cx.keys.bind(qp.pd, qp.qpn, &request).map_err(|_| WcStatus::MwBindError)
        }
        _ => Err(WcStatus::LocalQpOperationError),
    };
    match result {
        Ok(()) => {
            let entry = &mut qp.send.window[0];
            entry.complete = true;
            entry.started = true;
            qp.send.cursor += 1;
            complete_oldest(index, qp, cx, out);
        }
        Err(status) => fail_oldest(index, qp, cx, out, status),
    }
    true
}

/// Takes the reply to a request packet.
pub(crate) fn handle_reply<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    reply: Reply<P::Memory>,
) {
    if head.epoch != qp.send.epoch || qp.send.window.is_empty() {
        return;
    }
    if qp.qp_type == QpType::Ud {
        return datagram_gone(index, qp, cx, out, head);
    }
    let position = qp.send.window.iter().position(|e| e.outstanding != 0);
    let Some(position) = position else { return };
    let reliable = qp.qp_type == QpType::Rc;
    match reply {
        // Nobody answers on an unreliable connection: a message is done when it was sent.
        Reply::Rnr { .. } | Reply::Nak(_) | Reply::Dropped | Reply::OutOfSequence if !reliable => {
            answered(index, qp, cx, out, head, position);
        }
        Reply::Ack => answered(index, qp, cx, out, head, position),
        Reply::Data(payload) => {
            let entry = &qp.send.window[position];
            let copied = scatter(&cx.keys, qp.pd, &entry.wr.sges, entry.answered, &payload);
            result(index, qp, cx, out, head, position, copied);
        }
        Reply::Atomic { old } => {
            let bytes = old.to_ne_bytes();
            let copied = scatter_bytes(&cx.keys, qp.pd, &qp.send.window[position].wr.sges, 0, &bytes);
            result(index, qp, cx, out, head, position, copied);
        }
        Reply::Rnr { timer } => not_ready(index, qp, cx, out, timer),
        Reply::Nak(nak) => {
            let status = match nak {
                Nak::InvalidRequest => WcStatus::RemoteInvalidRequest,
                Nak::RemoteAccess => WcStatus::RemoteAccessError,
                Nak::RemoteOperation => WcStatus::RemoteOperationError,
            };
            fail_oldest(index, qp, cx, out, status);
        }
        Reply::Dropped | Reply::OutOfSequence => lost(index, qp, out),
    }
}

fn result<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    position: usize,
    copied: Result<(), CopyError>,
) {
    match copied {
        Ok(()) => answered(index, qp, cx, out, head, position),
        Err(CopyError::Protection) => fail_oldest(index, qp, cx, out, WcStatus::LocalProtectionError),
        Err(CopyError::Length) => fail_oldest(index, qp, cx, out, WcStatus::LocalLengthError),
        Err(CopyError::Source) => fail_oldest(index, qp, cx, out, WcStatus::RemoteOperationError),
    }
}

/// A packet was executed: progress, so the retry counters start afresh (IBA 9.7.6.1.3).
fn answered<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    position: usize,
) {
    qp.send.retries_left = qp.attr.retry_cnt;
    qp.send.rnr_left = qp.attr.rnr_retry;
    qp.send.unanswered -= 1;
    let entry = &mut qp.send.window[position];
    entry.outstanding -= 1;
    entry.answered += u64::from(head.len);
    complete_oldest(index, qp, cx, out);
}

/// A datagram was delivered, or dropped; the sender cannot tell.
fn datagram_gone<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
) {
    let found = qp.send.window.iter().position(|e| e.first_psn == head.psn && e.outstanding != 0);
    let Some(position) = found else { return };
    let entry = &mut qp.send.window[position];
    entry.outstanding -= 1;
    if entry.outstanding == 0 {
        entry.answered = entry.total;
        qp.send.unanswered -= 1;
    }
    complete_oldest(index, qp, cx, out);
}

/// The receiver had no receive request posted (IBA 9.7.5.2.8).
fn not_ready<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>, timer: u8) {
    const FOREVER: u8 = 7;
    qp.counters.rnr_naks += 1;
    if qp.attr.rnr_retry != FOREVER {
        if qp.send.rnr_left == 0 {
            return fail_oldest(index, qp, cx, out, WcStatus::RnrRetryExceeded);
        }
        qp.send.rnr_left -= 1;
    }
    qp.send.go_back(out.next_epoch());
    let at = out.now.after(rnr_delay(timer));
    qp.send.set_wait(index, Wait::Rnr(at), &mut out.timers);
}

/// A packet was lost: nothing is known until the ACK time-out.
fn lost<P: Platform>(index: u32, qp: &mut Qp<P>, out: &mut Outputs<P::Memory>) {
    qp.send.go_back(out.next_epoch());
    let wait = ack_timeout(qp.attr.timeout).map_or(Wait::Forever, |timeout| Wait::Ack(out.now.after(timeout)));
    qp.send.set_wait(index, wait, &mut out.timers);
}

/// A deadline has passed that may be this QP's.
pub(crate) fn handle_timeout<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
) {
    match qp.send.wait {
        Wait::Rnr(at) if at <= out.now => {}
        Wait::Ack(at) if at <= out.now => {
            qp.counters.retries += 1;
            if qp.send.retries_left == 0 {
                qp.send.set_wait(index, Wait::None, &mut out.timers);
                return fail_oldest(index, qp, cx, out, WcStatus::RetryExceeded);
            }
            qp.send.retries_left -= 1;
        }
        _ => return,
    }
    qp.send.set_wait(index, Wait::None, &mut out.timers);
    out.make_ready(index, qp);
}

/// Completes whatever is done, oldest first.
fn complete_oldest<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) {
    while let Some(entry) = qp.send.window.oldest()
        && entry.complete
        && entry.outstanding == 0
    {
        let (wr_id, flags, opcode) = (entry.wr.wr_id, entry.wr.flags, entry.wr.op.wc_opcode());
        let total = entry.total;
        qp.send.window.pop();
        qp.send.cursor -= 1;
        qp.counters.tx_messages += 1;
        qp.counters.tx_bytes += total;
        if !finish(qp, cx, out, wr_id, opcode, flags, total as u32, WcStatus::Success) {
            return fail(index, qp, cx, out);
        }
    }
    if qp.send.window.is_empty() && qp.send.announce_drained {
        qp.send.announce_drained = false;
        out.async_event(qp.context, AsyncEvent::SqDrained, qp.handle);
    }
    if qp.can_send() {
        out.make_ready(index, qp);
    }
}

/// The oldest request ends in an error, and with it the send queue.
fn fail_oldest<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    status: WcStatus,
) {
    qp.counters.errors += 1;
    if let Some(entry) = qp.send.window.oldest() {
        let (wr_id, opcode, flags) = (entry.wr.wr_id, entry.wr.op.wc_opcode(), entry.wr.flags);
        qp.send.window.pop();
        finish(qp, cx, out, wr_id, opcode, flags, 0, status);
    }
    fail(index, qp, cx, out);
}

/// A send error: RC fails as a whole, UC and UD only their send side (IBA 10.3.1.6).
fn fail<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) {
    let state = if qp.qp_type == QpType::Rc { QpState::Error } else { QpState::Sqe };
    super::state::enter(index, qp, cx, out, state);
}

/// Writes the completion of a send, where one is due, and hands its slot back; false on overrun of the CQ.
#[allow(clippy::too_many_arguments, reason = "the fields of a completion")]
fn finish<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    wr_id: u64,
    opcode: WcOpcode,
    flags: SendFlags,
    byte_len: u32,
    status: WcStatus,
) -> bool {
    qp.send.queue.release(1);
    if status == WcStatus::Success && !qp.signal_all && !flags.contains(SendFlags::SIGNALED) {
        return true;
    }
    let completion = Completion {
        wr_id,
        status,
        opcode,
        byte_len,
        imm: 0,
        qpn: qp.qpn,
        src_qp: Qpn::default(),
        flags: WcFlags::empty(),
    };
    out.complete(cx, qp.context, qp.send_cq, &completion, false).is_ok()
}

/// Ends the requests of a broken send queue, fetched or not, with a flush error (IBA 10.3.1.7): some now, the rest in
/// later turns, because a program may post as fast as they are flushed.
pub(crate) fn flush<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
) -> bool {
    let mut flushed = false;
    while let Some(entry) = qp.send.window.oldest() {
        let (wr_id, opcode) = (entry.wr.wr_id, entry.wr.op.wc_opcode());
        qp.send.window.pop();
        finish(qp, cx, out, wr_id, opcode, SendFlags::empty(), 0, WcStatus::FlushError);
        flushed = true;
    }
    for _ in 0..FLUSH_TURN {
        let Some(fetched) = qp.send.queue.fetch(qp.qp_type, &mut qp.send.window.next().wr) else { break };
        let wr = &qp.send.window.next().wr;
        let (wr_id, opcode) = match fetched {
            Ok(()) => (wr.wr_id, wr.op.wc_opcode()),
            Err(bad) => (bad.wr_id, WcOpcode::Send),
        };
        finish(qp, cx, out, wr_id, opcode, SendFlags::empty(), 0, WcStatus::FlushError);
        flushed = true;
    }
    qp.send.abandon(out.next_epoch());
    if qp.can_send() {
        out.make_ready(index, qp);
    }
    flushed
}
