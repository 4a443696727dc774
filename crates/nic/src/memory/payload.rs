//! Payload of packets: references to registered memory, gather and scatter.

use super::{AccessDenied, KeyTable};
use crate::platform::{Fault, Memory};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use rdmesh_verbs::chain::{Args, ChainOp, Wide};
use rdmesh_verbs::{Access, Sge};

/// The data of a packet that came: references on one host, bytes from the network.
pub(crate) trait Source<M> {
    /// Bytes.
    fn len(&self) -> u32;
    /// Copies everything to one place.
    fn copy_to(&self, to: &M, offset: u64) -> Result<(), Fault>;
    /// Copies everything to a scatter list, from byte `skip` of the list on.
    fn scatter(&self, keys: &KeyTable<M>, pd: u32, sges: &[Sge], skip: u64) -> Result<(), CopyError>;
}

impl<M: Memory> Source<M> for [u8] {
    fn len(&self) -> u32 {
        <[u8]>::len(self) as u32
    }

    fn copy_to(&self, to: &M, offset: u64) -> Result<(), Fault> {
        to.write(offset, self)
    }

    fn scatter(&self, keys: &KeyTable<M>, pd: u32, sges: &[Sge], skip: u64) -> Result<(), CopyError> {
        scatter_bytes(keys, pd, sges, skip, self)
    }
}

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

/// Error of a copy between registered ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// A key does not allow it, or the memory is gone.
    Protection,
    /// The scatter list is too short.
    Length,
    /// The source is gone: not the fault of the side that copies.
    Source,
    /// The memory of the side that copies cannot be reached at present.
    Slow,
    /// The source cannot be reached at present.
    SourceSlow,
}

impl CopyError {
    /// The error where the memory stays slow.
    pub(crate) fn lasting(self) -> Self {
        match self {
            Self::Slow => Self::Protection,
            Self::SourceSlow => Self::Source,
            other => other,
        }
    }

    /// Whether it may be tried again.
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Self::Slow | Self::SourceSlow)
    }
}

impl From<Fault> for CopyError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Gone => Self::Protection,
            Fault::Slow => Self::Slow,
        }
    }
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

    fn push(&mut self, memory: M, offset: u64, len: u32) {
        let span = Span { memory, offset, len };
        if let Err(full) = self.spans.try_push(span) {
            self.more.push(full.element());
        }
        self.len += len;
    }

    /// Copies the beginning to plain bytes, as far as there is room.
    pub(crate) fn read(&self, mut to: &mut [u8]) -> Result<(), Fault> {
        for span in self.spans() {
            let (now, later) = to.split_at_mut(to.len().min(span.len as usize));
            span.memory.read(span.offset, now)?;
            to = later;
        }
        Ok(())
    }

    fn spans(&self) -> impl Iterator<Item = &Span<M>> {
        self.spans.iter().chain(&self.more)
    }
}

impl<M: Memory> Source<M> for Payload<M> {
    fn len(&self) -> u32 {
        self.len
    }

    fn copy_to(&self, to: &M, mut to_offset: u64) -> Result<(), Fault> {
        for span in self.spans() {
            span.memory.copy(span.offset, to, to_offset, span.len as usize)?;
            to_offset += u64::from(span.len);
        }
        Ok(())
    }

    fn scatter(&self, keys: &KeyTable<M>, pd: u32, sges: &[Sge], skip: u64) -> Result<(), CopyError> {
        let mut list = Cursor { sges, skip };
        for span in self.spans() {
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
}

/// Copies bytes of a gather list, from byte `skip` of the list on, until `to` is full.
pub(crate) fn gather_bytes<M: Memory>(
    keys: &KeyTable<M>,
    pd: u32,
    sges: &[Sge],
    skip: u64,
    mut to: &mut [u8],
) -> Result<(), CopyError> {
    let mut list = Cursor { sges, skip };
    while !to.is_empty() {
        let (sge, within, room) = list.next().ok_or(CopyError::Length)?;
        let (from, offset) = keys.local(pd, sge, Access::empty())?;
        let (now, later) = to.split_at_mut(to.len().min(room as usize));
        from.read(offset + within, now)?;
        list.skip += now.len() as u64;
        to = later;
    }
    Ok(())
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
        to.write(offset + within, &bytes[..take])?;
        bytes = &bytes[take..];
        list.skip += take as u64;
    }
    Ok(())
}

/// Writes zeros to a scatter list.
pub(crate) fn scatter_zeros<M: Memory>(
    keys: &KeyTable<M>,
    pd: u32,
    sges: &[Sge],
    mut skip: u64,
    mut len: u64,
) -> Result<(), CopyError> {
    const ZEROS: [u8; 512] = [0; 512];
    while len != 0 {
        let now = len.min(ZEROS.len() as u64);
        scatter_bytes(keys, pd, sges, skip, &ZEROS[..now as usize])?;
        skip += now;
        len -= now;
    }
    Ok(())
}

/// An atomic on eight aligned bytes; returns the old value. Where another side changes them all the time, the memory counts
/// as slow.
pub(crate) fn calculate<M: Memory>(memory: &M, offset: u64, op: ChainOp, args: &Args) -> Result<u64, Fault> {
    match op {
        ChainOp::CompareSwap => return memory.compare_swap(offset, args.compare_add, args.swap),
        ChainOp::FetchAdd => return memory.fetch_add(offset, args.compare_add),
        _ => {}
    }
    let mut old = memory.compare_swap(offset, 0, 0)?;
    for _ in 0..MOST_TRIES {
        let found = memory.compare_swap(offset, old, op.apply(old, args))?;
        if found == old {
            return Ok(old);
        }
        old = found;
    }
    Err(Fault::Slow)
}

/// A COMPARE_SWAP of sixteen bytes in two words; returns the old ones. One step for all other requests of the engine, since it
/// executes one at a time, and two for processors.
pub(crate) fn compare_swap_wide<M: Memory>(memory: &M, offset: u64, wide: &Wide) -> Result<u128, Fault> {
    let words = [offset, offset + 8];
    let mut old = 0;
    for (at, shift) in words.into_iter().zip([0, 64]) {
        old |= u128::from(memory.compare_swap(at, 0, 0)?) << shift;
    }
    let new = wide.apply(old);
    if new != old {
        for (at, shift) in words.into_iter().zip([0, 64]) {
            memory.write_atomic(at, ((new >> shift) as u64).to_ne_bytes())?;
        }
    }
    Ok(old)
}

/// Tries of an atomic while another side changes the same word.
const MOST_TRIES: usize = 1000;

/// Blames a failed copy on the side whose memory is gone, or slow.
fn copy_span<M: Memory>(span: &Span<M>, done: u32, to: &M, to_offset: u64, len: u32) -> Result<(), CopyError> {
    let from = span.offset + u64::from(done);
    span.memory.copy(from, to, to_offset, len as usize).map_err(|fault| {
        let mut probe = [0];
        match (span.memory.read(from, &mut probe), fault) {
            (Ok(()), fault) => fault.into(),
            (Err(_), Fault::Slow) => CopyError::SourceSlow,
            (Err(_), Fault::Gone) => CopyError::Source,
        }
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
