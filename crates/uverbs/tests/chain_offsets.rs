//! The offsets of chains are those of the kernel's structs.

use rdmesh_uverbs::abi::{
    RxeAtomicArgs, RxeDmaInfo, RxeQueueBuf, RxeRdmaArgs, RxeRecvWqe, RxeSendWqe, RxeSendWr, RxeSge,
};
use rdmesh_verbs::chain::offset;
use std::mem::{offset_of, size_of};

#[test]
fn fields_lie_where_the_kernel_has_them() {
    let args = offset_of!(RxeSendWqe, args);
    for (ours, kernel) in [
        (offset::WR_ID, offset_of!(RxeSendWr, wr_id)),
        (offset::CONTROL, offset_of!(RxeSendWr, reserved)),
        (offset::CONTROL + 4, offset_of!(RxeSendWr, opcode)),
        (offset::FLAGS, offset_of!(RxeSendWr, send_flags)),
        (offset::IMM, offset_of!(RxeSendWr, ex)),
        (offset::REMOTE_ADDR, args + offset_of!(RxeRdmaArgs, remote_addr)),
        (offset::RKEY, args + offset_of!(RxeRdmaArgs, rkey)),
        (offset::REMOTE_ADDR, args + offset_of!(RxeAtomicArgs, remote_addr)),
        (offset::COMPARE, args + offset_of!(RxeAtomicArgs, compare_add)),
        (offset::SWAP, args + offset_of!(RxeAtomicArgs, swap)),
        (offset::ATOMIC_RKEY, args + offset_of!(RxeAtomicArgs, rkey)),
        (offset::LENGTH, offset_of!(RxeSendWqe, dma) + offset_of!(RxeDmaInfo, length)),
        (offset::NUM_SGE, offset_of!(RxeSendWqe, dma) + offset_of!(RxeDmaInfo, num_sge)),
        (offset::SGES, size_of::<RxeSendWqe>()),
        (offset::SGE_LEN, size_of::<RxeSge>()),
        (offset::SGE_LENGTH, offset_of!(RxeSge, length)),
        (offset::SGE_KEY, offset_of!(RxeSge, lkey)),
        (offset::RECV_NUM_SGE, offset_of!(RxeRecvWqe, dma) + offset_of!(RxeDmaInfo, num_sge)),
        (offset::RECV_SGES, size_of::<RxeRecvWqe>()),
        (offset::QUEUE_DATA, size_of::<RxeQueueBuf>()),
    ] {
        assert_eq!(ours, kernel);
    }
    // The masks lie behind the atomic's operands, within the arguments.
    assert!(offset::COMPARE_MASK >= args + size_of::<RxeAtomicArgs>());
    assert!(offset::SWAP_MASK + 8 <= offset_of!(RxeSendWqe, status));
}
