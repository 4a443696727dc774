//! Completion channels and completion queues.

uapi! {
    struct CreateCompChannel("ib_uverbs_create_comp_channel"): 8 {
        [0] response: u64,
    }

    struct CreateCompChannelResponse("ib_uverbs_create_comp_channel_resp"): 4 {
        [0] fd: u32,
    }

    struct CreateCq("ib_uverbs_create_cq"): 32 {
        [0] response: u64,
        [8] user_handle: u64,
        [16] cqe: u32,
        [20] comp_vector: u32,
        [24] comp_channel: i32,
        [28] reserved: u32,
    }

    struct CreateCqResponse("ib_uverbs_create_cq_resp"): 8 {
        [0] cq_handle: u32,
        [4] cqe: u32,
    }

    struct ExCreateCq("ib_uverbs_ex_create_cq"): 32 {
        [0] user_handle: u64,
        [8] cqe: u32,
        [12] comp_vector: u32,
        [16] comp_channel: i32,
        [20] comp_mask: u32,
        [24] flags: u32,
        [28] reserved: u32,
    }

    struct ExCreateCqResponse("ib_uverbs_ex_create_cq_resp"): 16 {
        [0] base: CreateCqResponse,
        [8] comp_mask: u32,
        [12] response_length: u32,
    }

    struct ResizeCq("ib_uverbs_resize_cq"): 16 {
        [0] response: u64,
        [8] cq_handle: u32,
        [12] cqe: u32,
    }

    struct ResizeCqResponse("ib_uverbs_resize_cq_resp"): 8 {
        [0] cqe: u32,
        [4] reserved: u32,
    }

    struct ReqNotifyCq("ib_uverbs_req_notify_cq"): 8 {
        [0] cq_handle: u32,
        [4] solicited_only: u32,
    }

    struct DestroyCq("ib_uverbs_destroy_cq"): 16 {
        [0] response: u64,
        [8] cq_handle: u32,
        [12] reserved: u32,
    }

    struct DestroyCqResponse("ib_uverbs_destroy_cq_resp"): 8 {
        [0] comp_events_reported: u32,
        [4] async_events_reported: u32,
    }

    /// A completion: an element of a completion queue.
    struct WorkCompletion("ib_uverbs_wc"): 48 {
        [0] wr_id: u64,
        [8] status: u32,
        [12] opcode: u32,
        [16] vendor_err: u32,
        [20] byte_len: u32,
        [24] ex: u32,
        [28] qp_num: u32,
        [32] src_qp: u32,
        [36] wc_flags: u32,
        [40] pkey_index: u16,
        [42] slid: u16,
        [44] sl: u8,
        [45] dlid_path_bits: u8,
        [46] port_num: u8,
        [47] reserved: u8,
    }
}
