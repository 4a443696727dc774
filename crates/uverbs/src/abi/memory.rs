//! Protection domains, memory regions and memory windows.

uapi! {
    struct AllocPd("ib_uverbs_alloc_pd"): 8 {
        [0] response: u64,
    }

    struct AllocPdResponse("ib_uverbs_alloc_pd_resp"): 4 {
        [0] pd_handle: u32,
    }

    struct DeallocPd("ib_uverbs_dealloc_pd"): 4 {
        [0] pd_handle: u32,
    }

    struct RegMr("ib_uverbs_reg_mr"): 40 {
        [0] response: u64,
        [8] start: u64,
        [16] length: u64,
        [24] hca_va: u64,
        [32] pd_handle: u32,
        [36] access_flags: u32,
    }

    struct RegMrResponse("ib_uverbs_reg_mr_resp"): 12 {
        [0] mr_handle: u32,
        [4] lkey: u32,
        [8] rkey: u32,
    }

    struct ReregMr("ib_uverbs_rereg_mr"): 48 {
        [0] response: u64,
        [8] mr_handle: u32,
        [12] flags: u32,
        [16] start: u64,
        [24] length: u64,
        [32] hca_va: u64,
        [40] pd_handle: u32,
        [44] access_flags: u32,
    }

    struct ReregMrResponse("ib_uverbs_rereg_mr_resp"): 8 {
        [0] lkey: u32,
        [4] rkey: u32,
    }

    struct DeregMr("ib_uverbs_dereg_mr"): 4 {
        [0] mr_handle: u32,
    }

    struct AllocMw("ib_uverbs_alloc_mw"): 16 {
        [0] response: u64,
        [8] pd_handle: u32,
        [12] mw_type: u8,
        [13] reserved: [u8; 3],
    }

    struct AllocMwResponse("ib_uverbs_alloc_mw_resp"): 8 {
        [0] mw_handle: u32,
        [4] rkey: u32,
    }

    struct DeallocMw("ib_uverbs_dealloc_mw"): 4 {
        [0] mw_handle: u32,
    }
}
