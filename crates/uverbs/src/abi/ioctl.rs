//! The `ioctl()` methods that reach the router (`ib_user_ioctl_cmds.h`).

use crate::session::{IoctlAttr, IoctlHeader};
use zerocopy::FromBytes;

/// `UVERBS_OBJECT_*`.
#[allow(missing_docs, reason = "the names are those of the kernel's enum")]
pub mod ioctl_object {
    pub const COMP_CHANNEL: u16 = 2;
    pub const MR: u16 = 7;
}

/// `UVERBS_METHOD_*`.
pub mod ioctl_method {
    /// `UVERBS_METHOD_ADVISE_MR`.
    pub const ADVISE_MR: u16 = 2;
    /// Not the kernel's, where closing the descriptor is enough: the program has closed completion channel
    /// [`super::CHANNEL_ATTR`].
    pub const CLOSE_COMP_CHANNEL: u16 = 0x8000;
}

/// The attribute of [`ioctl_method::CLOSE_COMP_CHANNEL`]: the channel's number, as CREATE_COMP_CHANNEL gave it.
pub const CHANNEL_ATTR: u16 = 0;

/// `UVERBS_ATTR_ADVISE_MR_*`.
#[allow(missing_docs, reason = "the names are those of the kernel's enum")]
pub mod advise_attr {
    pub const PD_HANDLE: u16 = 0;
    pub const ADVICE: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const SGE_LIST: u16 = 3;
}

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
    /// `ib_uverbs_sge`, as ADVISE_MR carries it.
    struct AdviseSge: 16 {
        addr: u64,
        length: u32,
        lkey: u32,
    }
}

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
