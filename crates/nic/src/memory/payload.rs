use super::{AccessDenied, KeyTable};
use crate::platform::{Fault, Memory};
use arrayvec::ArrayVec;
use rdmesh_verbs::{Access, Sge};

/// Runs of memory in one packet.
pub(crate) const MAX_SPANS: usize = 4;

/// The data of a packet on the local path: not bytes, but where they are. Holding it keeps the memory reachable.
#[derive(Clone)]
pub(crate) struct Payload<M> {
    spans: ArrayVec<Span<M>, MAX_SPANS>,
    /// Only for datagrams of more pieces: they cannot be split, so the rare long list is allocated.
    more: Vec<Span<M>>,
    len: u32,
}

#[derive(Clone)]
struct Span<M> {
    memory: M,
    offset: u64,
    len: u32,
}

/// Why data could not be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// A key does not allow it, or the memory is gone.
    Protection,
    /// The scatter list is too short.
    Length,
    /// The source is gone: not the fault of the side that copies.
    Source,
}

impl From<AccessDenied> for CopyError {
    fn from(_: AccessDenied) -> Self {
        Self::Protection
    }
}

impl<M: Memory> Payload<M> {
    pub(crate) fn empty() -> Self {
        Self { spans: ArrayVec::new(), more: Vec::new(), len: 0 }
    }

    /// One run of memory.
    pub(crate) fn single(memory: M, offset: u64, len: u32) -> Self {
        let mut payload = Self::empty();
        if len != 0 {
            payload.push(memory, offset, len);
        }
        payload
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn push(&mut self, memory: M, offset: u64, len: u32) {
        let span = Span { memory, offset, len };
        if let Err(full) = self.spans.try_push(span) {
            self.more.push(full.element());
        }
        self.len += len;
    }

    fn spans(&self) -> impl Iterator<Item = &Span<M>> {
        self.spans.iter().chain(&self.more)
    }

    /// Copies everything to one place.
    pub(crate) fn copy_to(&self, to: &M, mut to_offset: u64) -> Result<(), Fault> {
        for span in self.spans() {
            span.memory.copy(span.offset, to, to_offset, span.len as usize)?;
            to_offset += u64::from(span.len);
        }
        Ok(())
    }
}

/// Collects up to `max` bytes of a gather list from `skip` on; fewer where they lie in too many pieces, unless
/// `whole` says that they must not be split.
pub(crate) fn gather<M: Memory>(
    keys: &KeyTable<M>,
    pd: u32,
    sges: &[Sge],
    mut skip: u64,
    max: u32,
    whole: bool,
) -> Result<Payload<M>, AccessDenied> {
    let mut payload = Payload::empty();
    for sge in sges {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        if payload.len == max || (payload.spans.is_full() && !whole) {
            break;
        }
        let (memory, offset) = keys.local(pd, sge, Access::empty())?;
        let take = (sge.length - skip as u32).min(max - payload.len);
        payload.push(memory.clone(), offset + skip, take);
        skip = 0;
    }
    Ok(payload)
}

/// Copies a payload to a scatter list, from byte `skip` of the list on.
pub(crate) fn scatter<M: Memory>(
    keys: &KeyTable<M>,
    pd: u32,
    sges: &[Sge],
    skip: u64,
    payload: &Payload<M>,
) -> Result<(), CopyError> {
    let mut list = Cursor { sges, skip };
    for span in payload.spans() {
        let mut done = 0;
        while done < span.len {
            let (sge, within, room) = list.next().ok_or(CopyError::Length)?;
            let (to, offset) = keys.local(pd, sge, Access::LOCAL_WRITE)?;
            let take = room.min(span.len - done);
            copy_span(span, done, to, offset + within, take)?;
            done += take;
            list.skip += u64::from(take);
        }
    }
    Ok(())
}

/// Copies bytes, such as a GRH, to a scatter list.
pub(crate) fn scatter_bytes<M: Memory>(
    keys: &KeyTable<M>,
    pd: u32,
    sges: &[Sge],
    skip: u64,
    mut bytes: &[u8],
) -> Result<(), CopyError> {
    let mut list = Cursor { sges, skip };
    while !bytes.is_empty() {
        let (sge, within, room) = list.next().ok_or(CopyError::Length)?;
        let (to, offset) = keys.local(pd, sge, Access::LOCAL_WRITE)?;
        let take = (room as usize).min(bytes.len());
        to.write(offset + within, &bytes[..take]).map_err(|Fault| CopyError::Protection)?;
        bytes = &bytes[take..];
        list.skip += take as u64;
    }
    Ok(())
}

/// Blames a failed copy on the side whose memory is gone.
fn copy_span<M: Memory>(span: &Span<M>, done: u32, to: &M, to_offset: u64, len: u32) -> Result<(), CopyError> {
    let from = span.offset + u64::from(done);
    span.memory.copy(from, to, to_offset, len as usize).map_err(|Fault| {
        let mut probe = [0];
        if span.memory.read(from, &mut probe).is_err() { CopyError::Source } else { CopyError::Protection }
    })
}

struct Cursor<'a> {
    sges: &'a [Sge],
    skip: u64,
}

impl<'a> Cursor<'a> {
    /// The element at the cursor, the offset in it, and how much of it is left.
    fn next(&mut self) -> Option<(&'a Sge, u64, u32)> {
        while let Some((sge, rest)) = self.sges.split_first() {
            let length = u64::from(sge.length);
            if self.skip < length {
                return Some((sge, self.skip, (length - self.skip) as u32));
            }
            self.skip -= length;
            self.sges = rest;
        }
        None
    }
}
