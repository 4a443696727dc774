//! `ioctl()` methods that make and destroy objects, and those of memory regions.

use super::bundle::Bundle;
use super::compose;
use super::device::check_event_fd;
use super::{Body, forward};
use crate::session::context::Context;
use rdmesh_uverbs::abi::{
    CreateSrqResponse, CreateXsrq, DestroyCq, EXTENDED, ExCreateCq, ExCreateCqResponse, ExCreateQp, ExCreateQpResponse,
    QpCap, RegMr, RegMrResponse, ioctl_attr, ioctl_method, ioctl_object, number,
};
use rdmesh_uverbs::session::MrInfo;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Destroys an object by command `number`, whose response is empty.
pub(super) fn destroy(context: &Arc<Context>, bundle: &Bundle, number: u8) -> Result<(), Errno> {
    let handle = bundle.handle(ioctl_attr::DESTROY_HANDLE)?;
    compose::execute(context, bundle, number.into(), &handle)
}

/// Destroys a CQ, QP or SRQ; tells how many of its events were reported.
pub(super) fn destroy_reporting<Response: FromBytes + IntoBytes + Immutable>(
    context: &Arc<Context>,
    bundle: &Bundle,
    number: u8,
) -> Result<(), Errno> {
    // The commands for all three look alike.
    let request = DestroyCq { cq_handle: bundle.handle(ioctl_attr::DESTROY_HANDLE)?, ..Default::default() };
    let response: Response = compose::execute(context, bundle, number.into(), &request)?;
    bundle.give_value(ioctl_attr::DESTROY_RESP, &response);
    Ok(())
}

pub(super) fn create_cq(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::create_cq::{COMP_CHANNEL, COMP_VECTOR, CQE, EVENT_FD, FLAGS, RESP_CQE, USER_HANDLE};
    /// Timestamps, and overruns that do not matter.
    const KNOWN_FLAGS: u32 = 3;
    check_event_fd(context, bundle, EVENT_FD)?;
    let request = ExCreateCq {
        user_handle: bundle.read(USER_HANDLE),
        cqe: bundle.read(CQE),
        comp_vector: bundle.read(COMP_VECTOR),
        comp_channel: bundle.descriptor(COMP_CHANNEL)?.unwrap_or(-1),
        flags: bundle.flags(FLAGS, KNOWN_FLAGS)?,
        ..Default::default()
    };
    let command = u32::from(number::CREATE_CQ) | EXTENDED;
    let made: ExCreateCqResponse = compose::execute(context, bundle, command, &request)?;
    bundle.set_new(ioctl_attr::NEW_HANDLE, made.base.cq_handle);
    bundle.give_value(RESP_CQE, &made.base.cqe);
    Ok(())
}

pub(super) fn create_qp(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::create_qp::{CAP, EVENT_FD, PD_HANDLE, RESP_CAP, RESP_QP_NUM, SRQ_HANDLE, USER_HANDLE};
    check_event_fd(context, bundle, EVENT_FD)?;
    let cap: QpCap = bundle.read(CAP);
    let (qp_type, queues) = qp_kind(bundle)?;
    let (create_flags, sq_sig_all) = qp_flags(bundle, qp_type)?;
    let srq = if bundle.has(SRQ_HANDLE) { Some(bundle.handle(SRQ_HANDLE)?) } else { None };
    let request = ExCreateQp {
        user_handle: bundle.read(USER_HANDLE),
        pd_handle: bundle.handle(PD_HANDLE)?,
        send_cq_handle: queues.send,
        recv_cq_handle: queues.recv,
        srq_handle: srq.unwrap_or(0),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        sq_sig_all: sq_sig_all.into(),
        qp_type,
        is_srq: srq.is_some().into(),
        create_flags,
        ..Default::default()
    };
    let command = u32::from(number::CREATE_QP) | EXTENDED;
    let made = compose::execute::<ExCreateQpResponse>(context, bundle, command, &request)?.base;
    bundle.set_new(ioctl_attr::NEW_HANDLE, made.qp_handle);
    let cap = QpCap {
        max_send_wr: made.max_send_wr,
        max_recv_wr: made.max_recv_wr,
        max_send_sge: made.max_send_sge,
        max_recv_sge: made.max_recv_sge,
        max_inline_data: made.max_inline_data,
    };
    bundle.give_value(RESP_CAP, &cap);
    bundle.give_value(RESP_QP_NUM, &made.qpn);
    Ok(())
}

struct Queues {
    send: u32,
    recv: u32,
}

/// The type of queue pair, and the completion queues that one of this type has.
fn qp_kind(bundle: &Bundle) -> Result<(u8, Queues), Errno> {
    use ioctl_attr::create_qp::{IND_TABLE_HANDLE, PD_HANDLE, RECV_CQ_HANDLE, SEND_CQ_HANDLE, TYPE, XRCD_HANDLE};
    const RAW_PACKET: u64 = 8;
    const XRC_INITIATOR: u64 = 9;
    const XRC_TARGET: u64 = 10;
    const DRIVER: u64 = 255;
    let qp_type: u64 = bundle.read(TYPE);
    match qp_type {
        2..=4 | RAW_PACKET | XRC_INITIATOR | DRIVER => {}
        XRC_TARGET if [PD_HANDLE, SEND_CQ_HANDLE, RECV_CQ_HANDLE].into_iter().any(|id| bundle.has(id)) => {
            return Err(Errno::INVAL);
        }
        // There are no XRC domains, so that none can be named.
        XRC_TARGET => return Err(Errno::NOENT),
        _ => return Err(Errno::INVAL),
    }
    // Nor are there XRC domains and indirection tables, even if a program names one without need.
    if bundle.has(XRCD_HANDLE) || bundle.has(IND_TABLE_HANDLE) {
        return Err(Errno::NOENT);
    }
    bundle.handle(PD_HANDLE)?;
    let send = bundle.handle(SEND_CQ_HANDLE)?;
    let recv = if qp_type == XRC_INITIATOR { 0 } else { bundle.handle(RECV_CQ_HANDLE)? };
    Ok((qp_type as u8, Queues { send, recv }))
}

/// The flags as the command has them, and whether all sends are signalled, which there is a field of its own.
fn qp_flags(bundle: &Bundle, qp_type: u8) -> Result<(u32, bool), Errno> {
    use ioctl_attr::create_qp::{FLAGS, SOURCE_QPN};
    const SIGNAL_ALL: u32 = 1 << 12;
    const KNOWN: u32 = SIGNAL_ALL | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11;
    const HAS_SOURCE_QPN: u32 = 1 << 10;
    const UD: u8 = 4;
    const RAW_PACKET: u8 = 8;
    const DRIVER: u8 = 255;
    let flags = bundle.flags(FLAGS, KNOWN)?;
    let others = flags & !SIGNAL_ALL;
    if others != 0 && !matches!(qp_type, UD | RAW_PACKET | DRIVER) {
        return Err(Errno::INVAL);
    }
    let source = if bundle.has(SOURCE_QPN) { HAS_SOURCE_QPN } else { 0 };
    Ok((others | source, flags & SIGNAL_ALL != 0))
}

pub(super) fn create_srq(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::create_srq::{
        CQ_HANDLE, EVENT_FD, LIMIT, MAX_NUM_TAGS, MAX_SGE, MAX_WR, PD_HANDLE, RESP_MAX_SGE, RESP_MAX_WR, RESP_SRQ_NUM,
        TYPE, USER_HANDLE,
    };
    const BASIC: u64 = 0;
    const XRC: u64 = 1;
    const TAG_MATCHING: u64 = 2;
    check_event_fd(context, bundle, EVENT_FD)?;
    let srq_type: u64 = bundle.read(TYPE);
    match srq_type {
        BASIC => {}
        // There are no XRC domains, so that none can be named.
        XRC => return Err(Errno::NOENT),
        TAG_MATCHING => drop(bundle.handle(CQ_HANDLE)?),
        _ => return Err(Errno::INVAL),
    }
    let request = CreateXsrq {
        user_handle: bundle.read(USER_HANDLE),
        srq_type: srq_type as u32,
        pd_handle: bundle.handle(PD_HANDLE)?,
        max_wr: bundle.read(MAX_WR),
        max_sge: bundle.read(MAX_SGE),
        srq_limit: bundle.read(LIMIT),
        max_num_tags: bundle.read(MAX_NUM_TAGS),
        ..Default::default()
    };
    let made: CreateSrqResponse = compose::execute(context, bundle, number::CREATE_XSRQ.into(), &request)?;
    bundle.set_new(ioctl_attr::NEW_HANDLE, made.srq_handle);
    bundle.give_value(RESP_MAX_WR, &made.max_wr);
    bundle.give_value(RESP_MAX_SGE, &made.max_sge);
    bundle.give_value(RESP_SRQ_NUM, &made.srqn);
    Ok(())
}

pub(super) fn reg_mr(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::reg_mr::{ACCESS_FLAGS, ADDR, FD, FD_OFFSET, IOVA, LENGTH, PD_HANDLE, RESP_LKEY, RESP_RKEY};
    // Memory is at an address, or in a DMA buffer, which rxe does not know.
    match (bundle.has(FD), bundle.has(FD_OFFSET), bundle.has(ADDR)) {
        (false, false, true) => {}
        (true, true, false) => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::INVAL),
    }
    let request = RegMr {
        response: 0,
        start: bundle.read(ADDR),
        length: bundle.read(LENGTH),
        hca_va: bundle.read(IOVA),
        pd_handle: bundle.handle(PD_HANDLE)?,
        access_flags: bundle.flags(ACCESS_FLAGS, u32::MAX)?,
    };
    let made: RegMrResponse = compose::execute(context, bundle, number::REG_MR.into(), &request)?;
    bundle.set_new(ioctl_attr::NEW_HANDLE, made.mr_handle);
    bundle.give_value(RESP_LKEY, &made.lkey);
    bundle.give_value(RESP_RKEY, &made.rkey);
    Ok(())
}

pub(super) fn query_mr(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::query_mr::{HANDLE, RESP_IOVA, RESP_LENGTH, RESP_LKEY, RESP_RKEY};
    let mut body = Body::new(ioctl_object::MR, ioctl_method::QUERY_MR);
    body.add(HANDLE, bundle.handle(HANDLE)?.as_bytes());
    let (info, _) = MrInfo::read_from_prefix(&forward(context, body)?).map_err(|_| Errno::IO)?;
    bundle.give_value(RESP_LKEY, &info.lkey);
    bundle.give_value(RESP_RKEY, &info.rkey);
    bundle.give_value(RESP_LENGTH, &info.length);
    bundle.give_value(RESP_IOVA, &info.iova);
    Ok(())
}

pub(super) fn advise_mr(context: &Arc<Context>, bundle: &Bundle) -> Result<(), Errno> {
    use ioctl_attr::advise_mr::{ADVICE, FLAGS, PD_HANDLE, SGE_LIST};
    let mut body = Body::new(ioctl_object::MR, ioctl_method::ADVISE_MR);
    body.add(PD_HANDLE, u64::from(bundle.handle(PD_HANDLE)?).as_bytes());
    for id in [ADVICE, FLAGS, SGE_LIST] {
        body.add(id, bundle.bytes(id));
    }
    forward(context, body).map(drop)
}
