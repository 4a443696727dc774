//! The structs of `rdma_user_cm.h`: commands and responses of `/dev/infiniband/rdma_cm`.
//!
//! Socket addresses are their raw bytes: 28 where the header has a `sockaddr_in6`, 128 for a `sockaddr_storage`.

use super::AhAttr;

/// Numbers of the commands ([`CmHeader::cmd`]).
#[allow(missing_docs, reason = "the names are those of the kernel's header")]
pub mod cm_command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    /// Has a number, but no function.
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    /// Of kernels from 6.18 on.
    pub const RESOLVE_IB_SERVICE: u32 = 23;
    /// Of kernels from 6.18 on.
    pub const WRITE_CM_EVENT: u32 = 24;
}

/// Values of [`Query::option`].
#[allow(missing_docs, reason = "the names are those of the kernel's header")]
pub mod cm_query {
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
    /// Of kernels from 6.18 on.
    pub const IB_SERVICE: u32 = 3;
}

/// Port spaces ([`CreateId::ps`]).
#[allow(missing_docs, reason = "the names are those of the kernel's header")]
pub mod cm_port_space {
    pub const IPOIB: u16 = 0x0002;
    pub const IB: u16 = 0x013f;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
}

/// Levels and names of [`SetOption`].
#[allow(missing_docs, reason = "the names are those of the kernel's header")]
pub mod cm_option {
    pub const LEVEL_ID: u32 = 0;
    pub const LEVEL_IB: u32 = 1;
    pub const ID_TOS: u32 = 0;
    pub const ID_REUSEADDR: u32 = 1;
    pub const ID_AFONLY: u32 = 2;
    pub const ID_ACK_TIMEOUT: u32 = 3;
    pub const IB_PATH: u32 = 1;
}

/// Private data in [`ConnParam`], [`UdParam`] and [`Reject`].
pub const CM_PRIVATE_DATA: usize = 256;
/// The version of this ABI that `abi_version` in sysfs names.
pub const CM_ABI_VERSION: u32 = 4;

uapi! {
    /// `rdma_ucm_cmd_hdr`. The lengths are bytes.
    struct CmHeader: 8 {
        cmd: u32,
        in_len: u16,
        out_len: u16,
    }

    /// `rdma_ucm_create_id`.
    struct CreateId: 24 {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }

    /// `rdma_ucm_create_id_resp`; JOIN_IP_MCAST and JOIN_MCAST answer with it too.
    struct CreateIdResponse: 4 {
        id: u32,
    }

    /// `rdma_ucm_destroy_id`, also of LEAVE_MCAST.
    struct DestroyId: 16 {
        response: u64,
        id: u32,
        reserved: u32,
    }

    /// `rdma_ucm_destroy_id_resp`, also of LEAVE_MCAST.
    struct DestroyIdResponse: 4 {
        events_reported: u32,
    }

    /// `rdma_ucm_bind_ip`.
    struct BindIp: 40 {
        response: u64,
        addr: [u8; 28],
        id: u32,
    }

    /// `rdma_ucm_bind`.
    struct Bind: 136 {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: [u8; 128],
    }

    /// `rdma_ucm_resolve_ip`.
    struct ResolveIp: 64 {
        src_addr: [u8; 28],
        dst_addr: [u8; 28],
        id: u32,
        timeout_ms: u32,
    }

    /// `rdma_ucm_resolve_addr`.
    struct ResolveAddr: 272 {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: [u8; 128],
        dst_addr: [u8; 128],
    }

    /// `rdma_ucm_resolve_route`.
    struct ResolveRoute: 8 {
        id: u32,
        timeout_ms: u32,
    }

    /// `rdma_ucm_query`, also the command of QUERY_ROUTE (whose `option` is not looked at).
    struct Query: 16 {
        response: u64,
        id: u32,
        option: u32,
    }

    /// `ib_user_path_rec`. Two-byte fields and the flow label are big-endian.
    struct UserPathRecord: 64 {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: [u8; 2],
        slid: [u8; 2],
        raw_traffic: u32,
        flow_label: [u8; 4],
        reversible: u32,
        mtu: u32,
        pkey: [u8; 2],
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// `rdma_ucm_query_route_resp`. Programs of ABI versions before `ibdev_index` have room for 8 bytes less.
    struct QueryRouteResponse: 208 {
        node_guid: u64,
        ib_route: [UserPathRecord; 2],
        src_addr: [u8; 28],
        dst_addr: [u8; 28],
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }

    /// `rdma_ucm_query_addr_resp`, of the options ADDR and GID.
    struct QueryAddrResponse: 280 {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: [u8; 2],
        src_size: u16,
        dst_size: u16,
        src_addr: [u8; 128],
        dst_addr: [u8; 128],
        ibdev_index: u32,
        reserved1: u32,
    }

    /// `rdma_ucm_query_path_resp`, which [`PathRecordData`]s follow.
    struct QueryPathResponse: 8 {
        num_paths: u32,
        reserved: u32,
    }

    /// `ib_path_rec_data`: a path record as the subnet administrator has it. SET_OPTION's IB_PATH takes them too.
    struct PathRecordData: 72 {
        flags: u32,
        reserved: u32,
        path_rec: [u8; 64],
    }

    /// `rdma_ucm_conn_param`.
    struct ConnParam: 272 {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; CM_PRIVATE_DATA],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }

    /// `rdma_ucm_ud_param`.
    struct UdParam: 304 {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; CM_PRIVATE_DATA],
        private_data_len: u8,
        reserved: [u8; 7],
    }

    /// `rdma_ucm_ece`.
    struct Ece: 8 {
        vendor_id: u32,
        attr_mod: u32,
    }

    /// `rdma_ucm_connect`. Older programs send it without `ece`.
    struct Connect: 288 {
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `rdma_ucm_listen`.
    struct Listen: 8 {
        id: u32,
        backlog: u32,
    }

    /// `rdma_ucm_accept`. Older programs send it without `ece`.
    struct Accept: 296 {
        uid: u64,
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `rdma_ucm_reject`.
    struct Reject: 264 {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; CM_PRIVATE_DATA],
    }

    /// `rdma_ucm_disconnect`.
    struct Disconnect: 4 {
        id: u32,
    }

    /// `rdma_ucm_init_qp_attr`, which [`UverbsQpAttr`] answers.
    struct InitQpAttr: 16 {
        response: u64,
        id: u32,
        qp_state: u32,
    }

    /// `ib_uverbs_qp_attr`.
    struct UverbsQpAttr: 144 {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 5],
    }

    /// `rdma_ucm_notify`.
    struct Notify: 8 {
        id: u32,
        event: u32,
    }

    /// `rdma_ucm_join_ip_mcast`.
    struct JoinIpMcast: 48 {
        response: u64,
        uid: u64,
        addr: [u8; 28],
        id: u32,
    }

    /// `rdma_ucm_join_mcast`.
    struct JoinMcast: 152 {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: [u8; 128],
    }

    /// `rdma_ucm_get_event`.
    struct GetEvent: 8 {
        response: u64,
    }

    /// `rdma_ucm_event_resp`. `param` is a [`ConnParam`] or a [`UdParam`]; older programs have no room for what follows.
    struct EventResponse: 336 {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
        param: [u8; size_of::<UdParam>()],
        reserved: u32,
        ece: Ece,
    }

    /// `rdma_ucm_set_option`.
    struct SetOption: 24 {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }

    /// `rdma_ucm_migrate_id`: `fd` is the channel that has the ID now.
    struct MigrateId: 16 {
        response: u64,
        id: u32,
        fd: u32,
    }

    /// `rdma_ucm_resolve_ib_service`.
    struct ResolveIbService: 88 {
        id: u32,
        reserved: u32,
        service_id: u64,
        service_name: [u8; 64],
        flags: u32,
        reserved1: u32,
    }

    /// `rdma_ucm_write_cm_event`. Of `param` the first eight bytes are what the event carries.
    struct WriteCmEvent: 320 {
        id: u32,
        reserved: u32,
        event: u32,
        status: u32,
        param: [u8; size_of::<UdParam>()],
    }

    /// `rdma_ucm_query_ib_service_resp`, which service records follow.
    struct QueryIbServiceResponse: 8 {
        num_service_recs: u32,
        reserved: u32,
    }

    /// `rdma_ucm_migrate_resp`.
    struct MigrateResponse: 4 {
        events_reported: u32,
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(EventResponse, param) == 20 && offset_of!(EventResponse, ece) == 328);
    assert!(offset_of!(UverbsQpAttr, ah_attr) == 40 && offset_of!(UverbsQpAttr, pkey_index) == 124);
    assert!(offset_of!(QueryRouteResponse, num_paths) == 192 && offset_of!(QueryRouteResponse, ibdev_index) == 200);
    assert!(offset_of!(Bind, addr) == 8 && offset_of!(ResolveAddr, src_addr) == 16);
    assert!(offset_of!(BindIp, addr) == 8 && offset_of!(JoinMcast, addr) == 24);
};
