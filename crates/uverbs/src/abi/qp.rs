//! Queue pairs.

numbers! {
    /// Operations of work requests (`enum ib_uverbs_wr_opcode`).
    pub mod wr_opcode("IB_UVERBS_WR_"): u32 {
        RDMA_WRITE = 0,
        RDMA_WRITE_WITH_IMM = 1,
        SEND = 2,
        SEND_WITH_IMM = 3,
        RDMA_READ = 4,
        ATOMIC_CMP_AND_SWP = 5,
        ATOMIC_FETCH_AND_ADD = 6,
        LOCAL_INV = 7,
        BIND_MW = 8,
        SEND_WITH_INV = 9,
        FLUSH = 14,
        ATOMIC_WRITE = 15,
    }
}

uapi! {
    struct CreateQp("ib_uverbs_create_qp"): 56 {
        [0] response: u64,
        [8] user_handle: u64,
        [16] pd_handle: u32,
        [20] send_cq_handle: u32,
        [24] recv_cq_handle: u32,
        [28] srq_handle: u32,
        [32] max_send_wr: u32,
        [36] max_recv_wr: u32,
        [40] max_send_sge: u32,
        [44] max_recv_sge: u32,
        [48] max_inline_data: u32,
        [52] sq_sig_all: u8,
        [53] qp_type: u8,
        [54] is_srq: u8,
        [55] reserved: u8,
    }

    struct ExCreateQp("ib_uverbs_ex_create_qp"): 64 {
        [0] user_handle: u64,
        [8] pd_handle: u32,
        [12] send_cq_handle: u32,
        [16] recv_cq_handle: u32,
        [20] srq_handle: u32,
        [24] max_send_wr: u32,
        [28] max_recv_wr: u32,
        [32] max_send_sge: u32,
        [36] max_recv_sge: u32,
        [40] max_inline_data: u32,
        [44] sq_sig_all: u8,
        [45] qp_type: u8,
        [46] is_srq: u8,
        [47] reserved: u8,
        [48] comp_mask: u32,
        [52] create_flags: u32,
        [56] rwq_ind_tbl_handle: u32,
        [60] source_qpn: u32,
    }

    struct CreateQpResponse("ib_uverbs_create_qp_resp"): 32 {
        [0] qp_handle: u32,
        [4] qpn: u32,
        [8] max_send_wr: u32,
        [12] max_recv_wr: u32,
        [16] max_send_sge: u32,
        [20] max_recv_sge: u32,
        [24] max_inline_data: u32,
        [28] reserved: u32,
    }

    struct ExCreateQpResponse("ib_uverbs_ex_create_qp_resp"): 40 {
        [0] base: CreateQpResponse,
        [32] comp_mask: u32,
        [36] response_length: u32,
    }

    struct QpDest("ib_uverbs_qp_dest"): 32 {
        [0] dgid: [u8; 16],
        [16] flow_label: u32,
        [20] dlid: u16,
        [22] reserved: u16,
        [24] sgid_index: u8,
        [25] hop_limit: u8,
        [26] traffic_class: u8,
        [27] sl: u8,
        [28] src_path_bits: u8,
        [29] static_rate: u8,
        [30] is_global: u8,
        [31] port_num: u8,
    }

    struct QueryQp("ib_uverbs_query_qp"): 16 {
        [0] response: u64,
        [8] qp_handle: u32,
        [12] attr_mask: u32,
    }

    struct QueryQpResponse("ib_uverbs_query_qp_resp"): 128 {
        [0] dest: QpDest,
        [32] alt_dest: QpDest,
        [64] max_send_wr: u32,
        [68] max_recv_wr: u32,
        [72] max_send_sge: u32,
        [76] max_recv_sge: u32,
        [80] max_inline_data: u32,
        [84] qkey: u32,
        [88] rq_psn: u32,
        [92] sq_psn: u32,
        [96] dest_qp_num: u32,
        [100] qp_access_flags: u32,
        [104] pkey_index: u16,
        [106] alt_pkey_index: u16,
        [108] qp_state: u8,
        [109] cur_qp_state: u8,
        [110] path_mtu: u8,
        [111] path_mig_state: u8,
        [112] sq_draining: u8,
        [113] max_rd_atomic: u8,
        [114] max_dest_rd_atomic: u8,
        [115] min_rnr_timer: u8,
        [116] port_num: u8,
        [117] timeout: u8,
        [118] retry_cnt: u8,
        [119] rnr_retry: u8,
        [120] alt_port_num: u8,
        [121] alt_timeout: u8,
        [122] sq_sig_all: u8,
        [123] reserved: [u8; 5],
    }

    struct ModifyQp("ib_uverbs_modify_qp"): 112 {
        [0] dest: QpDest,
        [32] alt_dest: QpDest,
        [64] qp_handle: u32,
        [68] attr_mask: u32,
        [72] qkey: u32,
        [76] rq_psn: u32,
        [80] sq_psn: u32,
        [84] dest_qp_num: u32,
        [88] qp_access_flags: u32,
        [92] pkey_index: u16,
        [94] alt_pkey_index: u16,
        [96] qp_state: u8,
        [97] cur_qp_state: u8,
        [98] path_mtu: u8,
        [99] path_mig_state: u8,
        [100] en_sqd_async_notify: u8,
        [101] max_rd_atomic: u8,
        [102] max_dest_rd_atomic: u8,
        [103] min_rnr_timer: u8,
        [104] port_num: u8,
        [105] timeout: u8,
        [106] retry_cnt: u8,
        [107] rnr_retry: u8,
        [108] alt_port_num: u8,
        [109] alt_timeout: u8,
        [110] reserved: [u8; 2],
    }

    struct ExModifyQp("ib_uverbs_ex_modify_qp"): 120 {
        [0] base: ModifyQp,
        [112] rate_limit: u32,
        [116] reserved: u32,
    }

    struct ExModifyQpResponse("ib_uverbs_ex_modify_qp_resp"): 8 {
        [0] comp_mask: u32,
        [4] response_length: u32,
    }

    struct DestroyQp("ib_uverbs_destroy_qp"): 16 {
        [0] response: u64,
        [8] qp_handle: u32,
        [12] reserved: u32,
    }

    struct DestroyQpResponse("ib_uverbs_destroy_qp_resp"): 4 {
        [0] events_reported: u32,
    }

    /// The doorbell of rxe. Work requests never travel in it.
    struct PostSend("ib_uverbs_post_send"): 24 {
        [0] response: u64,
        [8] qp_handle: u32,
        [12] wr_count: u32,
        [16] sge_count: u32,
        [20] wqe_size: u32,
    }

    struct PostSendResponse("ib_uverbs_post_send_resp"): 4 {
        [0] bad_wr: u32,
    }
}
