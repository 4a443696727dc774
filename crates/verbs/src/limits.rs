//! Device limits, which `ibv_query_device` reports.

/// Sizes and counts of a device. `Default` has the limits without a smaller quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements in a shared receive queue.
    pub max_srq_sge: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Outstanding READs and atomics of a QP, each way.
    pub max_rd_atomic: u8,
    /// Bytes of the largest message (IBA 9.7.7: 2^31).
    pub max_msg_size: u32,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            max_qp: 16_384,
            max_qp_wr: 65_536,
            max_sge: crate::MAX_SGE as u32,
            max_inline: 512,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_mr: 1 << 19,
            max_mw: 1 << 19,
            max_pd: 65_536,
            max_srq: 16_384,
            max_srq_wr: 65_536,
            max_srq_sge: crate::MAX_SGE as u32,
            max_ah: 65_536,
            max_rd_atomic: 128,
            max_msg_size: 1 << 31,
        }
    }
}
