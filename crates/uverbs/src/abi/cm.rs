//! The structs of `rdma_user_cm.h`: commands and responses of `/dev/infiniband/rdma_cm`.
//!
//! Socket addresses ([`super::SockaddrIn`] and the others) are their raw bytes: 28 where the header has a `sockaddr_in6`, 128
//! for a `sockaddr_storage`.

use super::{AhAttr, SaPathRecord};

numbers! {
    /// Numbers of the commands ([`CmHeader::cmd`]).
    pub mod cm_command("RDMA_USER_CM_CMD_"): u32 {
        CREATE_ID = 0,
        DESTROY_ID = 1,
        BIND_IP = 2,
        RESOLVE_IP = 3,
        RESOLVE_ROUTE = 4,
        QUERY_ROUTE = 5,
        CONNECT = 6,
        LISTEN = 7,
        ACCEPT = 8,
        REJECT = 9,
        DISCONNECT = 10,
        INIT_QP_ATTR = 11,
        GET_EVENT = 12,
        /// Has a number, but no function.
        GET_OPTION = 13,
        SET_OPTION = 14,
        NOTIFY = 15,
        JOIN_IP_MCAST = 16,
        LEAVE_MCAST = 17,
        MIGRATE_ID = 18,
        QUERY = 19,
        BIND = 20,
        RESOLVE_ADDR = 21,
        JOIN_MCAST = 22,
        /// Of kernels from 6.18 on.
        RESOLVE_IB_SERVICE = 23,
        /// Of kernels from 6.18 on.
        WRITE_CM_EVENT = 24,
    }

    /// Values of [`Query::option`].
    pub mod cm_query("RDMA_USER_CM_QUERY_"): u32 {
        ADDR = 0,
        PATH = 1,
        GID = 2,
        /// Of kernels from 6.18 on.
        IB_SERVICE = 3,
    }

    /// Port spaces ([`CreateId::ps`]).
    pub mod cm_port_space("RDMA_PS_"): u16 {
        IPOIB = 0x0002,
        IB = 0x013f,
        TCP = 0x0106,
        UDP = 0x0111,
    }

    /// Levels and names of [`SetOption`].
    pub mod cm_option("RDMA_OPTION_"): u32 {
        LEVEL_ID("RDMA_OPTION_ID") = 0,
        LEVEL_IB("RDMA_OPTION_IB") = 1,
        ID_TOS = 0,
        ID_REUSEADDR = 1,
        ID_AFONLY = 2,
        ID_ACK_TIMEOUT = 3,
        IB_PATH = 1,
    }
}

/// Private data in [`ConnParam`], [`UdParam`] and [`Reject`].
pub const CM_PRIVATE_DATA: usize = 256;
/// The version of this ABI that `abi_version` in sysfs names.
pub const CM_ABI_VERSION: u32 = 4;

uapi! {
    /// The lengths are bytes.
    struct CmHeader("rdma_ucm_cmd_hdr"): 8 {
        [0] cmd: u32,
        [4] in_len("in"): u16,
        [6] out_len("out"): u16,
    }

    struct CreateId("rdma_ucm_create_id"): 24 {
        [0] uid: u64,
        [8] response: u64,
        [16] ps: u16,
        [18] qp_type: u8,
        [19] reserved: [u8; 5],
    }

    /// JOIN_IP_MCAST and JOIN_MCAST answer with it too.
    struct CreateIdResponse("rdma_ucm_create_id_resp"): 4 {
        [0] id: u32,
    }

    /// Also of LEAVE_MCAST.
    struct DestroyId("rdma_ucm_destroy_id"): 16 {
        [0] response: u64,
        [8] id: u32,
        [12] reserved: u32,
    }

    /// Also of LEAVE_MCAST.
    struct DestroyIdResponse("rdma_ucm_destroy_id_resp"): 4 {
        [0] events_reported: u32,
    }

    struct BindIp("rdma_ucm_bind_ip"): 40 {
        [0] response: u64,
        [8] addr: [u8; 28],
        [36] id: u32,
    }

    struct Bind("rdma_ucm_bind"): 136 {
        [0] id: u32,
        [4] addr_size: u16,
        [6] reserved: u16,
        [8] addr: [u8; 128],
    }

    struct ResolveIp("rdma_ucm_resolve_ip"): 64 {
        [0] src_addr: [u8; 28],
        [28] dst_addr: [u8; 28],
        [56] id: u32,
        [60] timeout_ms: u32,
    }

    struct ResolveAddr("rdma_ucm_resolve_addr"): 272 {
        [0] id: u32,
        [4] timeout_ms: u32,
        [8] src_size: u16,
        [10] dst_size: u16,
        [12] reserved: u32,
        [16] src_addr: [u8; 128],
        [144] dst_addr: [u8; 128],
    }

    struct ResolveRoute("rdma_ucm_resolve_route"): 8 {
        [0] id: u32,
        [4] timeout_ms: u32,
    }

    /// Also the command of QUERY_ROUTE, whose `option` is not looked at.
    struct Query("rdma_ucm_query"): 16 {
        [0] response: u64,
        [8] id: u32,
        [12] option: u32,
    }

    /// Two-byte fields and the flow label are big-endian.
    struct UserPathRecord("ib_user_path_rec"): 64 {
        [0] dgid: [u8; 16],
        [16] sgid: [u8; 16],
        [32] dlid: [u8; 2],
        [34] slid: [u8; 2],
        [36] raw_traffic: u32,
        [40] flow_label: [u8; 4],
        [44] reversible: u32,
        [48] mtu: u32,
        [52] pkey: [u8; 2],
        [54] hop_limit: u8,
        [55] traffic_class: u8,
        [56] numb_path: u8,
        [57] sl: u8,
        [58] mtu_selector: u8,
        [59] rate_selector: u8,
        [60] rate: u8,
        [61] packet_life_time_selector: u8,
        [62] packet_life_time: u8,
        [63] preference: u8,
    }

    /// Programs of ABI versions before `ibdev_index` have room for 8 bytes less.
    struct QueryRouteResponse("rdma_ucm_query_route_resp"): 208 {
        [0] node_guid: u64,
        [8] ib_route: [UserPathRecord; 2],
        [136] src_addr: [u8; 28],
        [164] dst_addr: [u8; 28],
        [192] num_paths: u32,
        [196] port_num: u8,
        [197] reserved: [u8; 3],
        [200] ibdev_index: u32,
        [204] reserved1: u32,
    }

    /// Of the options ADDR and GID.
    struct QueryAddrResponse("rdma_ucm_query_addr_resp"): 280 {
        [0] node_guid: u64,
        [8] port_num: u8,
        [9] reserved: u8,
        [10] pkey: [u8; 2],
        [12] src_size: u16,
        [14] dst_size: u16,
        [16] src_addr: [u8; 128],
        [144] dst_addr: [u8; 128],
        [272] ibdev_index: u32,
        [276] reserved1: u32,
    }

    /// [`PathRecordData`]s follow it.
    struct QueryPathResponse("rdma_ucm_query_path_resp"): 8 {
        [0] num_paths: u32,
        [4] reserved: u32,
    }

    /// A path record as the subnet administrator has it ([`super::SaPathRecord`]). SET_OPTION's IB_PATH takes them too.
    struct PathRecordData("ib_path_rec_data"): 72 {
        [0] flags: u32,
        [4] reserved: u32,
        [8] path_rec: SaPathRecord,
    }

    struct ConnParam("rdma_ucm_conn_param"): 272 {
        [0] qp_num: u32,
        [4] qkey: u32,
        [8] private_data: [u8; CM_PRIVATE_DATA],
        [264] private_data_len: u8,
        [265] srq: u8,
        [266] responder_resources: u8,
        [267] initiator_depth: u8,
        [268] flow_control: u8,
        [269] retry_count: u8,
        [270] rnr_retry_count: u8,
        [271] valid: u8,
    }

    struct UdParam("rdma_ucm_ud_param"): 304 {
        [0] qp_num: u32,
        [4] qkey: u32,
        [8] ah_attr: AhAttr,
        [40] private_data: [u8; CM_PRIVATE_DATA],
        [296] private_data_len: u8,
        [297] reserved: [u8; 7],
    }

    struct Ece("rdma_ucm_ece"): 8 {
        [0] vendor_id: u32,
        [4] attr_mod: u32,
    }

    /// Older programs send it without `ece`.
    struct Connect("rdma_ucm_connect"): 288 {
        [0] conn_param: ConnParam,
        [272] id: u32,
        [276] reserved: u32,
        [280] ece: Ece,
    }

    struct Listen("rdma_ucm_listen"): 8 {
        [0] id: u32,
        [4] backlog: u32,
    }

    /// Older programs send it without `ece`.
    struct Accept("rdma_ucm_accept"): 296 {
        [0] uid: u64,
        [8] conn_param: ConnParam,
        [280] id: u32,
        [284] reserved: u32,
        [288] ece: Ece,
    }

    struct Reject("rdma_ucm_reject"): 264 {
        [0] id: u32,
        [4] private_data_len: u8,
        [5] reason: u8,
        [6] reserved: [u8; 2],
        [8] private_data: [u8; CM_PRIVATE_DATA],
    }

    struct Disconnect("rdma_ucm_disconnect"): 4 {
        [0] id: u32,
    }

    /// [`UverbsQpAttr`] answers it.
    struct InitQpAttr("rdma_ucm_init_qp_attr"): 16 {
        [0] response: u64,
        [8] id: u32,
        [12] qp_state: u32,
    }

    struct UverbsQpAttr("ib_uverbs_qp_attr"): 144 {
        [0] qp_attr_mask: u32,
        [4] qp_state: u32,
        [8] cur_qp_state: u32,
        [12] path_mtu: u32,
        [16] path_mig_state: u32,
        [20] qkey: u32,
        [24] rq_psn: u32,
        [28] sq_psn: u32,
        [32] dest_qp_num: u32,
        [36] qp_access_flags: u32,
        [40] ah_attr: AhAttr,
        [72] alt_ah_attr: AhAttr,
        [104] max_send_wr: u32,
        [108] max_recv_wr: u32,
        [112] max_send_sge: u32,
        [116] max_recv_sge: u32,
        [120] max_inline_data: u32,
        [124] pkey_index: u16,
        [126] alt_pkey_index: u16,
        [128] en_sqd_async_notify: u8,
        [129] sq_draining: u8,
        [130] max_rd_atomic: u8,
        [131] max_dest_rd_atomic: u8,
        [132] min_rnr_timer: u8,
        [133] port_num: u8,
        [134] timeout: u8,
        [135] retry_cnt: u8,
        [136] rnr_retry: u8,
        [137] alt_port_num: u8,
        [138] alt_timeout: u8,
        [139] reserved: [u8; 5],
    }

    struct Notify("rdma_ucm_notify"): 8 {
        [0] id: u32,
        [4] event: u32,
    }

    struct JoinIpMcast("rdma_ucm_join_ip_mcast"): 48 {
        [0] response: u64,
        [8] uid: u64,
        [16] addr: [u8; 28],
        [44] id: u32,
    }

    struct JoinMcast("rdma_ucm_join_mcast"): 152 {
        [0] response: u64,
        [8] uid: u64,
        [16] id: u32,
        [20] addr_size: u16,
        [22] join_flags: u16,
        [24] addr: [u8; 128],
    }

    struct GetEvent("rdma_ucm_get_event"): 8 {
        [0] response: u64,
    }

    /// `param` is a [`ConnParam`] or a [`UdParam`]; older programs have no room for what follows.
    struct EventResponse("rdma_ucm_event_resp"): 336 {
        [0] uid: u64,
        [8] id: u32,
        [12] event: u32,
        [16] status: u32,
        [20] param: [u8; size_of::<UdParam>()],
        [324] reserved: u32,
        [328] ece: Ece,
    }

    struct SetOption("rdma_ucm_set_option"): 24 {
        [0] optval: u64,
        [8] id: u32,
        [12] level: u32,
        [16] optname: u32,
        [20] optlen: u32,
    }

    /// `fd` is the channel that has the ID now.
    struct MigrateId("rdma_ucm_migrate_id"): 16 {
        [0] response: u64,
        [8] id: u32,
        [12] fd: u32,
    }

    struct ResolveIbService("rdma_ucm_resolve_ib_service"): 88 {
        [0] id: u32,
        [4] reserved: u32,
        [8] service_id("ibs.service_id"): u64,
        [16] service_name("ibs.service_name"): [u8; 64],
        [80] flags("ibs.flags"): u32,
        [84] reserved1("ibs.reserved"): u32,
    }

    /// Of `param` the first eight bytes are what the event carries.
    struct WriteCmEvent("rdma_ucm_write_cm_event"): 320 {
        [0] id: u32,
        [4] reserved: u32,
        [8] event: u32,
        [12] status: u32,
        [16] param: [u8; size_of::<UdParam>()],
    }

    /// Service records follow it.
    struct QueryIbServiceResponse("rdma_ucm_query_ib_service_resp"): 8 {
        [0] num_service_recs: u32,
        [4] reserved: u32,
    }

    struct MigrateResponse("rdma_ucm_migrate_resp"): 4 {
        [0] events_reported: u32,
    }
}
