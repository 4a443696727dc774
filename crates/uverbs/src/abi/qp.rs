//! Queue pairs.

uapi! {
    /// `ib_uverbs_create_qp`.
    struct CreateQp: 56 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }

    /// `ib_uverbs_ex_create_qp`.
    struct ExCreateQp: 64 {
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }

    /// `ib_uverbs_create_qp_resp`.
    struct CreateQpResponse: 32 {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }

    /// `ib_uverbs_ex_create_qp_resp`.
    struct ExCreateQpResponse: 40 {
        base: CreateQpResponse,
        comp_mask: u32,
        response_length: u32,
    }

    /// `ib_uverbs_qp_dest`.
    struct QpDest: 32 {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// `ib_uverbs_query_qp`.
    struct QueryQp: 16 {
        response: u64,
        qp_handle: u32,
        attr_mask: u32,
    }

    /// `ib_uverbs_query_qp_resp`.
    struct QueryQpResponse: 128 {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
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
        sq_sig_all: u8,
        reserved: [u8; 5],
    }

    /// `ib_uverbs_modify_qp`.
    struct ModifyQp: 112 {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }

    /// `ib_uverbs_ex_modify_qp`.
    struct ExModifyQp: 120 {
        base: ModifyQp,
        rate_limit: u32,
        reserved: u32,
    }

    /// `ib_uverbs_ex_modify_qp_resp`.
    struct ExModifyQpResponse: 8 {
        comp_mask: u32,
        response_length: u32,
    }

    /// `ib_uverbs_destroy_qp`.
    struct DestroyQp: 16 {
        response: u64,
        qp_handle: u32,
        reserved: u32,
    }

    /// `ib_uverbs_destroy_qp_resp`.
    struct DestroyQpResponse: 4 {
        events_reported: u32,
    }

    /// `ib_uverbs_post_send`: rxe's doorbell. Work requests never travel in it.
    struct PostSend: 24 {
        response: u64,
        qp_handle: u32,
        wr_count: u32,
        sge_count: u32,
        wqe_size: u32,
    }

    /// `ib_uverbs_post_send_resp`.
    struct PostSendResponse: 4 {
        bad_wr: u32,
    }
}
