//! Address handles and multicast groups.

uapi! {
    /// `ib_uverbs_global_route`.
    struct GlobalRoute: 24 {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }

    /// `ib_uverbs_ah_attr`.
    struct AhAttr: 32 {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }

    /// `ib_uverbs_create_ah`.
    struct CreateAh: 56 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        reserved: u32,
        attr: AhAttr,
    }

    /// `ib_uverbs_create_ah_resp`.
    struct CreateAhResponse: 4 {
        ah_handle: u32,
    }

    /// `ib_uverbs_destroy_ah`.
    struct DestroyAh: 4 {
        ah_handle: u32,
    }

    /// `ib_uverbs_attach_mcast`, and `ib_uverbs_detach_mcast`.
    struct AttachMcast: 24 {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        reserved: u16,
    }
}
