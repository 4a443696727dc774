//! The receive side of a queue pair: executing what a peer asks for.

use super::context::Context;
use super::grh;
use super::output::Outputs;
use super::packet::{Body, Head, Nak, Packet, Reply, Request, RequestOp};
use super::qp::Qp;
use super::requester::FLUSH_TURN;
use super::state;
use crate::memory::{CopyError, Payload, scatter, scatter_bytes};
use crate::platform::{Memory, Platform, RecvQueue};
use rdmesh_verbs::{Access, AsyncEvent, Completion, Key, QpState, QpType, Qpn, WcFlags, WcOpcode, WcStatus};

/// Executes a request packet and sends its reply.
pub(crate) fn handle<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    request: &Request<P::Memory>,
) {
    let reply = match qp.qp_type {
        QpType::Ud => {
            receive_datagram(qp, cx, out, head, request);
            Reply::Ack
        }
        _ if !is_from_peer(qp, cx, head) => Reply::Dropped,
        QpType::Rc => receive_reliable(index, qp, cx, out, head, request),
        QpType::Uc => receive_unreliable(index, qp, cx, out, head, request),
    };
    out.packet(Packet { head: head.reply(), body: Body::Reply(reply) });
}

/// Whether a packet comes from the QP that this one is connected to (IBA 9.6.1.1).
fn is_from_peer<P: Platform>(qp: &Qp<P>, cx: &Context<P>, head: &Head) -> bool {
    let own = cx.network.gids.get(usize::from(qp.attr.av.sgid_index)).copied().unwrap_or_default();
    qp.state().can_receive()
        && head.vni == cx.network.vni
        && head.src == qp.attr.dest_qpn
        && head.sgid == qp.attr.av.dgid
        && head.dgid == own
}

/// Why a request is not executed.
enum Refusal {
    NotReady,
    /// Requester and responder both fail; the responder's receive request, if any, ends with the status.
    Fatal(Nak, WcStatus),
}

fn receive_reliable<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    request: &Request<P::Memory>,
) -> Reply<P::Memory> {
    if head.psn != qp.recv.expected_psn {
        return Reply::OutOfSequence;
    }
    match execute(qp, cx, out, head, request) {
        Ok(reply) => {
            qp.recv.expected_psn = head.psn.add(1);
            reply
        }
        Err(Refusal::NotReady) => {
            qp.counters.rnr_naks += 1;
            Reply::Rnr { timer: qp.attr.min_rnr_timer }
        }
        Err(Refusal::Fatal(nak, status)) => {
            fail(index, qp, cx, out, nak, status);
            Reply::Nak(nak)
        }
    }
}

/// Unreliable connection: what cannot be executed is dropped with the rest of its message (IBA 9.8.2.2).
fn receive_unreliable<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    request: &Request<P::Memory>,
) -> Reply<P::Memory> {
    let in_sequence = head.psn == qp.recv.expected_psn;
    qp.recv.expected_psn = head.psn.add(1);
    if request.first {
        // A message that ended early leaves its receive request to the next one.
        qp.recv.received = 0;
    } else if !in_sequence || qp.recv.skipping {
        qp.recv.skipping = true;
        return Reply::Dropped;
    }
    qp.recv.skipping = false;
    match execute(qp, cx, out, head, request) {
        Ok(reply) => reply,
        Err(Refusal::Fatal(nak, status)) if qp.recv.busy => {
            fail(index, qp, cx, out, nak, status);
            Reply::Dropped
        }
        Err(_) => {
            qp.recv.skipping = true;
            Reply::Dropped
        }
    }
}

/// The responder's half of a fatal error (IBA table 61). Where a receive request tells of it, no event does (classes A
/// and C).
fn fail<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    nak: Nak,
    status: WcStatus,
) {
    qp.counters.errors += 1;
    if std::mem::take(&mut qp.recv.busy) {
        let completion = received(qp, qp.recv.current.wr_id, status, WcOpcode::Recv);
        // A queue that is full has raised its own event.
        let _ = out.complete(cx, qp.context, qp.recv_cq, &completion, false);
        return state::enter(index, qp, cx, out, QpState::Error);
    }
    let event = match nak {
        Nak::RemoteAccess => AsyncEvent::QpAccessError,
        Nak::InvalidRequest => AsyncEvent::QpRequestError,
        Nak::RemoteOperation => AsyncEvent::QpFatal,
    };
    out.async_event(qp.context, event, qp.handle);
    state::enter(index, qp, cx, out, QpState::Error);
}

fn execute<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    request: &Request<P::Memory>,
) -> Result<Reply<P::Memory>, Refusal> {
    match request.op {
        RequestOp::Send { imm, invalidate } => {
            receive_send(qp, cx, out, request, imm, invalidate)?;
            Ok(Reply::Ack)
        }
        RequestOp::Write { addr, rkey, remaining, imm } => {
            let place = Range { addr, rkey, len: remaining };
            receive_write(qp, cx, out, request, &place, imm)?;
            Ok(Reply::Ack)
        }
        // A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
        _ if qp.attr.max_dest_rd_atomic == 0 && !matches!(request.op, RequestOp::Flush { .. }) => {
            Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError))
        }
        RequestOp::Read { addr, rkey, remaining } => {
            let payload = match reach(qp, cx, &Range { addr, rkey, len: remaining }, Access::REMOTE_READ)? {
                Some((memory, offset)) => Payload::single(memory, offset, head.len),
                None => Payload::empty(),
            };
            count(qp, request, u64::from(head.len));
            Ok(Reply::Data(payload))
        }
        _ => execute_atomic(qp, cx, request),
    }
}

fn execute_atomic<P: Platform>(
    qp: &mut Qp<P>,
    cx: &Context<P>,
    request: &Request<P::Memory>,
) -> Result<Reply<P::Memory>, Refusal> {
    let gone = |_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalProtectionError);
    let reply = match request.op {
        RequestOp::CompareSwap { addr, rkey, compare, swap } => {
            let (memory, offset) = reach_word(qp, cx, addr, rkey, Access::REMOTE_ATOMIC)?;
            Reply::Atomic { old: memory.compare_swap(offset, compare, swap).map_err(gone)? }
        }
        RequestOp::FetchAdd { addr, rkey, add } => {
            let (memory, offset) = reach_word(qp, cx, addr, rkey, Access::REMOTE_ATOMIC)?;
            Reply::Atomic { old: memory.fetch_add(offset, add).map_err(gone)? }
        }
        RequestOp::AtomicWrite { addr, rkey, value } => {
            let (memory, offset) = reach_word(qp, cx, addr, rkey, Access::REMOTE_WRITE)?;
            memory.write_atomic(offset, value).map_err(gone)?;
            Reply::Ack
        }
        RequestOp::Flush { addr, rkey, length, kind, range } => {
            flush_memory(qp, cx, &Range { addr, rkey, len: u64::from(length) }, kind, range)?;
            Reply::Ack
        }
        _ => return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError)),
    };
    count(qp, request, 8);
    Ok(reply)
}

/// A range that a peer names.
struct Range {
    addr: u64,
    rkey: Key,
    len: u64,
}

/// Resolves a remote range; none where it is empty, for which the key is not checked (IBA 9.7.4.1.3).
fn reach<P: Platform>(
    qp: &Qp<P>,
    cx: &Context<P>,
    range: &Range,
    access: Access,
) -> Result<Option<(P::Memory, u64)>, Refusal> {
    let refused = Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError);
    if !qp.attr.access.contains(access) {
        return Err(refused);
    }
    if range.len == 0 {
        return Ok(None);
    }
    match cx.keys.remote(qp.pd, qp.qpn, range.rkey, range.addr, range.len, access) {
        Ok((memory, offset)) => Ok(Some((memory.clone(), offset))),
        Err(_) => Err(refused),
    }
}

/// Resolves eight aligned bytes (IBA 9.4.5: alignment is an invalid request).
fn reach_word<P: Platform>(
    qp: &Qp<P>,
    cx: &Context<P>,
    addr: u64,
    rkey: Key,
    access: Access,
) -> Result<(P::Memory, u64), Refusal> {
    if !addr.is_multiple_of(8) {
        return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError));
    }
    let place = reach(qp, cx, &Range { addr, rkey, len: 8 }, access)?;
    place.ok_or(Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError))
}

/// FLUSH (IBA annex A19): on one host every earlier WRITE is visible by now; what is left is to check the right to ask.
fn flush_memory<P: Platform>(
    qp: &Qp<P>,
    cx: &Context<P>,
    range: &Range,
    kind: u8,
    partial: bool,
) -> Result<(), Refusal> {
    const GLOBAL: u8 = 1;
    const PERSISTENT: u8 = 2;
    let mut access = Access::empty();
    access.set(Access::FLUSH_GLOBAL, kind & GLOBAL != 0);
    access.set(Access::FLUSH_PERSISTENT, kind & PERSISTENT != 0);
    if access.is_empty() || kind & !(GLOBAL | PERSISTENT) != 0 {
        return Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError));
    }
    let len = if partial { range.len } else { 0 };
    let found = cx.keys.remote(qp.pd, qp.qpn, range.rkey, range.addr, len, access);
    found.map(|_| ()).map_err(|_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalAccessError))
}

fn receive_send<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    request: &Request<P::Memory>,
    imm: Option<u32>,
    invalidate: Option<Key>,
) -> Result<(), Refusal> {
    take_recv(qp, cx, out)?;
    if request.first {
        qp.recv.received = 0;
    }
    scatter(&cx.keys, qp.pd, &qp.recv.current.sges, qp.recv.received, &request.payload).map_err(blame)?;
    qp.recv.received += u64::from(request.payload.len());
    if !request.last {
        return Ok(());
    }
    if let Some(key) = invalidate {
        let denied = |_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalQpOperationError);
        cx.keys.invalidate(qp.pd, Some(qp.qpn), key).map_err(denied)?;
    }
    let extra = match (imm, invalidate) {
        (Some(imm), _) => (imm, WcFlags::WITH_IMM),
        (_, Some(key)) => (key.0, WcFlags::WITH_INV),
        _ => (0, WcFlags::empty()),
    };
    deliver(qp, cx, out, request, WcOpcode::Recv, extra)
}

fn receive_write<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    request: &Request<P::Memory>,
    range: &Range,
    imm: Option<u32>,
) -> Result<(), Refusal> {
    let place = reach(qp, cx, range, Access::REMOTE_WRITE)?;
    let imm = imm.filter(|_| request.last);
    if imm.is_some() {
        take_recv(qp, cx, out)?;
    }
    if request.first {
        qp.recv.received = 0;
    }
    if let Some((memory, offset)) = place {
        let gone = |_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalProtectionError);
        request.payload.copy_to(&memory, offset).map_err(gone)?;
    }
    qp.recv.received += u64::from(request.payload.len());
    if !request.last {
        return Ok(());
    }
    if let Some(imm) = imm {
        return deliver(qp, cx, out, request, WcOpcode::RecvRdmaWithImm, (imm, WcFlags::WITH_IMM));
    }
    let len = qp.recv.received;
    count(qp, request, len);
    Ok(())
}

fn blame(error: CopyError) -> Refusal {
    match error {
        CopyError::Protection => Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalProtectionError),
        CopyError::Length => Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalLengthError),
        // The sender's memory went away while it was sent: its own fault, told in its own status.
        CopyError::Source => Refusal::Fatal(Nak::RemoteOperation, WcStatus::RemoteOperationError),
    }
}

/// Makes sure that there is a receive request for the present message: the one it has, or the next of the QP's own queue
/// or the shared one.
fn take_recv<P: Platform>(qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) -> Result<(), Refusal> {
    if qp.recv.busy {
        return Ok(());
    }
    let wr = &mut qp.recv.current;
    let taken = match (qp.srq, &mut qp.recv.queue) {
        (Some(handle), _) => {
            let srq = cx.srqs.get_mut(handle).ok_or(Refusal::NotReady)?;
            let taken = srq.queue.take(wr);
            if taken.is_some() && srq.attr.limit != 0 && srq.queue.len() < srq.attr.limit {
                srq.attr.limit = 0;
                out.async_event(qp.context, AsyncEvent::SrqLimitReached, handle);
            }
            taken
        }
        (None, Some(queue)) => queue.take(wr),
        (None, None) => None,
    };
    qp.recv.busy = taken.is_some();
    match taken {
        None => Err(Refusal::NotReady),
        Some(Ok(())) => Ok(()),
        Some(Err(bad)) => {
            wr.wr_id = bad.wr_id;
            wr.sges.clear();
            Err(Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalQpOperationError))
        }
    }
}

fn received<P: Platform>(qp: &Qp<P>, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
    Completion {
        wr_id,
        status,
        opcode,
        byte_len: 0,
        imm: 0,
        qpn: qp.qpn,
        src_qp: qp.attr.dest_qpn,
        flags: WcFlags::empty(),
    }
}

fn deliver<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    request: &Request<P::Memory>,
    opcode: WcOpcode,
    (imm, flags): (u32, WcFlags),
) -> Result<(), Refusal> {
    let len = qp.recv.received;
    count(qp, request, len);
    qp.recv.busy = false;
    let completion = Completion {
        byte_len: len as u32,
        imm,
        flags,
        ..received(qp, qp.recv.current.wr_id, WcStatus::Success, opcode)
    };
    out.complete(cx, qp.context, qp.recv_cq, &completion, request.solicited)
        .map_err(|_| Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalQpOperationError))
}

fn count<P: Platform>(qp: &mut Qp<P>, request: &Request<P::Memory>, len: u64) {
    if request.last {
        qp.counters.rx_messages += 1;
    }
    qp.counters.rx_bytes += len;
}

/// A datagram is delivered or dropped, never answered (IBA 9.8.3).
pub(crate) fn receive_datagram<P: Platform>(
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    head: &Head,
    request: &Request<P::Memory>,
) {
    let RequestOp::Datagram { qkey, imm, .. } = request.op else { return };
    let expected = head.vni == cx.network.vni
        && qp.state().can_receive()
        && qkey == qp.attr.qkey
        && (head.dgid.is_multicast() || cx.network.gids.contains(&head.dgid));
    if !expected {
        qp.counters.errors += 1;
        return;
    }
    if take_recv(qp, cx, out).is_err() && !qp.recv.busy {
        return;
    }
    qp.recv.busy = false;
    let sges = &qp.recv.current.sges;
    let header = grh::grh(head, request);
    let copied = scatter_bytes(&cx.keys, qp.pd, sges, 0, &header)
        .and_then(|()| scatter(&cx.keys, qp.pd, sges, header.len() as u64, &request.payload));
    let status = match copied {
        Ok(()) => WcStatus::Success,
        Err(CopyError::Length) => WcStatus::LocalLengthError,
        Err(CopyError::Protection) => WcStatus::LocalProtectionError,
        Err(CopyError::Source) => WcStatus::LocalQpOperationError,
    };
    let mut flags = WcFlags::GRH;
    flags.set(WcFlags::WITH_IMM, imm.is_some());
    let byte_len = header.len() as u32 + request.payload.len();
    count(qp, request, u64::from(request.payload.len()));
    let completion = Completion {
        byte_len,
        imm: imm.unwrap_or(0),
        flags,
        src_qp: head.src,
        ..received(qp, qp.recv.current.wr_id, status, WcOpcode::Recv)
    };
    let _ = out.complete(cx, qp.context, qp.recv_cq, &completion, request.solicited);
}

/// Ends the receive requests of a QP in error with a flush error (IBA 10.3.1.7): some now, the rest in later polls. Those
/// of an SRQ stay: they are not its own.
pub(crate) fn flush<P: Platform>(qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) {
    if std::mem::take(&mut qp.recv.busy) {
        flush_one(qp, cx, out);
    }
    for _ in 0..FLUSH_TURN {
        let taken = qp.recv.queue.as_mut().and_then(|queue| queue.take(&mut qp.recv.current));
        let Some(taken) = taken else { break };
        if let Err(bad) = taken {
            qp.recv.current.wr_id = bad.wr_id;
        }
        flush_one(qp, cx, out);
    }
}

fn flush_one<P: Platform>(qp: &Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>) {
    let flushed = received(qp, qp.recv.current.wr_id, WcStatus::FlushError, WcOpcode::Recv);
    let completion = Completion { src_qp: Qpn::default(), ..flushed };
    // A queue that is full has raised its own event.
    let _ = out.complete(cx, qp.context, qp.recv_cq, &completion, false);
}
