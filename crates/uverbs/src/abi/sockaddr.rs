//! Socket addresses, as commands of rdma_cm and their responses have them, and path records as InfiniBand has them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

uapi! {
    /// Port and address are big-endian.
    struct SockaddrIn("sockaddr_in"): 16 {
        [0] family("sin_family"): u16,
        [2] port("sin_port"): [u8; 2],
        [4] addr("sin_addr"): [u8; 4],
        [8] zero(""): [u8; 8],
    }

    /// Port and flow label are big-endian.
    struct SockaddrIn6("sockaddr_in6"): 28 {
        [0] family("sin6_family"): u16,
        [2] port("sin6_port"): [u8; 2],
        [4] flowinfo("sin6_flowinfo"): [u8; 4],
        [8] addr("sin6_addr"): [u8; 16],
        [24] scope_id("sin6_scope_id"): u32,
    }
}

/// `sockaddr_ib`, which is in no header of the kernel's for programs. What has more than one byte is big-endian, but for the
/// family and the scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are those of the kernel's struct")]
pub struct SockaddrIb {
    pub family: u16,
    pub pkey: [u8; 2],
    pub flowinfo: [u8; 4],
    pub addr: [u8; 16],
    pub sid: [u8; 8],
    pub sid_mask: [u8; 8],
    pub scope_id: u64,
}

const _: () = assert!(size_of::<SockaddrIb>() == 48);

/// A path record as the subnet administrator writes it (IBA 15.2.5.16); big-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are those of IBA")]
pub struct SaPathRecord {
    pub service_id: [u8; 8],
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: [u8; 2],
    pub slid: [u8; 2],
    /// With the bit for raw traffic above it.
    pub flow_label: [u8; 3],
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// Whether the path may be used both ways, in the highest bit, above the number of paths.
    pub reversible: u8,
    pub pkey: [u8; 2],
    pub qos_class_and_sl: [u8; 2],
    /// The selector is in the two highest bits, here and in the next two.
    pub mtu: u8,
    pub rate: u8,
    pub packet_life_time: u8,
    pub preference: u8,
    pub reserved: [u8; 6],
}

const _: () = {
    assert!(size_of::<SaPathRecord>() == 64);
    assert!(core::mem::offset_of!(SaPathRecord, hop_limit) == 47);
    assert!(core::mem::offset_of!(SaPathRecord, pkey) == 50);
    assert!(core::mem::offset_of!(SaPathRecord, mtu) == 54);
};

/// Families of socket addresses: `AF_INET`, `AF_INET6`, and `AF_IB` of `linux/socket.h`.
#[allow(missing_docs, reason = "the names are those of the kernel's constants")]
pub mod address_family {
    pub const INET: u16 = 2;
    pub const INET6: u16 = 10;
    pub const IB: u16 = 27;
}
