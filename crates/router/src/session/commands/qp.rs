//! Queue pair commands, except MODIFY_QP.

use super::super::objects::ObjectKind;
use super::super::reply::Reply;
use super::{Call, chain};
use crate::memory::{HostRecvQueue, HostSendQueue};
use rdmesh_nic::{Capabilities, QpInfo, QpInit};
use rdmesh_uverbs::abi::{
    CreateQp, CreateQpResponse, DestroyQp, DestroyQpResponse, ExCreateQp, ExCreateQpResponse, MmapInfo, PostSend,
    PostSendResponse, QpDest, QueryQp, QueryQpResponse, RxeCreateQpResponse,
};
use rdmesh_uverbs::ring::{RecvRing, SendRing};
use rdmesh_verbs::{AddressVector, QpState, QpType};
use rustix::io::Errno;

const SGE_LEN: u32 = 16;

pub(super) fn create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: CreateQp = call.request()?;
    let made = make(
        call,
        &ExCreateQp {
            user_handle: request.user_handle,
            pd_handle: request.pd_handle,
            send_cq_handle: request.send_cq_handle,
            recv_cq_handle: request.recv_cq_handle,
            srq_handle: request.srq_handle,
            max_send_wr: request.max_send_wr,
            max_recv_wr: request.max_recv_wr,
            max_send_sge: request.max_send_sge,
            max_recv_sge: request.max_recv_sge,
            max_inline_data: request.max_inline_data,
            sq_sig_all: request.sq_sig_all,
            qp_type: request.qp_type,
            is_srq: request.is_srq,
            ..Default::default()
        },
    )?;
    Ok(Reply::new(&made.response).with_driver(&made.driver))
}

pub(super) fn ex_create(call: &mut Call<'_>) -> Result<Reply, Errno> {
    const INDIRECTION_TABLE: u32 = 1;
    let request: ExCreateQp = call.request()?;
    if request.comp_mask & !INDIRECTION_TABLE != 0 || request.reserved != 0 {
        return Err(Errno::INVAL);
    }
    if request.comp_mask & INDIRECTION_TABLE != 0 {
        // There are no such tables, so that none can be named.
        return Err(Errno::INVAL);
    }
    let made = make(call, &request)?;
    let response = ExCreateQpResponse {
        base: made.response,
        comp_mask: 0,
        response_length: call.command.out_len.min(size_of::<ExCreateQpResponse>()) as u32,
    };
    Ok(Reply::new(&response).with_driver(&made.driver))
}

struct Made {
    response: CreateQpResponse,
    /// The offset at which the program maps the queues.
    driver: RxeCreateQpResponse,
}

fn make(call: &mut Call<'_>, request: &ExCreateQp) -> Result<Made, Errno> {
    let qp_type = check_type(request.qp_type)?;
    check_flags(request.create_flags)?;
    call.needs_room::<RxeCreateQpResponse>()?;
    if !call.command.driver.is_empty() {
        return Err(Errno::INVAL);
    }
    let has_srq = request.is_srq != 0;
    let asked = check_capabilities(call, request, has_srq)?;
    let charge = call.charge(ObjectKind::Qp)?;
    let (caps, send, recv, driver) = make_rings(call, asked, has_srq)?;

    let init = QpInit {
        qp_type,
        pd: request.pd_handle,
        send_cq: request.send_cq_handle,
        recv_cq: request.recv_cq_handle,
        srq: has_srq.then_some(request.srq_handle),
        caps,
        signal_all: request.sq_sig_all != 0,
        send,
        recv,
    };
    let (user_handle, page) = (request.user_handle, call.scope.context.page().clone());
    let (qp_handle, qpn) = call.on_shard(move |shard, c| {
        let (qp, qpn) = shard.engine().device(c)?.create_qp(init)?;
        page.set_qp_state(qp, QpState::Reset as u8);
        shard.watch_qp(c, qp, user_handle);
        Ok((qp, qpn))
    })?;
    call.created(charge);
    let response = CreateQpResponse {
        qp_handle,
        qpn: qpn.value(),
        max_send_wr: caps.max_send_wr,
        // For a queue that does not exist the response repeats the request.
        max_recv_wr: if has_srq { asked.max_recv_wr } else { caps.max_recv_wr },
        max_send_sge: caps.max_send_sge,
        max_recv_sge: if has_srq { asked.max_recv_sge } else { caps.max_recv_sge },
        max_inline_data: caps.max_inline,
        reserved: 0,
    };
    Ok(Made { response, driver })
}

fn check_type(number: u8) -> Result<QpType, Errno> {
    const RAW_PACKET: u8 = 8;
    const XRC_INITIATOR: u8 = 9;
    const DRIVER: u8 = 255;
    match number {
        RAW_PACKET | XRC_INITIATOR | DRIVER => Err(Errno::OPNOTSUPP),
        _ => QpType::from_number(number).ok_or(Errno::INVAL),
    }
}

/// The flags of queues that may become managed change nothing: every queue may. No other is supported; those that the kernel does
/// not know at all are another error.
fn check_flags(flags: u32) -> Result<(), Errno> {
    const KNOWN: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11;
    /// `IB_QP_CREATE_CROSS_CHANNEL`, `IB_QP_CREATE_MANAGED_SEND`, `IB_QP_CREATE_MANAGED_RECV`.
    const MAY_BE_MANAGED: u32 = 1 << 2 | 1 << 3 | 1 << 4;
    match flags {
        _ if flags & !MAY_BE_MANAGED == 0 => Ok(()),
        _ if flags & !KNOWN == 0 => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::INVAL),
    }
}

fn check_capabilities(call: &Call<'_>, request: &ExCreateQp, has_srq: bool) -> Result<Capabilities, Errno> {
    let limits = call.scope.limits;
    let send = request.max_send_wr <= limits.max_qp_wr && request.max_send_sge <= limits.max_sge;
    let recv = has_srq || request.max_recv_wr <= limits.max_qp_wr && request.max_recv_sge <= limits.max_sge;
    if !send || !recv || request.max_inline_data > limits.max_inline {
        return Err(Errno::INVAL);
    }
    Ok(Capabilities {
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge,
        max_recv_sge: request.max_recv_sge,
        max_inline: request.max_inline_data,
    })
}

/// Makes the queues, and returns their sizes. A send slot holds scatter/gather elements or inline data, so that room for one is
/// room for the other.
fn make_rings(
    call: &mut Call<'_>,
    asked: Capabilities,
    has_srq: bool,
) -> Result<(Capabilities, HostSendQueue, Option<HostRecvQueue>, RxeCreateQpResponse), Errno> {
    let max_inline = SendRing::max_inline(asked.max_send_sge, asked.max_inline);
    let max_send_sge = max_inline / SGE_LEN;
    let queues = call.scope.context.queues();
    let send = SendRing::create(queues, asked.max_send_wr, max_send_sge, max_inline)?;
    let sq_mi = MmapInfo { offset: send.offset, size: send.len, pad: 0 };
    let mut driver = RxeCreateQpResponse { sq_mi, ..Default::default() };
    let mut caps = Capabilities { max_send_wr: send.slots, max_send_sge, max_inline, ..Capabilities::default() };
    if has_srq {
        return Ok((caps, HostSendQueue::new(send.ring), None, driver));
    }
    let recv = match RecvRing::create(queues, asked.max_recv_wr, asked.max_recv_sge) {
        Ok(recv) => recv,
        Err(error) => {
            // The program may populate the missing pages, and send the command again.
            send.ring.cancel();
            return Err(error);
        }
    };
    driver.rq_mi = MmapInfo { offset: recv.offset, size: recv.len, pad: 0 };
    caps.max_recv_wr = recv.slots;
    caps.max_recv_sge = asked.max_recv_sge;
    Ok((caps, HostSendQueue::new(send.ring), Some(HostRecvQueue::new(recv.ring)), driver))
}

pub(super) fn query(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let qp = call.request::<QueryQp>()?.qp_handle;
    let info = call.on_shard(move |shard, c| shard.engine().device(c)?.query_qp(qp))?;
    Ok(Reply::new(&describe(&info)))
}

fn describe(info: &QpInfo) -> QueryQpResponse {
    let attr = &info.attr;
    QueryQpResponse {
        dest: destination(&attr.av),
        alt_dest: destination(&attr.alt_av),
        max_send_wr: info.caps.max_send_wr,
        max_recv_wr: info.caps.max_recv_wr,
        max_send_sge: info.caps.max_send_sge,
        max_recv_sge: info.caps.max_recv_sge,
        max_inline_data: info.caps.max_inline,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access.bits(),
        pkey_index: attr.pkey_index,
        qp_state: attr.state as u8,
        cur_qp_state: attr.state as u8,
        path_mtu: attr.path_mtu as u8,
        path_mig_state: attr.path_mig_state,
        sq_draining: u8::from(info.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_sig_all: u8::from(info.signal_all),
        ..Default::default()
    }
}

fn destination(av: &AddressVector) -> QpDest {
    QpDest {
        dgid: av.dgid.0,
        flow_label: av.flow_label,
        dlid: av.dlid,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: u8::from(av.is_global),
        port_num: av.port,
        ..Default::default()
    }
}

/// The library rings doorbells without a message; this is for one that does not.
pub(super) fn post_send(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let qp = call.request::<PostSend>()?.qp_handle;
    let info = call.on_shard(move |shard, c| shard.engine().device(c)?.query_qp(qp))?;
    if matches!(info.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(Errno::INVAL);
    }
    call.on_shard(move |shard, c| {
        shard.engine().doorbell(c, qp);
        Ok(())
    })?;
    Ok(Reply::new(&PostSendResponse { bad_wr: 0 }))
}

pub(super) fn destroy(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let qp = call.request::<DestroyQp>()?.qp_handle;
    if call.scope.context.groups().has_any(qp) {
        return Err(Errno::BUSY);
    }
    call.settle_qp(qp);
    let (events_reported, info, remains) = call.destroy_on_shard(move |shard, c| {
        let info = shard.engine().device(c)?.query_qp(qp)?;
        let remains = shard.engine().device(c)?.destroy_qp(qp)?;
        Ok((shard.unwatch_qp(c, qp), info, remains))
    })?;
    call.scope.endpoint.ended_traffic().add(&info.counters);
    call.note_end(&info);
    call.scope.context.page().set_qp_state(qp, QpState::Reset as u8);
    let managed = chain::forget(&mut call.scope, qp);
    // In this order: what is charged for goes before the charges.
    call.discard((remains, managed));
    call.destroyed(ObjectKind::Qp);
    Ok(Reply::new(&DestroyQpResponse { events_reported }))
}
