//! rxe's driver data in commands and responses (`rdma_user_rxe.h`).

uapi! {
    /// `mminfo`: where a queue's memory is to be mapped.
    struct MmapInfo: 16 {
        offset: u64,
        size: u32,
        pad: u32,
    }

    /// `rxe_create_cq_resp`, and `rxe_resize_cq_resp`.
    struct RxeCreateCqResponse: 16 {
        mi: MmapInfo,
    }

    /// `rxe_create_qp_resp`.
    struct RxeCreateQpResponse: 32 {
        rq_mi: MmapInfo,
        sq_mi: MmapInfo,
    }

    /// `rxe_create_srq_resp`.
    struct RxeCreateSrqResponse: 24 {
        mi: MmapInfo,
        srq_num: u32,
        reserved: u32,
    }

    /// `rxe_modify_srq_cmd`: the [`MmapInfo`] of a resized queue goes to an address of the program's.
    struct RxeModifySrq: 8 {
        mmap_info_addr: u64,
    }

    /// `rxe_create_ah_resp`.
    struct RxeCreateAhResponse: 8 {
        ah_num: u32,
        reserved: u32,
    }
}
