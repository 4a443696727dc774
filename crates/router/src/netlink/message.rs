//! Netlink message builder.

use rdmesh_uverbs::abi::netlink::NetlinkHeader;
use zerocopy::IntoBytes;

/// One message. It never grows beyond what the kernel puts into one, which is what programs have room for.
pub(crate) struct Message {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Message {
    /// An empty message with this header, whose length is set at the end.
    pub(crate) fn new(header: NetlinkHeader) -> Self {
        let mut bytes = Vec::with_capacity(ROOM);
        bytes.extend_from_slice(header.as_bytes());
        Self { bytes, is_full: false }
    }

    pub(super) fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub(super) fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A string, with the NUL that ends it.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.nest(kind, |message| {
            message.push(value.as_bytes());
            message.push(&[0]);
        });
    }

    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.push(value));
    }

    /// An attribute that holds what `fill` writes. Without the mark for nested ones, which only newer kernels set.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.push(&[0; ATTRIBUTE]);
        fill(self);
        let len = self.bytes.len() - start;
        if let Some(header) = self.bytes.get_mut(start..start + ATTRIBUTE)
            && let Ok(len) = u16::try_from(len)
        {
            header[..2].copy_from_slice(&len.to_ne_bytes());
            header[2..].copy_from_slice(&kind.to_ne_bytes());
        }
        let padding = self.bytes.len().next_multiple_of(4) - self.bytes.len();
        self.push(&[0; 3][..padding]);
    }

    /// Writes an attribute that may not fit: then nothing of it is written, and the answer is false.
    pub(crate) fn try_nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> bool {
        let start = self.bytes.len();
        self.nest(kind, fill);
        if self.is_full {
            self.bytes.truncate(start);
            self.is_full = false;
            return false;
        }
        true
    }

    /// Its bytes; none where not everything fitted.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        let len = u32::try_from(self.bytes.len()).ok().filter(|_| !self.is_full)?;
        self.bytes.get_mut(..4)?.copy_from_slice(&len.to_ne_bytes());
        Some(self.bytes)
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.is_full || self.bytes.len() + bytes.len() > ROOM {
            self.is_full = true;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

/// Bytes of an attribute's header, `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// Bytes of the largest message: what the kernel has room for in one page (`NLMSG_GOODSIZE`). Programs receive into
/// buffers of a page.
const ROOM: usize = 3776;
