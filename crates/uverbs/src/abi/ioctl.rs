//! `ioctl()` form of the ABI (`ib_user_ioctl_cmds.h`): its methods, and those of them that reach the router. The library turns
//! the others into the equivalent commands.

pub mod attr;
mod spec;

pub use spec::{AttrKind, AttrSpec, find_method};

use crate::session::{IoctlAttr, IoctlHeader};
use zerocopy::FromBytes;

numbers! {
    /// `UVERBS_OBJECT_*`.
    pub mod ioctl_object("UVERBS_OBJECT_"): u16 {
        DEVICE = 0,
        PD = 1,
        COMP_CHANNEL = 2,
        CQ = 3,
        QP = 4,
        SRQ = 5,
        AH = 6,
        MR = 7,
        MW = 8,
        ASYNC_EVENT = 16,
    }

    /// `UVERBS_METHOD_*`.
    pub mod ioctl_method("UVERBS_METHOD_"): u16 {
        INVOKE_WRITE = 0,
        QUERY_PORT = 2,
        GET_CONTEXT = 3,
        QUERY_CONTEXT = 4,
        QUERY_GID_TABLE = 5,
        QUERY_GID_ENTRY = 6,
        PD_DESTROY = 0,
        CQ_CREATE = 0,
        CQ_DESTROY = 1,
        QP_CREATE = 0,
        QP_DESTROY = 1,
        SRQ_CREATE = 0,
        SRQ_DESTROY = 1,
        AH_DESTROY = 0,
        DM_MR_REG = 0,
        MR_DESTROY = 1,
        ADVISE_MR = 2,
        QUERY_MR = 3,
        REG_DMABUF_MR = 4,
        REG_MR = 5,
        MW_DESTROY = 0,
        ASYNC_EVENT_ALLOC = 0,
        /// Not the kernel's, where closing the descriptor is enough: the program has closed completion channel
        /// [`super::CHANNEL_ATTR`].
        CLOSE_COMP_CHANNEL("") = 0x8000,
    }
}

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const VERBS_IOCTL: u32 = 3 << 30 | (size_of::<VerbsIoctl>() as u32) << 16 | 0x1b << 8 | 1;

/// `RDMA_DRIVER_RXE`: the driver whose methods a program calls.
pub const DRIVER_RXE: u32 = 14;

/// The attribute of [`ioctl_method::CLOSE_COMP_CHANNEL`]: the channel's number, as CREATE_COMP_CHANNEL gave it.
pub const CHANNEL_ATTR: u16 = 0;

/// `ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Advice {
    /// Bring the pages in, for reading.
    Prefetch = 0,
    /// Bring the pages in, for writing.
    PrefetchWrite = 1,
    /// Map the pages that are there.
    PrefetchNoFault = 2,
}

impl Advice {
    /// The advice with number `n`.
    pub fn from_number(n: u64) -> Option<Self> {
        [Self::Prefetch, Self::PrefetchWrite, Self::PrefetchNoFault].into_iter().find(|a| *a as u64 == n)
    }
}

uapi! {
    /// The argument of `ioctl(RDMA_VERBS_IOCTL)`; [`VerbsIoctlAttr`]s follow it.
    struct VerbsIoctl("ib_uverbs_ioctl_hdr"): 24 {
        [0] length: u16,
        [2] object_id: u16,
        [4] method_id: u16,
        [6] num_attrs: u16,
        [8] reserved1: u64,
        [16] driver_id: u32,
        [20] reserved2: u32,
    }

    /// An attribute of a [`VerbsIoctl`]: an address, or up to eight bytes themselves.
    struct VerbsIoctlAttr("ib_uverbs_attr"): 16 {
        [0] attr_id: u16,
        [2] len: u16,
        [4] flags: u16,
        [6] attr_data: u16,
        [8] data: u64,
    }

    /// As ADVISE_MR carries it.
    struct AdviseSge("ib_uverbs_sge"): 16 {
        [0] addr: u64,
        [8] length: u32,
        [12] lkey: u32,
    }

    struct GidEntry("ib_uverbs_gid_entry"): 32 {
        [0] gid: [u8; 16],
        [16] gid_index: u32,
        [20] port_num: u32,
        [24] gid_type: u32,
        [28] netdev_ifindex: u32,
    }

    struct ExQueryPortResponse("ib_uverbs_query_port_resp_ex"): 48 {
        [0] legacy("legacy_resp"): super::QueryPortResponse,
        [40] port_cap_flags2: u16,
        [42] reserved: [u8; 2],
        [44] active_speed_ex: u32,
    }

    struct QpCap("ib_uverbs_qp_cap"): 20 {
        [0] max_send_wr: u32,
        [4] max_recv_wr: u32,
        [8] max_send_sge: u32,
        [12] max_recv_sge: u32,
        [16] max_inline_data: u32,
    }
}

/// `IB_UVERBS_GID_TYPE_ROCE_V2`.
pub const GID_TYPE_ROCE_V2: u32 = 2;

/// The method and attributes of an `Ioctl` request.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// See [`ioctl_object`].
    pub object: u16,
    /// See [`ioctl_method`].
    pub method: u16,
    attributes: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Frames the body of an `Ioctl` request; none where its lengths contradict each other.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, attributes) = IoctlHeader::read_from_prefix(bytes).ok()?;
        let mut rest = attributes;
        for _ in 0..header.num_attrs {
            (_, _, rest) = next(rest)?;
        }
        rest.is_empty().then_some(Self { object: header.object_id, method: header.method_id, attributes })
    }

    /// The bytes of attribute `id`.
    pub fn bytes(&self, id: u16) -> Option<&'a [u8]> {
        let mut rest = self.attributes;
        while let Some((found, value, tail)) = next(rest) {
            if found == id {
                return Some(value);
            }
            rest = tail;
        }
        None
    }

    /// Attribute `id` as a number of up to eight bytes.
    pub fn number(&self, id: u16) -> Option<u64> {
        let value = self.bytes(id).filter(|v| v.len() <= 8)?;
        let mut bytes = [0; 8];
        bytes[..value.len()].copy_from_slice(value);
        Some(u64::from_le_bytes(bytes))
    }
}

/// The first attribute of `bytes`: its id, its value, and what follows its padding.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (attr, rest) = IoctlAttr::read_from_prefix(bytes).ok()?;
    let len = usize::from(attr.len);
    let (value, rest) = rest.split_at_checked(len.next_multiple_of(8))?;
    Some((attr.attr_id, &value[..len], rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn message(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let header = IoctlHeader { object_id: 7, method_id: 2, num_attrs: attributes.len() as u32 };
        let mut bytes = header.as_bytes().to_vec();
        for (attr_id, value) in attributes {
            let attr = IoctlAttr { attr_id: *attr_id, len: value.len() as u16, reserved: 0 };
            bytes.extend_from_slice(attr.as_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }

    #[test]
    fn attributes_are_found_by_id() {
        let bytes = message(&[(0, &[5, 0, 0, 0]), (3, &[7; 24])]);
        let parsed = Attributes::parse(&bytes).unwrap();
        assert_eq!((parsed.object, parsed.method), (7, 2));
        assert_eq!(parsed.number(0), Some(5));
        assert_eq!(parsed.bytes(3), Some(&[7; 24][..]));
        assert_eq!(parsed.number(3), None);
        assert_eq!(parsed.bytes(1), None);
    }

    #[test]
    fn lengths_must_agree() {
        let bytes = message(&[(0, &[5, 0, 0, 0])]);
        assert!(Attributes::parse(&bytes[..bytes.len() - 1]).is_none());
        assert!(Attributes::parse(&[&bytes[..], &[0]].concat()).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(parsed) = Attributes::parse(&bytes) {
                let _ = parsed.number(0);
            }
        }
    }
}
