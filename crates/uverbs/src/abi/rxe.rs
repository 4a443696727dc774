//! rxe's structs (`rdma_user_rxe.h`): its driver data in commands and responses, and its queues.

uapi! {
    /// Where a queue's memory is to be mapped.
    struct MmapInfo("mminfo"): 16 {
        [0] offset: u64,
        [8] size: u32,
        [12] pad: u32,
    }

    /// `rxe_resize_cq_resp` is the same.
    struct RxeCreateCqResponse("rxe_create_cq_resp"): 16 {
        [0] mi: MmapInfo,
    }

    struct RxeCreateQpResponse("rxe_create_qp_resp"): 32 {
        [0] rq_mi: MmapInfo,
        [16] sq_mi: MmapInfo,
    }

    struct RxeCreateSrqResponse("rxe_create_srq_resp"): 24 {
        [0] mi: MmapInfo,
        [16] srq_num: u32,
        [20] reserved: u32,
    }

    /// The [`MmapInfo`] of a resized queue goes to an address of the program's.
    struct RxeModifySrq("rxe_modify_srq_cmd"): 8 {
        [0] mmap_info_addr: u64,
    }

    struct RxeCreateAhResponse("rxe_create_ah_resp"): 8 {
        [0] ah_num: u32,
        [4] reserved: u32,
    }

    /// The head of a queue's memory; the elements follow it. Both sides' indices lie in `0..=index_mask`.
    struct RxeQueueBuf("rxe_queue_buf"): 384 {
        [0] log2_elem_size: u32,
        [4] index_mask: u32,
        [8] pad_1: [u32; 30],
        [128] producer_index: u32,
        [132] pad_2: [u32; 31],
        [256] consumer_index: u32,
        [260] pad_3: [u32; 31],
    }

    /// A scatter/gather element.
    struct RxeSge("rxe_sge"): 16 {
        [0] addr: u64,
        [8] length: u32,
        [12] lkey: u32,
    }

    struct RxeDmaInfo("rxe_dma_info"): 24 {
        [0] length: u32,
        [4] resid: u32,
        [8] cur_sge: u32,
        [12] num_sge: u32,
        [16] sge_offset: u32,
        [20] reserved: u32,
    }

    /// An element of a receive queue; [`RxeSge`]s follow it.
    struct RxeRecvWqe("rxe_recv_wqe"): 40 {
        [0] wr_id: u64,
        [8] reserved(""): u32,
        [12] padding: u32,
        [16] dma: RxeDmaInfo,
    }

    /// The part that all operations have; the arguments of each follow it.
    struct RxeSendWr("rxe_send_wr"): 24 of 144 {
        [0] wr_id: u64,
        [8] reserved(""): u32,
        [12] opcode: u32,
        [16] send_flags: u32,
        [20] ex: u32,
    }

    /// [`RxeSendWqe::args`] of READs and WRITEs.
    struct RxeRdmaArgs("rxe_send_wr.wr.rdma"): 16 {
        [0] remote_addr: u64,
        [8] rkey: u32,
        [12] reserved: u32,
    }

    /// [`RxeSendWqe::args`] of FETCH_ADD and COMPARE_SWAP.
    struct RxeAtomicArgs("rxe_send_wr.wr.atomic"): 32 {
        [0] remote_addr: u64,
        [8] compare_add: u64,
        [16] swap: u64,
        [24] rkey: u32,
        [28] reserved: u32,
    }

    /// [`RxeSendWqe::args`] of datagrams. The provider adds an address vector, which its address handle makes unnecessary.
    struct RxeUdArgs("rxe_send_wr.wr.ud"): 16 of 120 {
        [0] remote_qpn: u32,
        [4] remote_qkey: u32,
        [8] pkey_index: u16,
        [10] reserved: u16,
        [12] ah_num: u32,
    }

    /// [`RxeSendWqe::args`] of BIND_MW.
    struct RxeMwArgs("rxe_send_wr.wr.mw"): 32 {
        [0] addr: u64,
        [8] length: u64,
        [16] mr_lkey: u32,
        [20] mw_rkey: u32,
        [24] rkey: u32,
        [28] access: u32,
    }

    /// [`RxeSendWqe::args`] of FLUSH. The provider puts the length into [`RxeDmaInfo::length`].
    struct RxeFlushArgs("rxe_send_wr.wr.flush"): 24 {
        [0] remote_addr: u64,
        [8] length: u32,
        [12] rkey: u32,
        [16] kind("type"): u8,
        [17] level: u8,
        [18] padding(""): [u8; 6],
    }

    /// An element of a send queue; [`RxeSge`]s follow it, or inline data.
    struct RxeSendWqe("rxe_send_wqe"): 208 {
        [0] wr(""): RxeSendWr,
        [24] args("wr.wr"): [u64; 15],
        [144] status: u32,
        [148] state: u32,
        [152] iova: u64,
        [160] mask: u32,
        [164] first_psn: u32,
        [168] last_psn: u32,
        [172] ack_length: u32,
        [176] ssn: u32,
        [180] has_rd_atomic: u32,
        [184] dma: RxeDmaInfo,
    }
}
