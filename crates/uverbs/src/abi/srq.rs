//! Shared receive queues.

uapi! {
    /// `ib_uverbs_create_srq`.
    struct CreateSrq: 32 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// `ib_uverbs_create_xsrq`.
    struct CreateXsrq: 48 {
        response: u64,
        user_handle: u64,
        srq_type: u32,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        max_num_tags: u32,
        xrcd_handle: u32,
        cq_handle: u32,
    }

    /// `ib_uverbs_create_srq_resp`.
    struct CreateSrqResponse: 16 {
        srq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srqn: u32,
    }

    /// `ib_uverbs_modify_srq`.
    struct ModifySrq: 16 {
        srq_handle: u32,
        attr_mask: u32,
        max_wr: u32,
        srq_limit: u32,
    }

    /// `ib_uverbs_query_srq`.
    struct QuerySrq: 16 {
        response: u64,
        srq_handle: u32,
        reserved: u32,
    }

    /// `ib_uverbs_query_srq_resp`.
    struct QuerySrqResponse: 16 {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        reserved: u32,
    }

    /// `ib_uverbs_destroy_srq`.
    struct DestroySrq: 16 {
        response: u64,
        srq_handle: u32,
        reserved: u32,
    }

    /// `ib_uverbs_destroy_srq_resp`.
    struct DestroySrqResponse: 4 {
        events_reported: u32,
    }
}
