//! Device context, device and port attributes.

uapi! {
    struct GetContext("ib_uverbs_get_context"): 8 {
        [0] response: u64,
    }

    struct GetContextResponse("ib_uverbs_get_context_resp"): 8 {
        [0] async_fd: u32,
        [4] num_comp_vectors: u32,
    }

    struct QueryDevice("ib_uverbs_query_device"): 8 {
        [0] response: u64,
    }

    /// The GUIDs are big-endian.
    struct QueryDeviceResponse("ib_uverbs_query_device_resp"): 176 {
        [0] fw_ver: u64,
        [8] node_guid: [u8; 8],
        [16] sys_image_guid: [u8; 8],
        [24] max_mr_size: u64,
        [32] page_size_cap: u64,
        [40] vendor_id: u32,
        [44] vendor_part_id: u32,
        [48] hw_ver: u32,
        [52] max_qp: u32,
        [56] max_qp_wr: u32,
        [60] device_cap_flags: u32,
        [64] max_sge: u32,
        [68] max_sge_rd: u32,
        [72] max_cq: u32,
        [76] max_cqe: u32,
        [80] max_mr: u32,
        [84] max_pd: u32,
        [88] max_qp_rd_atom: u32,
        [92] max_ee_rd_atom: u32,
        [96] max_res_rd_atom: u32,
        [100] max_qp_init_rd_atom: u32,
        [104] max_ee_init_rd_atom: u32,
        [108] atomic_cap: u32,
        [112] max_ee: u32,
        [116] max_rdd: u32,
        [120] max_mw: u32,
        [124] max_raw_ipv6_qp: u32,
        [128] max_raw_ethy_qp: u32,
        [132] max_mcast_grp: u32,
        [136] max_mcast_qp_attach: u32,
        [140] max_total_mcast_qp_attach: u32,
        [144] max_ah: u32,
        [148] max_fmr: u32,
        [152] max_map_per_fmr: u32,
        [156] max_srq: u32,
        [160] max_srq_wr: u32,
        [164] max_srq_sge: u32,
        [168] max_pkeys: u16,
        [170] local_ca_ack_delay: u8,
        [171] phys_port_cnt: u8,
        [172] reserved: [u8; 4],
    }

    struct ExQueryDevice("ib_uverbs_ex_query_device"): 8 {
        [0] comp_mask: u32,
        [4] reserved: u32,
    }

    struct OdpCaps("ib_uverbs_odp_caps"): 24 {
        [0] general_caps: u64,
        [8] rc_odp_caps("per_transport_caps.rc_odp_caps"): u32,
        [12] uc_odp_caps("per_transport_caps.uc_odp_caps"): u32,
        [16] ud_odp_caps("per_transport_caps.ud_odp_caps"): u32,
        [20] reserved: u32,
    }

    struct RssCaps("ib_uverbs_rss_caps"): 16 {
        [0] supported_qpts: u32,
        [4] max_rwq_indirection_tables: u32,
        [8] max_rwq_indirection_table_size: u32,
        [12] reserved: u32,
    }

    struct TmCaps("ib_uverbs_tm_caps"): 24 {
        [0] max_rndv_hdr_size: u32,
        [4] max_num_tags: u32,
        [8] flags: u32,
        [12] max_ops: u32,
        [16] max_sge: u32,
        [20] reserved: u32,
    }

    struct CqModerationCaps("ib_uverbs_cq_moderation_caps"): 8 {
        [0] max_cq_moderation_count: u16,
        [2] max_cq_moderation_period: u16,
        [4] reserved: u32,
    }

    struct ExQueryDeviceResponse("ib_uverbs_ex_query_device_resp"): 304 {
        [0] base: QueryDeviceResponse,
        [176] comp_mask: u32,
        [180] response_length: u32,
        [184] odp_caps: OdpCaps,
        [208] timestamp_mask: u64,
        [216] hca_core_clock: u64,
        [224] device_cap_flags_ex: u64,
        [232] rss_caps: RssCaps,
        [248] max_wq_type_rq: u32,
        [252] raw_packet_caps: u32,
        [256] tm_caps: TmCaps,
        [280] cq_moderation_caps: CqModerationCaps,
        [288] max_dm_size: u64,
        [296] xrc_odp_caps: u32,
        [300] reserved: u32,
    }

    struct QueryPort("ib_uverbs_query_port"): 16 {
        [0] response: u64,
        [8] port_num: u8,
        [9] reserved: [u8; 7],
    }

    struct QueryPortResponse("ib_uverbs_query_port_resp"): 40 {
        [0] port_cap_flags: u32,
        [4] max_msg_sz: u32,
        [8] bad_pkey_cntr: u32,
        [12] qkey_viol_cntr: u32,
        [16] gid_tbl_len: u32,
        [20] pkey_tbl_len: u16,
        [22] lid: u16,
        [24] sm_lid: u16,
        [26] state: u8,
        [27] max_mtu: u8,
        [28] active_mtu: u8,
        [29] lmc: u8,
        [30] max_vl_num: u8,
        [31] sm_sl: u8,
        [32] subnet_timeout: u8,
        [33] init_type_reply: u8,
        [34] active_width: u8,
        [35] active_speed: u8,
        [36] phys_state: u8,
        [37] link_layer: u8,
        [38] flags: u8,
        [39] reserved: u8,
    }
}
