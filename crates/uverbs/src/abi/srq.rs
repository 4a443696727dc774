//! Shared receive queues.

uapi! {
    struct CreateSrq("ib_uverbs_create_srq"): 32 {
        [0] response: u64,
        [8] user_handle: u64,
        [16] pd_handle: u32,
        [20] max_wr: u32,
        [24] max_sge: u32,
        [28] srq_limit: u32,
    }

    struct CreateXsrq("ib_uverbs_create_xsrq"): 48 {
        [0] response: u64,
        [8] user_handle: u64,
        [16] srq_type: u32,
        [20] pd_handle: u32,
        [24] max_wr: u32,
        [28] max_sge: u32,
        [32] srq_limit: u32,
        [36] max_num_tags: u32,
        [40] xrcd_handle: u32,
        [44] cq_handle: u32,
    }

    struct CreateSrqResponse("ib_uverbs_create_srq_resp"): 16 {
        [0] srq_handle: u32,
        [4] max_wr: u32,
        [8] max_sge: u32,
        [12] srqn: u32,
    }

    struct ModifySrq("ib_uverbs_modify_srq"): 16 {
        [0] srq_handle: u32,
        [4] attr_mask: u32,
        [8] max_wr: u32,
        [12] srq_limit: u32,
    }

    struct QuerySrq("ib_uverbs_query_srq"): 16 {
        [0] response: u64,
        [8] srq_handle: u32,
        [12] reserved: u32,
    }

    struct QuerySrqResponse("ib_uverbs_query_srq_resp"): 16 {
        [0] max_wr: u32,
        [4] max_sge: u32,
        [8] srq_limit: u32,
        [12] reserved: u32,
    }

    struct DestroySrq("ib_uverbs_destroy_srq"): 16 {
        [0] response: u64,
        [8] srq_handle: u32,
        [12] reserved: u32,
    }

    struct DestroySrqResponse("ib_uverbs_destroy_srq_resp"): 4 {
        [0] events_reported: u32,
    }
}
