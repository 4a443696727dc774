//! The attributes of an `ioctl()`, checked as the kernel's framework does (`uverbs_ioctl.c`).
#![allow(unsafe_code)]

use arrayvec::ArrayVec;
use rdmesh_uverbs::abi::{AttrKind, AttrSpec, VerbsIoctlAttr, ioctl_attr};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// More than any method has.
const MAX_ATTRS: usize = 20;
/// Bytes that lie in the attribute itself.
const INLINE: u16 = size_of::<u64>() as u16;

/// The attributes of a method that the program gave and that the device knows.
pub(super) struct Bundle {
    known: ArrayVec<Known, MAX_ATTRS>,
}

struct Known {
    /// As the program had it.
    attr: VerbsIoctlAttr,
    /// Where the program has it.
    place: *mut VerbsIoctlAttr,
    kind: AttrKind,
}

impl Bundle {
    pub(super) fn new() -> Self {
        Self { known: ArrayVec::new() }
    }

    /// Takes up the `count` attributes at `first`.
    ///
    /// # Safety
    /// So many attributes must lie there, and stay there for as long as the bundle; what they point to too.
    pub(super) unsafe fn parse(
        &mut self,
        specs: &[AttrSpec],
        first: *mut VerbsIoctlAttr,
        count: usize,
    ) -> Result<(), Errno> {
        for i in 0..count {
            // SAFETY: the caller's promise.
            let (place, attr) = unsafe { (first.add(i), first.add(i).read_unaligned()) };
            match specs.iter().find(|spec| spec.id == attr.attr_id) {
                Some(spec) => self.add(Known { attr, place, kind: spec.kind })?,
                None if attr.flags & ioctl_attr::F_MANDATORY != 0 => return Err(Errno::PROTONOSUPPORT),
                None => {}
            }
        }
        let is_complete = specs.iter().all(|spec| !spec.is_mandatory || self.has(spec.id));
        if is_complete { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn add(&mut self, known: Known) -> Result<(), Errno> {
        if self.has(known.attr.attr_id) {
            return Err(Errno::INVAL);
        }
        known.check()?;
        self.known.try_push(known).map_err(|_| Errno::INVAL)
    }

    fn find(&self, id: u16) -> Option<&Known> {
        self.known.iter().find(|known| known.attr.attr_id == id)
    }

    /// Whether the program gave attribute `id`.
    pub(super) fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Bytes of attribute `id`, there or room for them; 0 without it.
    pub(super) fn len(&self, id: u16) -> usize {
        self.find(id).map_or(0, |known| usize::from(known.attr.len))
    }

    /// The bytes of attribute `id`; none without it.
    pub(super) fn bytes(&self, id: u16) -> &[u8] {
        self.find(id).map_or(&[], Known::bytes)
    }

    /// Attribute `id` as a struct, filled up with zeros.
    pub(super) fn read<T: FromBytes + IntoBytes>(&self, id: u16) -> T {
        let (mut value, bytes) = (T::new_zeroed(), self.bytes(id));
        let len = bytes.len().min(size_of::<T>());
        value.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        value
    }

    /// A set of flags, of which only `allowed` may be set.
    pub(super) fn flags(&self, id: u16, allowed: u32) -> Result<u32, Errno> {
        let flags: u64 = self.read(id);
        if !matches!(self.len(id), 0 | 4 | 8) || flags & !u64::from(allowed) != 0 {
            return Err(Errno::INVAL);
        }
        u32::try_from(flags).map_err(|_| Errno::INVAL)
    }

    /// The handle of an object. Without the attribute, and for a number that no object has, ENOENT.
    pub(super) fn handle(&self, id: u16) -> Result<u32, Errno> {
        let known = self.find(id).ok_or(Errno::NOENT)?;
        u32::try_from(known.attr.data).map_err(|_| Errno::NOENT)
    }

    /// A descriptor of the program's; none without the attribute.
    pub(super) fn descriptor(&self, id: u16) -> Result<Option<RawFd>, Errno> {
        let number = |known: &Known| RawFd::try_from(known.attr.data.cast_signed()).ok().filter(|fd| *fd >= 0);
        self.find(id).map(|known| number(known).ok_or(Errno::BADF)).transpose()
    }

    /// Writes the handle, or the descriptor, of the new object to the program.
    pub(super) fn set_new(&self, id: u16, number: u32) {
        if let Some(known) = self.find(id) {
            // SAFETY: the attribute is there, says the caller of `parse`.
            unsafe { (&raw mut (*known.place).data).write_unaligned(number.into()) };
        }
    }

    /// Writes `bytes` to attribute `id`, as many as its buffer holds. The rest of the buffer is zeroed where the attribute may
    /// grow.
    pub(super) fn give(&self, id: u16, bytes: &[u8]) {
        let Some(known) = self.find(id) else { return };
        let may_grow = matches!(known.kind, AttrKind::Out(size) if size.may_grow);
        known.give(bytes, may_grow);
    }

    /// The same for a value.
    pub(super) fn give_value(&self, id: u16, value: &(impl IntoBytes + Immutable)) {
        self.give(id, value.as_bytes());
    }

    /// The same, and all room beyond is zeroed.
    pub(super) fn give_all(&self, id: u16, bytes: &[u8]) {
        if let Some(known) = self.find(id) {
            known.give(bytes, true);
        }
    }
}

impl Known {
    /// Checks the attribute by itself (`uverbs_process_attr`).
    fn check(&self) -> Result<(), Errno> {
        let VerbsIoctlAttr { len, attr_data, data, .. } = self.attr;
        let size = match self.kind {
            AttrKind::In(size) | AttrKind::Out(size) => size,
            _ => return if len == 0 && attr_data == 0 { Ok(()) } else { Err(Errno::INVAL) },
        };
        let is_inline = matches!(self.kind, AttrKind::In(_)) && len <= INLINE;
        if data == 0 && len != 0 && !is_inline {
            return Err(Errno::FAULT);
        }
        if matches!(self.kind, AttrKind::In(_)) && size.may_grow && len > size.max {
            let unknown = &self.bytes()[usize::from(size.max)..];
            if unknown.iter().any(|byte| *byte != 0) {
                return Err(Errno::OPNOTSUPP);
            }
        }
        let is_good = len >= size.min && (len <= size.max || size.may_grow) && attr_data == 0;
        if is_good { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn bytes(&self) -> &[u8] {
        let len = usize::from(self.attr.len);
        if self.attr.len <= INLINE {
            return &self.attr.data.as_bytes()[..len];
        }
        // SAFETY: a longer attribute for the device points to `len` bytes, says the ABI; null was refused.
        unsafe { std::slice::from_raw_parts(with_exposed_provenance(self.attr.data as usize), len) }
    }

    fn give(&self, bytes: &[u8], zero_rest: bool) {
        let room = usize::from(self.attr.len);
        let (len, target) = (bytes.len().min(room), with_exposed_provenance_mut::<u8>(self.attr.data as usize));
        if room != 0 {
            // SAFETY: the attribute points to room for so many bytes, says the ABI; null was refused.
            unsafe {
                target.copy_from_nonoverlapping(bytes.as_ptr(), len);
                if zero_rest {
                    target.add(len).write_bytes(0, room - len);
                }
            }
        }
        let flags = self.attr.flags | ioctl_attr::F_VALID_OUTPUT;
        // SAFETY: the attribute is there, says the caller of `parse`.
        unsafe { (&raw mut (*self.place).flags).write_unaligned(flags) };
    }
}
