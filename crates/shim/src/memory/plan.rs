//! Conversion plan: for each page of a range to be registered, whether it is converted or stays private.

use super::arena::{self, Arena};
use super::maps::{KeptMaps, Vma};
use super::traits::Traits;
use super::{own, pinned};
use std::cell::OnceCell;
use std::sync::{Mutex, PoisonError};

static KEPT_MAPS: Mutex<Option<KeptMaps>> = Mutex::new(None);

/// Decision for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It already consists of arena pages, from this offset on.
    Arena(u64),
    /// It is to be converted.
    Convert(Convertible),
    /// It stays as it is; the router copies.
    Private,
}

/// A segment that may be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Convertible {
    /// No file is behind it: a page that was never touched is zero.
    pub(super) anonymous: bool,
    pub(super) executable: bool,
    /// Of the heap that `brk` makes: it stays where it is.
    pub(super) heap: bool,
    /// Left out of core dumps.
    pub(super) no_dump: bool,
}

/// Pages with one fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) fate: Fate,
}

/// Reason why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Part of the range is not mapped, or not with the rights that the registration needs.
    NotThere,
    /// The mappings cannot be read.
    Unknown,
}

/// Plans the pages of `start..end` (page boundaries), which the device will only read unless `write`.
pub(super) fn plan(start: u64, end: u64, write: bool, arena: &Arena) -> Result<Vec<Piece>, Refusal> {
    let mut kept = KEPT_MAPS.lock().unwrap_or_else(PoisonError::into_inner);
    let maps = KeptMaps::get(&mut kept).map_err(|_| Refusal::Unknown)?;
    // Computed only where pages are to be converted: pages that are in the arena already are registered without another look.
    let known = OnceCell::new();
    let (mut pieces, mut at, mut refused) = (Vec::new(), start, false);
    let visited = maps.visit(start, end, |vma| {
        refused |= vma.start > at || !vma.readable || (write && !vma.writable);
        let (from, to) = (vma.start.max(start), vma.end.min(end));
        at = to;
        match fate(&vma, from, arena) {
            Fate::Convert(what) => {
                let known = known.get_or_init(|| traits(start, end));
                let what =
                    Convertible { no_dump: known.no_dump.iter().any(|area| area.0 < to && from < area.1), ..what };
                let mut keep_out = known.private.clone();
                keep_out.extend(own::heap_heads(from, to));
                split(&mut pieces, from, to, Fate::Convert(what), &keep_out);
            }
            fate => pieces.push(Piece { start: from, end: to, fate }),
        }
    });
    visited.map_err(|_| Refusal::Unknown)?;
    if refused || at < end { Err(Refusal::NotThere) } else { Ok(pieces) }
}

/// The parts of a range that must not be converted, for any reason, and those excluded from core dumps.
fn traits(start: u64, end: u64) -> Traits {
    let mut traits = Traits::of(start, end);
    traits.private.extend(own::areas(start, end));
    traits.private.extend(pinned::areas(start, end));
    traits
}

fn fate(vma: &Vma, from: u64, arena: &Arena) -> Fate {
    if vma.shared && vma.file == arena.file() && arena.fd().is_some() {
        return Fate::Arena(vma.offset + (from - vma.start));
    }
    let of_lost_arena = arena::is_arena(vma);
    if !vma.writable || vma.huge || (vma.shared && !of_lost_arena) || own::keeps_main_stack(vma, from) {
        return Fate::Private;
    }
    let anonymous = vma.file.1 == 0;
    Fate::Convert(Convertible { anonymous, executable: vma.executable, heap: vma.heap, no_dump: false })
}

/// Adds `from..to` with `fate`, except for the parts that must not be converted.
fn split(pieces: &mut Vec<Piece>, from: u64, to: u64, fate: Fate, keep_out: &[(u64, u64)]) {
    let mut at = from;
    while at < to {
        let next = keep_out.iter().filter(|area| area.1 > at && area.0 < to).min_by_key(|area| area.0);
        let (end, fate) = match next {
            Some(area) if area.0 <= at => (area.1.min(to), Fate::Private),
            Some(area) => (area.0, fate),
            None => (to, fate),
        };
        pieces.push(Piece { start: at, end, fate });
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_in_use_are_cut_out() {
        let fate = Fate::Convert(Convertible { anonymous: true, executable: false, heap: false, no_dump: false });
        let cut = |areas: &[(u64, u64)]| {
            let mut pieces = Vec::new();
            split(&mut pieces, 10, 20, fate, areas);
            pieces.iter().map(|piece| (piece.start, piece.end, piece.fate == Fate::Private)).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[]), [(10, 20, false)]);
        assert_eq!(cut(&[(0, 10), (20, 30)]), [(10, 20, false)]);
        assert_eq!(cut(&[(5, 12), (15, 16)]), [(10, 12, true), (12, 15, false), (15, 16, true), (16, 20, false)]);
        assert_eq!(cut(&[(11, 30), (0, 40)]), [(10, 20, true)]);
    }
}
