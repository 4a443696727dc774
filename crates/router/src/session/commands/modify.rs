//! MODIFY_QP: queue pair transitions and attributes.

use super::super::reply::Reply;
use super::Call;
use super::address::check_address;
use crate::endpoint::PORT;
use rdmesh_nic::{CommandError, QpInfo};
use rdmesh_uverbs::abi::{ExModifyQp, ExModifyQpResponse, ModifyQp, QpDest};
use rdmesh_verbs::{Access, AddressVector, AttrMask, Gid, Mtu, Psn, Qkey, QpAttr, QpState, Qpn};
use rustix::io::Errno;

/// `IB_QP_ATTR_STANDARD_BITS`.
const STANDARD: u32 = (1 << 21) - 1;

pub(super) fn modify(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ModifyQp = call.request()?;
    apply(call, request)?;
    Ok(Reply::default())
}

pub(super) fn ex_modify(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ExModifyQp = call.request()?;
    // A rate limit is an attribute of this command only, and one that rxe refuses like all beyond the standard ones.
    apply(call, request.base)?;
    let response_length = call.command.out_len.min(size_of::<ExModifyQpResponse>()) as u32;
    Ok(Reply::new(&ExModifyQpResponse { comp_mask: 0, response_length }))
}

fn apply(call: &mut Call<'_>, request: ModifyQp) -> Result<(), Errno> {
    if request.attr_mask & !STANDARD != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut mask = AttrMask::from_bits_truncate(request.attr_mask);
    let mut attr = decode(&request, mask)?;
    check_ranges(call, mask, &mut attr)?;
    let page = call.scope.context.page().clone();
    if mask.contains(AttrMask::STATE) && ends_posting(attr.state) {
        call.settle_qp(request.qp_handle);
    }
    let av = attr.av;
    let done = call.on_shard(move |shard, c| {
        let (now, qp) = (shard.now(), request.qp_handle);
        check_present(&request, &mut mask, &mut attr, &shard.engine().device(c)?.query_qp(qp)?)?;
        shard.engine().device(c)?.modify_qp(now, qp, &attr, mask)?;
        // Before the program hears of its success, since it may post at once.
        let state = shard.engine().device(c)?.query_qp(qp)?.state();
        page.set_qp_state(qp, state as u8);
        Ok(())
    });
    call.note_refusal(&av, done)?;
    // Of datagrams the path is the address handle's.
    if mask.contains(AttrMask::AV) {
        call.note_path(&av);
    }
    Ok(())
}

/// Whether requests that were posted before this state are not executed in it.
fn ends_posting(state: QpState) -> bool {
    matches!(state, QpState::Reset | QpState::Sqd | QpState::Error)
}

/// Reads the attributes that `mask` names; the others are not looked at.
fn decode(request: &ModifyQp, mask: AttrMask) -> Result<QpAttr, Errno> {
    let state = |asked: AttrMask, number: u8| {
        if mask.contains(asked) { QpState::from_number(number).ok_or(Errno::INVAL) } else { Ok(QpState::Reset) }
    };
    let path_mtu =
        if mask.contains(AttrMask::PATH_MTU) { Mtu::from_number(request.path_mtu) } else { Some(Mtu::default()) };
    Ok(QpAttr {
        state: state(AttrMask::STATE, request.qp_state)?,
        cur_state: state(AttrMask::CUR_STATE, request.cur_qp_state)?,
        sqd_async_notify: request.en_sqd_async_notify != 0,
        access: Access::from_bits_truncate(request.qp_access_flags),
        pkey_index: request.pkey_index,
        port: request.port_num,
        qkey: Qkey(request.qkey),
        av: address_vector(&request.dest),
        alt_av: address_vector(&request.alt_dest),
        path_mtu: path_mtu.ok_or(Errno::INVAL)?,
        timeout: request.timeout,
        retry_cnt: request.retry_cnt,
        rnr_retry: request.rnr_retry,
        rq_psn: Psn::new(request.rq_psn),
        sq_psn: Psn::new(request.sq_psn),
        max_rd_atomic: request.max_rd_atomic,
        max_dest_rd_atomic: request.max_dest_rd_atomic,
        min_rnr_timer: request.min_rnr_timer,
        dest_qpn: Qpn::new(request.dest_qp_num),
        path_mig_state: request.path_mig_state,
    })
}

fn address_vector(dest: &QpDest) -> AddressVector {
    AddressVector {
        dgid: Gid(dest.dgid),
        sgid_index: dest.sgid_index,
        flow_label: dest.flow_label,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global != 0,
        port: dest.port_num,
    }
}

/// Checks that depend on the queue pair's present state. The rules on ports (`modify_qp` of ib_uverbs): they must exist, and
/// that of the path must be the queue pair's.
fn check_present(
    request: &ModifyQp,
    mask: &mut AttrMask,
    attr: &mut QpAttr,
    info: &QpInfo,
) -> Result<(), CommandError> {
    if mask.contains(AttrMask::PORT) && request.port_num != PORT {
        return Err(CommandError::Invalid);
    }
    if mask.contains(AttrMask::AV) {
        let to_rtr = mask.contains(AttrMask::STATE) && attr.state == QpState::Rtr;
        if attr.av.port != PORT || to_rtr && attr.av.port != info.attr.port {
            return Err(CommandError::Invalid);
        }
        if !to_rtr && !mask.contains(AttrMask::PORT) {
            // A command that changes the path of a queue pair that has one changes its port with it.
            *mask |= AttrMask::PORT;
            attr.port = attr.av.port;
        }
    }
    // A send queue that still drains can only be given up (rxe_qp_chk_attr).
    let bad_drain = info.sq_draining && mask.contains(AttrMask::STATE) && attr.state != QpState::Error;
    if bad_drain { Err(CommandError::Invalid) } else { Ok(()) }
}

fn check_ranges(call: &Call<'_>, mask: AttrMask, attr: &mut QpAttr) -> Result<(), Errno> {
    const MAX_TIMEOUT: u8 = 31;
    if mask.contains(AttrMask::AV) {
        check_address(call.scope.endpoint.account.spec(), &mut attr.av)?;
    }
    let bad_mtu = mask.contains(AttrMask::PATH_MTU) && attr.path_mtu as u8 > call.scope.context.mtu() as u8;
    // Only InfiniBand links have alternate paths.
    let bad_path = mask.contains(AttrMask::ALT_PATH);
    let bad_timeout = mask.contains(AttrMask::TIMEOUT) && attr.timeout > MAX_TIMEOUT;
    let bad_reads = mask.contains(AttrMask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > call.scope.limits.max_rd_atomic;
    if bad_mtu || bad_path || bad_timeout || bad_reads { Err(Errno::INVAL) } else { Ok(()) }
}
