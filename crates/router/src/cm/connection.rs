//! Queue pair attributes of a connection (INIT_QP_ATTR).

use super::id::{Device, Id};
use crate::endpoint::PORT;
use rdmesh_nic::cm::{CmError, CmState, ConnectionInfo};
use rdmesh_uverbs::abi::{AhAttr, GlobalRoute, UverbsQpAttr};
use rdmesh_verbs::{Access, AttrMask, Gid, QpState, QpType};
use rustix::io::Errno;

/// The Q_Key of datagram services (`RDMA_UDP_QKEY`).
pub(super) const DATAGRAM_QKEY: u32 = 0x0123_4567;
/// Status of a SIDR response (`enum ib_cm_sidr_status`).
pub(super) const SERVICE_FOUND: u8 = 0;
pub(super) const NO_SUCH_SERVICE: u8 = 1;
pub(super) const SERVICE_REFUSED: u8 = 2;
/// RNR timer of the kernel: 655 ms.
const LONGEST_RNR_TIMER: u8 = 0;
/// 0.64 ms.
const SHORT_RNR_TIMER: u8 = 12;
/// Retries without end.
const FOR_EVER: u8 = 7;

/// The path to `gid`.
pub(super) fn path_to(gid: Gid, sgid_index: u8, traffic_class: u8) -> AhAttr {
    let hop_limit = super::commands::HOP_LIMIT;
    let grh = GlobalRoute { dgid: gid.0, sgid_index, hop_limit, traffic_class, ..Default::default() };
    AhAttr { grh, is_global: 1, port_num: PORT, static_rate: super::commands::RATE, ..Default::default() }
}

/// Attributes without a connection (`cma_ib_init_qp_attr`).
pub(super) fn unconnected_attr(id: &Id, state: QpState) -> UverbsQpAttr {
    let mut mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let mut attr = UverbsQpAttr { qp_state: state as u32, port_num: PORT, ..Default::default() };
    if id.is_datagram() {
        mask |= AttrMask::QKEY;
        attr.qkey = id.qkey.unwrap_or(DATAGRAM_QKEY);
    } else {
        mask |= AttrMask::ACCESS_FLAGS;
    }
    attr.qp_attr_mask = mask.bits();
    attr
}

/// Attributes of a connection's queue pair on its way to `state` (`ib_cm_init_qp_attr`).
pub(super) fn connected_attr(
    id: &Id,
    device: Device,
    info: &ConnectionInfo,
    state: QpState,
) -> Result<UverbsQpAttr, Errno> {
    let is_rc = info.qp_type == QpType::Rc;
    let mut attr = UverbsQpAttr { qp_state: state as u32, ..Default::default() };
    let mut mask = AttrMask::STATE;
    if !allows(info.state, state) {
        return Err(Errno::INVAL);
    }
    match state {
        QpState::Init => {
            mask |= AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX | AttrMask::PORT;
            attr.qp_access_flags = access(info).bits();
            attr.port_num = PORT;
        }
        QpState::Rtr => {
            mask |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
            attr.ah_attr = path_to(device.remote, device.sgid_index, info.traffic_class);
            attr.ah_attr.grh.flow_label = info.flow_label;
            attr.path_mtu = info.mtu as u32;
            attr.dest_qp_num = info.remote_qpn.value();
            attr.rq_psn = id.psn.value();
            if is_rc {
                mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = info.responder_resources;
                attr.min_rnr_timer = rnr_timer(info);
            }
        }
        QpState::Rts => {
            mask |= AttrMask::SQ_PSN;
            attr.sq_psn = info.sq_psn.value();
            if is_rc {
                mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
                attr.timeout = id.options.ack_timeout.unwrap_or(info.ack_timeout);
                attr.retry_cnt = info.retry_count;
                attr.rnr_retry = info.rnr_retry_count;
                attr.max_rd_atomic = info.initiator_depth;
            }
        }
        _ => return Err(Errno::INVAL),
    }
    attr.qp_attr_mask = mask.bits();
    Ok(attr)
}

/// Whether enough is known of the peer.
fn allows(connection: CmState, state: QpState) -> bool {
    use CmState::{Established, MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent, RepRcvd, RepSent, ReqRcvd, ReqSent};
    match connection {
        ReqSent | MraReqRcvd => state == QpState::Init,
        ReqRcvd | MraReqSent | RepSent | MraRepRcvd | RepRcvd | MraRepSent | Established => true,
        _ => false,
    }
}

fn access(info: &ConnectionInfo) -> Access {
    let write = Access::REMOTE_WRITE;
    if info.responder_resources > 0 { write | Access::REMOTE_READ | Access::REMOTE_ATOMIC } else { write }
}

/// RNR timer: delay of a peer that met no receive request. The kernel always uses 655 ms; where the peer retries without end
/// that only costs time.
fn rnr_timer(info: &ConnectionInfo) -> u8 {
    if info.rnr_retry_count >= FOR_EVER { SHORT_RNR_TIMER } else { LONGEST_RNR_TIMER }
}

pub(super) fn cm_errno(error: CmError) -> Errno {
    match error {
        CmError::Unknown | CmError::State(_) | CmError::TooLong | CmError::QpType => Errno::INVAL,
    }
}
