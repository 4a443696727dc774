//! The listing of a chain: one line for each object and work request.

use crate::program::{ALWAYS, Chain, Content, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, Wide, offset};
use std::fmt;

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.cost())?;
        if !self.name.is_empty() {
            writeln!(f, "chain {}", self.name)?;
        }
        for cq in &self.cqs {
            writeln!(f, "cq {cq}")?;
        }
        for region in &self.regions {
            self.content(f, &region.name, &region.content)?;
        }
        for receive in &self.receives {
            write!(f, "receive {} cq={} enabled={}", receive.name, self.cqs[receive.cq], Limit(receive.enabled))?;
            for (number, slot) in receive.slots.iter().enumerate() {
                f.write_str(if number == 0 { "" } else { " then" })?;
                self.spans(f, slot)?;
            }
            writeln!(f)?;
        }
        for queue in &self.queues {
            let to = if queue.to_client { "client" } else { "self" };
            writeln!(f, "queue {} cq={} to={to} enabled={}", queue.name, self.cqs[queue.cq], Limit(queue.enabled))?;
            for slot in &queue.slots {
                self.slot(f, &self.slots[*slot])?;
            }
        }
        Ok(())
    }
}

/// A limit of a queue.
struct Limit(u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == ALWAYS { f.write_str("always") } else { write!(f, "{}", self.0) }
    }
}

/// An operation: `NOP`, `quiet.NOP`, `NOP(7)` with an operand.
struct Operation(Control);

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Control { op, quiet, operand } = self.0;
        write!(f, "{}{}", if quiet { "quiet." } else { "" }, op.name())?;
        if operand == 0 { Ok(()) } else { write!(f, "({operand:#x})") }
    }
}

/// A word: a control word by its meaning, any other as a number.
struct Word(u64);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Control::decode(self.0) {
            Some(control) if self.0 >> 63 == 1 => write!(f, "{}", Operation(control)),
            _ => write!(f, "{:#x}", self.0),
        }
    }
}

impl Chain {
    fn content(&self, f: &mut fmt::Formatter<'_>, name: &str, content: &Content) -> fmt::Result {
        match content {
            Content::Scratch(length) => writeln!(f, "scratch {name} {length}"),
            Content::Table(length) => writeln!(f, "table {name} {length}"),
            Content::Shared(length) => writeln!(f, "shared {name} {length}"),
            Content::Bytes(bytes) => {
                write!(f, "constant {name} ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                writeln!(f)
            }
            Content::Pristine(parts) => {
                write!(f, "pristine {name}")?;
                for (slot, at, length) in parts {
                    let place = Place::Slot { slot: *slot, at: *at };
                    write!(f, " {}:{length}", self.place(place))?;
                }
                writeln!(f)
            }
        }
    }

    /// A place by the names of its object and field.
    pub fn place(&self, place: Place) -> String {
        let (name, at) = match place {
            Place::Region { region, at } => (&self.regions[region].name, at),
            Place::Slot { slot, at } => {
                let slot = &self.slots[slot];
                return match field(slot, at) {
                    Some(field) => format!("{}.{field}", slot.label),
                    None => format!("{}+{at}", slot.label),
                };
            }
        };
        format!("{name}+{at}")
    }

    fn spans(&self, f: &mut fmt::Formatter<'_>, spans: &[Span]) -> fmt::Result {
        spans.iter().try_for_each(|span| write!(f, " sge={}:{}", self.place(span.place), span.length))
    }

    fn slot(&self, f: &mut fmt::Formatter<'_>, slot: &Slot) -> fmt::Result {
        write!(f, "  {}: {}", slot.label, Operation(slot.control))?;
        slot.may.iter().try_for_each(|control| write!(f, "|{}", Operation(*control)))?;
        if let Some(order) = slot.order {
            let name = match slot.class_op() {
                ChainOp::Wait => &self.cqs[order.object],
                ChainOp::RecvEnable => &self.receives[order.object].name,
                _ => &self.queues[order.object].name,
            };
            write!(f, " on={name} count={}", Limit(order.count))?;
            if order.step != 0 {
                write!(f, " step={}", order.step)?;
            }
            f.write_str(if order.relative { " relative" } else { "" })?;
        }
        match slot.remote {
            Remote::None => {}
            Remote::Own(place) => write!(f, " at={}", self.place(place))?,
            Remote::Client { addr, rkey } => write!(f, " to={addr:#x}:{rkey:#x}")?,
        }
        for (name, value) in
            [("compare", slot.compare), ("swap", slot.swap), ("cmask", slot.masks.0), ("smask", slot.masks.1)]
        {
            if value != 0 {
                write!(f, " {name}={}", Word(value))?;
            }
        }
        let Wide { compare, swap, compare_mask, swap_mask } = slot.wide;
        for (name, value) in [("wcompare", compare), ("wswap", swap), ("wcmask", compare_mask), ("wsmask", swap_mask)] {
            if value != 0 {
                write!(f, " {name}={}:{:#x}", Word((value >> 64) as u64), value as u64)?;
            }
        }
        if slot.imm != 0 {
            write!(f, " imm={}", slot.imm)?;
        }
        self.spans(f, &slot.sges)?;
        for (at, length) in &slot.holes {
            match field(slot, *at) {
                Some(field) => write!(f, " hole={field}:{length}")?,
                None => write!(f, " hole={at}:{length}")?,
            }
        }
        for (flag, name) in FLAGS {
            if slot.flags.contains(flag) {
                write!(f, " {name}")?;
            }
        }
        writeln!(f)
    }
}

/// Flags by name.
pub(crate) const FLAGS: [(ChainFlags, &str); 6] = [
    (ChainFlags::FENCE, "fence"),
    (ChainFlags::SIGNALED, "signaled"),
    (ChainFlags::SOLICITED, "solicited"),
    (ChainFlags::INLINE, "inline"),
    (ChainFlags::LOCAL, "local"),
    (ChainFlags::SOFT, "soft"),
];

/// Fields by the name of their first byte; those of atomics first, as `compare` is where others have their key.
pub(crate) const FIELDS: [(&str, usize); 19] = [
    ("id", offset::WR_ID),
    ("operand", offset::CONTROL),
    ("operation", offset::OPERATION),
    ("flags", offset::FLAGS),
    ("imm", offset::IMM),
    ("remote", offset::REMOTE_ADDR),
    ("compare", offset::COMPARE),
    ("rkey", offset::RKEY),
    ("swap", offset::SWAP),
    ("wcompare", offset::WIDE_COMPARE),
    ("length", offset::LENGTH),
    ("sge0", offset::SGES),
    ("sge0.length", offset::SGES + offset::SGE_LENGTH),
    ("sge1", offset::SGES + offset::SGE_LEN),
    ("sge1.length", offset::SGES + offset::SGE_LEN + offset::SGE_LENGTH),
    ("sge2", offset::SGES + 2 * offset::SGE_LEN),
    ("sge2.length", offset::SGES + 2 * offset::SGE_LEN + offset::SGE_LENGTH),
    ("sge3", offset::SGES + 3 * offset::SGE_LEN),
    ("sge3.length", offset::SGES + 3 * offset::SGE_LEN + offset::SGE_LENGTH),
];

/// The name of the field that begins at a byte.
pub(crate) fn field(slot: &Slot, at: usize) -> Option<&'static str> {
    let is_atomic = slot.class_op().is_atomic();
    let other = if is_atomic { "rkey" } else { "compare" };
    FIELDS.iter().find(|(name, start)| *start == at && *name != other).map(|(name, _)| *name)
}
