//! Access rights of memory regions, memory windows and queue pairs.

bitflags::bitflags! {
    /// `ib_uverbs_access_flags` (`ib_user_ioctl_verbs.h`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// The device may write for a local work request.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the start.
        const ZERO_BASED = 1 << 5;
        /// Pages may come and go: nothing is pinned.
        const ON_DEMAND = 1 << 6;
        /// A hint.
        const HUGETLB = 1 << 7;
        /// Peers may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// The optional range (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`), such as relaxed ordering; may be ignored.
        const OPTIONAL = 0x3ff0_0000;
    }
}

impl Access {
    /// Whether the combination may be given to a region: remote writing needs local writing (IBA 10.6.3.1, as
    /// Linux's `ib_check_mr_access` has it).
    pub fn is_valid_for_mr(self) -> bool {
        let remote_change = Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        !self.intersects(remote_change) || self.contains(Self::LOCAL_WRITE)
    }
}
