//! Completion channels and completion queues.

uapi! {
    /// `ib_uverbs_create_comp_channel`.
    struct CreateCompChannel: 8 {
        response: u64,
    }

    /// `ib_uverbs_create_comp_channel_resp`.
    struct CreateCompChannelResponse: 4 {
        fd: u32,
    }

    /// `ib_uverbs_create_cq`.
    struct CreateCq: 32 {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        reserved: u32,
    }

    /// `ib_uverbs_create_cq_resp`.
    struct CreateCqResponse: 8 {
        cq_handle: u32,
        cqe: u32,
    }

    /// `ib_uverbs_ex_create_cq`.
    struct ExCreateCq: 32 {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        comp_mask: u32,
        flags: u32,
        reserved: u32,
    }

    /// `ib_uverbs_ex_create_cq_resp`.
    struct ExCreateCqResponse: 16 {
        base: CreateCqResponse,
        comp_mask: u32,
        response_length: u32,
    }

    /// `ib_uverbs_resize_cq`.
    struct ResizeCq: 16 {
        response: u64,
        cq_handle: u32,
        cqe: u32,
    }

    /// `ib_uverbs_resize_cq_resp`.
    struct ResizeCqResponse: 8 {
        cqe: u32,
        reserved: u32,
    }

    /// `ib_uverbs_req_notify_cq`.
    struct ReqNotifyCq: 8 {
        cq_handle: u32,
        solicited_only: u32,
    }

    /// `ib_uverbs_destroy_cq`.
    struct DestroyCq: 16 {
        response: u64,
        cq_handle: u32,
        reserved: u32,
    }

    /// `ib_uverbs_destroy_cq_resp`.
    struct DestroyCqResponse: 8 {
        comp_events_reported: u32,
        async_events_reported: u32,
    }
}
