//! Context and device commands: GET_CONTEXT, QUERY_DEVICE, QUERY_PORT.

use super::super::reply::Reply;
use super::Call;
use crate::endpoint::{GID_TABLE_LEN, PORT, lids};
use rdmesh_uverbs::abi::{
    ExQueryDevice, ExQueryDeviceResponse, GetContext, GetContextResponse, OdpCaps, QueryDevice, QueryDeviceResponse,
    QueryPort, QueryPortResponse,
};
use rdmesh_verbs::{DeviceLimits, Mtu};
use rustix::io::Errno;

/// Completion vectors: one, numbered 0.
pub(super) const COMPLETION_VECTORS: u32 = 1;

pub(super) fn get_context(call: &mut Call<'_>) -> Result<Reply, Errno> {
    call.request::<GetContext>()?;
    let async_fd = call.scope.context.take_async_fd().ok_or(Errno::INVAL)?;
    // The library puts the descriptor's number into `async_fd`, at byte 0.
    Ok(Reply::new(&GetContextResponse { async_fd: 0, num_comp_vectors: COMPLETION_VECTORS }).with_install(async_fd, 0))
}

pub(super) fn query(call: &mut Call<'_>) -> Result<Reply, Errno> {
    call.request::<QueryDevice>()?;
    Ok(Reply::new(&attributes(call)))
}

pub(super) fn ex_query(call: &mut Call<'_>) -> Result<Reply, Errno> {
    let request: ExQueryDevice = call.request()?;
    let has_driver = !call.command.driver.is_empty() || call.command.driver_out_len != 0;
    if request.comp_mask != 0 || request.reserved != 0 || has_driver {
        return Err(Errno::INVAL);
    }
    let response = ExQueryDeviceResponse {
        base: attributes(call),
        response_length: call.command.out_len.min(size_of::<ExQueryDeviceResponse>()) as u32,
        odp_caps: OdpCaps {
            general_caps: odp::SUPPORT | odp::IMPLICIT,
            rc_odp_caps: odp::SEND | odp::RECV | odp::WRITE | odp::READ | odp::ATOMIC | odp::SRQ_RECV,
            uc_odp_caps: odp::SEND | odp::RECV | odp::WRITE | odp::SRQ_RECV,
            ud_odp_caps: odp::SEND | odp::RECV | odp::SRQ_RECV,
            reserved: 0,
        },
        device_cap_flags_ex: CAPABILITIES,
        ..Default::default()
    };
    Ok(Reply::new(&response))
}

pub(super) fn query_port(call: &mut Call<'_>) -> Result<Reply, Errno> {
    const CM_SUPPORTED: u32 = 1 << 16;
    const IP_BASED_GIDS: u32 = 1 << 26;
    const ETHERNET: u8 = 2;
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    let request: QueryPort = call.request()?;
    if request.port_num != PORT {
        return Err(Errno::INVAL);
    }
    Ok(Reply::new(&QueryPortResponse {
        port_cap_flags: CM_SUPPORTED | IP_BASED_GIDS,
        max_msg_sz: call.scope.limits.max_msg_size,
        gid_tbl_len: GID_TABLE_LEN as u32,
        pkey_tbl_len: 1,
        state: PORT_ACTIVE,
        max_mtu: Mtu::B4096 as u8,
        active_mtu: call.scope.context.mtu() as u8,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: PORT_LINK_UP,
        lid: lids::lid(&call.scope.endpoint.account.spec().gids),
        link_layer: ETHERNET,
        ..Default::default()
    }))
}

fn attributes(call: &Call<'_>) -> QueryDeviceResponse {
    const VENDOR_ID: u32 = 0xff_ffff;
    const ATOMIC_HCA: u32 = 1;
    const MCAST_GROUPS: u32 = 8192;
    const QPS_PER_GROUP: u32 = 56;
    let guid = call.scope.endpoint.account.spec().node_guid();
    let limits: &DeviceLimits = call.scope.limits;
    let rd_atomic = u32::from(limits.max_rd_atomic);
    QueryDeviceResponse {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        max_qp: limits.max_qp,
        max_qp_wr: limits.max_qp_wr,
        device_cap_flags: FIRST_CAPABILITIES,
        max_sge: limits.max_sge,
        max_sge_rd: limits.max_sge,
        max_cq: limits.max_cq,
        max_cqe: limits.max_cqe,
        max_mr: limits.max_mr,
        max_pd: limits.max_pd,
        max_qp_rd_atom: rd_atomic,
        max_res_rd_atom: rd_atomic.saturating_mul(limits.max_qp),
        max_qp_init_rd_atom: rd_atomic,
        atomic_cap: ATOMIC_HCA,
        max_mw: limits.max_mw,
        max_mcast_grp: MCAST_GROUPS,
        max_mcast_qp_attach: QPS_PER_GROUP,
        max_total_mcast_qp_attach: MCAST_GROUPS * QPS_PER_GROUP,
        max_ah: limits.max_ah,
        max_srq: limits.max_srq,
        max_srq_wr: limits.max_srq_wr,
        max_srq_sge: limits.max_srq_sge,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: PORT,
        ..Default::default()
    }
}

/// `enum ib_port_state`: the port is active, always.
pub(crate) const PORT_ACTIVE: u8 = 4;
/// `enum ib_port_phys_state`.
pub(crate) const PORT_LINK_UP: u8 = 5;
/// All capabilities of the device.
pub(crate) const CAPABILITIES: u64 = FIRST_CAPABILITIES as u64 | cap::FLUSH_GLOBAL | cap::ATOMIC_WRITE;
/// `enum ib_device_cap_flags`: rxe's, without those of its flags that stand for nothing here.
const FIRST_CAPABILITIES: u32 = cap::UD_AV_PORT_ENFORCE
    | cap::PORT_ACTIVE_EVENT
    | cap::SYS_IMAGE_GUID
    | cap::RC_RNR_NAK_GEN
    | cap::SRQ_RESIZE
    | cap::MEM_WINDOW
    | cap::MEM_MGT_EXTENSIONS
    | cap::MEM_WINDOW_TYPE_2B;

mod cap {
    pub(super) const UD_AV_PORT_ENFORCE: u32 = 1 << 6;
    pub(super) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(super) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(super) const SRQ_RESIZE: u32 = 1 << 13;
    pub(super) const MEM_WINDOW: u32 = 1 << 17;
    pub(super) const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    pub(super) const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    pub(super) const FLUSH_GLOBAL: u64 = 1 << 38;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 40;
}

/// `enum ib_odp_general_cap_bits` and `ib_odp_transport_cap_bits`.
mod odp {
    pub(super) const SUPPORT: u64 = 1;
    pub(super) const IMPLICIT: u64 = 1 << 1;
    pub(super) const SEND: u32 = 1;
    pub(super) const RECV: u32 = 1 << 1;
    pub(super) const WRITE: u32 = 1 << 2;
    pub(super) const READ: u32 = 1 << 3;
    pub(super) const ATOMIC: u32 = 1 << 4;
    pub(super) const SRQ_RECV: u32 = 1 << 5;
}
