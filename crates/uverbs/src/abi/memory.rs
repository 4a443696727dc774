//! Protection domains, memory regions and memory windows.

uapi! {
    /// `ib_uverbs_alloc_pd`.
    struct AllocPd: 8 {
        response: u64,
    }

    /// `ib_uverbs_alloc_pd_resp`.
    struct AllocPdResponse: 4 {
        pd_handle: u32,
    }

    /// `ib_uverbs_dealloc_pd`.
    struct DeallocPd: 4 {
        pd_handle: u32,
    }

    /// `ib_uverbs_reg_mr`.
    struct RegMr: 40 {
        response: u64,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    /// `ib_uverbs_reg_mr_resp`.
    struct RegMrResponse: 12 {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// `ib_uverbs_rereg_mr`.
    struct ReregMr: 48 {
        response: u64,
        mr_handle: u32,
        flags: u32,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    /// `ib_uverbs_rereg_mr_resp`.
    struct ReregMrResponse: 8 {
        lkey: u32,
        rkey: u32,
    }

    /// `ib_uverbs_dereg_mr`.
    struct DeregMr: 4 {
        mr_handle: u32,
    }

    /// `ib_uverbs_alloc_mw`.
    struct AllocMw: 16 {
        response: u64,
        pd_handle: u32,
        mw_type: u8,
        reserved: [u8; 3],
    }

    /// `ib_uverbs_alloc_mw_resp`.
    struct AllocMwResponse: 8 {
        mw_handle: u32,
        rkey: u32,
    }

    /// `ib_uverbs_dealloc_mw`.
    struct DeallocMw: 4 {
        mw_handle: u32,
    }
}
