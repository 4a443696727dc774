//! The memory that a work request touches, and the order in which it does.

use crate::program::{Chain, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, offset};

/// The moment of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// The slot is copied.
    Fetch,
    /// Between start and end: data is gathered.
    Gather,
    /// The responder executes.
    Respond,
    /// The result arrives.
    Scatter,
}

/// Memory of one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Object {
    Region(usize),
    Slot(usize),
}

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touch {
    pub(crate) moment: Moment,
    pub(crate) is_write: bool,
    pub(crate) object: Object,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Touch {
    pub(crate) fn new(moment: Moment, is_write: bool, span: Span) -> Self {
        let (object, start) = match span.place {
            Place::Region { region, at } => (Object::Region(region), at),
            Place::Slot { slot, at } => (Object::Slot(slot), at as u64),
        };
        Self { moment, is_write, object, start, end: start + u64::from(span.length) }
    }

    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let meets = self.object == other.object && self.start < other.end && other.start < self.end;
        meets && (self.is_write || other.is_write)
    }
}

/// Whether bytes of a slot are filled in.
pub(crate) fn is_hole(slot: &Slot, at: usize, length: usize) -> bool {
    slot.holes.iter().any(|(first, bytes)| *first < at + length && at < first + bytes)
}

/// Accesses of a request that executes one of its operations.
pub(crate) fn touches(chain: &Chain, number: usize, op: ChainOp) -> Vec<Touch> {
    let slot = &chain.slots[number];
    let end = offset::SGES + slot.sges.len().max(1) * offset::SGE_LEN;
    let own = Span { place: Place::Slot { slot: number, at: 0 }, length: end as u32 };
    let mut list = vec![Touch::new(Moment::Fetch, false, own)];
    let whole = |span: &Span, is_filled: bool| match span.place {
        Place::Region { region, .. } if is_filled => {
            let length = chain.regions[region].content.length() as u32;
            Span { place: Place::Region { region, at: 0 }, length }
        }
        _ => *span,
    };
    if op.sends_data() && !slot.flags.contains(ChainFlags::INLINE) || op.returns_data() {
        let moment = if op.returns_data() { Moment::Scatter } else { Moment::Gather };
        for (i, span) in slot.sges.iter().enumerate() {
            let is_filled = is_hole(slot, offset::SGES + i * offset::SGE_LEN, 12);
            list.push(Touch::new(moment, op.returns_data(), whole(span, is_filled)));
        }
    }
    let acts = op.is_atomic() || matches!(op, ChainOp::Read | ChainOp::Write | ChainOp::WriteImm);
    if let (Remote::Own(place), true) = (slot.remote, acts) {
        let length = if op.is_atomic() { op.width() as u32 } else { slot.length() as u32 };
        let span = whole(&Span { place, length }, is_hole(slot, offset::REMOTE_ADDR, 8));
        list.push(Touch::new(Moment::Respond, false, span));
        if op != ChainOp::Read {
            list.push(Touch::new(Moment::Respond, true, span));
        }
    }
    list
}

/// Accesses of a request in any of its operations.
pub(crate) fn all_touches(chain: &Chain, number: usize) -> Vec<Touch> {
    let slot = &chain.slots[number];
    let mut list = touches(chain, number, slot.control.op);
    for control in &slot.may {
        list.extend(touches(chain, number, control.op));
    }
    list
}
