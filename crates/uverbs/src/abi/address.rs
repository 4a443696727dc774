//! Address handles and multicast groups.

uapi! {
    struct GlobalRoute("ib_uverbs_global_route"): 24 {
        [0] dgid: [u8; 16],
        [16] flow_label: u32,
        [20] sgid_index: u8,
        [21] hop_limit: u8,
        [22] traffic_class: u8,
        [23] reserved: u8,
    }

    struct AhAttr("ib_uverbs_ah_attr"): 32 {
        [0] grh: GlobalRoute,
        [24] dlid: u16,
        [26] sl: u8,
        [27] src_path_bits: u8,
        [28] static_rate: u8,
        [29] is_global: u8,
        [30] port_num: u8,
        [31] reserved: u8,
    }

    struct CreateAh("ib_uverbs_create_ah"): 56 {
        [0] response: u64,
        [8] user_handle: u64,
        [16] pd_handle: u32,
        [20] reserved: u32,
        [24] attr: AhAttr,
    }

    struct CreateAhResponse("ib_uverbs_create_ah_resp"): 4 {
        [0] ah_handle: u32,
    }

    struct DestroyAh("ib_uverbs_destroy_ah"): 4 {
        [0] ah_handle: u32,
    }

    /// `ib_uverbs_detach_mcast` is the same.
    struct AttachMcast("ib_uverbs_attach_mcast"): 24 {
        [0] gid: [u8; 16],
        [16] qp_handle: u32,
        [20] mlid: u16,
        [22] reserved: u16,
    }
}
