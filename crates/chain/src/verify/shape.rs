//! Checks of single requests: bounds, rights, and what may be changed in them.

use super::Refusal;
use crate::access::{Object, Touch, all_touches, is_hole};
use crate::program::{Chain, Content, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class, Control, offset};

pub(super) fn check(chain: &Chain) -> Result<(), Refusal> {
    for (number, slot) in chain.slots.iter().enumerate() {
        let times = chain.queues.iter().flat_map(|queue| &queue.slots).filter(|s| **s == number).count();
        if times != 1 {
            let cause = if times == 0 { "is declared, but not placed" } else { "is placed more than once" };
            return Err(Refusal::new(&slot.label, cause, "place each request once"));
        }
        check_slot(chain, number)?;
    }
    let received = chain.receives.iter().flat_map(|r| r.slots.iter().flatten().map(move |span| (&r.name, span)));
    for (name, span) in received {
        fits(chain, name, span)?;
        let touch = Touch::new(crate::access::Moment::Scatter, true, *span);
        changes_allowed_bytes(chain, name, &touch, None)?;
    }
    Ok(())
}

fn check_slot(chain: &Chain, number: usize) -> Result<(), Refusal> {
    let slot = &chain.slots[number];
    let refuse = |cause: &str, remedy: &str| Err(Refusal::new(&slot.label, cause, remedy));
    let forms = || std::iter::once(slot.control).chain(slot.may.iter().copied()).filter(|c| c.op != ChainOp::Nop);
    if forms().any(|c| c.op.class() != slot.class_op().class()) {
        return refuse("may become operations of different kinds", "use a request for each");
    }
    let is_client = matches!(slot.remote, Remote::Client { .. })
        || forms().any(|c| matches!(c.op, ChainOp::SendImm | ChainOp::Send));
    if is_client && slot.is_local() {
        return refuse("is LOCAL, but reaches the client", "leave LOCAL out");
    }
    if forms().any(|c| c.op.class() == Class::Order) && slot.order.is_none() {
        return refuse("orders, but names no object", "say which queue it is about");
    }
    for span in &slot.sges {
        fits(chain, &slot.label, span)?;
    }
    if let Remote::Own(place) = slot.remote {
        let is_filled = is_hole(slot, offset::REMOTE_ADDR, 8);
        let op = slot.class_op();
        let length = if op.is_atomic() { op.width() as u32 } else { slot.length() as u32 };
        if is_filled && matches!(place, Place::Slot { .. }) && slot.class_op() != ChainOp::Read {
            return refuse("writes into a queue at an address that is filled in", "write to a fixed field");
        }
        if !is_filled {
            fits(chain, &slot.label, &Span { place, length })?;
        }
    }
    for touch in all_touches(chain, number).iter().filter(|touch| touch.is_write) {
        changes_allowed_bytes(chain, &slot.label, touch, Some(slot))?;
    }
    Ok(())
}

fn fits(chain: &Chain, label: &str, span: &Span) -> Result<(), Refusal> {
    let (at, room) = match span.place {
        Place::Region { region, at } => (at, chain.regions[region].content.length()),
        Place::Slot { slot, at } => (at as u64, room(&chain.slots[slot]) as u64),
    };
    if at.checked_add(span.length.into()).is_some_and(|end| end <= room) {
        return Ok(());
    }
    let cause = format!("reaches beyond the end of `{}`", chain.place(span.place));
    Err(Refusal::new(label, &cause, "make the region longer, or the access shorter"))
}

fn room(slot: &Slot) -> usize {
    offset::SGES + slot.sges.len().max(1) * offset::SGE_LEN
}

fn changes_allowed_bytes(chain: &Chain, label: &str, touch: &Touch, writer: Option<&Slot>) -> Result<(), Refusal> {
    let target = match touch.object {
        Object::Region(region) if chain.regions[region].content.is_writable() => return Ok(()),
        Object::Region(region) => {
            let cause = format!("writes to `{}`, which may only be read", chain.regions[region].name);
            return Err(Refusal::new(label, &cause, "write to a `scratch` region"));
        }
        Object::Slot(slot) => slot,
    };
    let slot = &chain.slots[target];
    let (start, end) = (touch.start as usize, touch.end as usize);
    let is_wide = writer.is_some_and(|writer| writer.class_op() == ChainOp::WideCompareSwap);
    if start == if is_wide { offset::WR_ID } else { offset::CONTROL }
        && end == offset::CONTROL + 8
        && writer.is_some_and(|writer| keeps_operations(chain, writer, target))
    {
        return Ok(());
    }
    let within = |(first, bytes): (usize, usize)| first <= start && end <= first + bytes;
    if allowed(slot).into_iter().any(within) {
        return Ok(());
    }
    let cause = format!(
        "changes bytes {start} to {} of `{}`: data could become an operation, a flag or a key",
        end - 1,
        slot.label
    );
    Err(Refusal::new(
        label,
        &cause,
        "change operand, immediate data, addresses, lengths or comparison values; operations by CAS to one that is allowed",
    ))
}

/// Fields that data may fill.
fn allowed(slot: &Slot) -> Vec<(usize, usize)> {
    let mut fields = vec![(offset::WR_ID, 15), (offset::IMM, 4), (offset::REMOTE_ADDR, 8)];
    let changes_control = matches!(slot.remote, Remote::Own(Place::Slot { at: offset::CONTROL, .. }));
    if slot.class_op() == ChainOp::WideCompareSwap {
        fields.push((offset::WIDE_COMPARE, 15));
    }
    if slot.class_op().is_atomic() {
        fields.push((offset::COMPARE, if changes_control { 7 } else { 8 }));
        fields.extend((!changes_control).then_some((offset::SWAP, 8)));
    }
    if matches!(slot.remote, Remote::Client { .. }) {
        fields.push((offset::REMOTE_ADDR, 12));
    }
    fields.extend((0..slot.sges.len()).map(|i| {
        let is_scatter = slot.class_op().returns_data();
        (offset::SGES + i * offset::SGE_LEN, if is_scatter { 8 } else { 12 })
    }));
    if slot.order.is_some() {
        return vec![(offset::WR_ID, 15), (offset::SGES, 8)];
    }
    fields
}

/// Whether a request that writes a whole control word leaves an operation there that is allowed.
fn keeps_operations(chain: &Chain, writer: &Slot, target: usize) -> bool {
    let slot = &chain.slots[target];
    let is_form = |word: u64| {
        let control = Control::decode(word).filter(|_| word >> 63 == 1);
        let same = |form: &Control| control.is_some_and(|c| (c.op, c.quiet) == (form.op, form.quiet));
        same(&slot.control) || slot.may.iter().any(same)
    };
    match (writer.class_op(), writer.sges.first().map(|span| span.place)) {
        (ChainOp::WideCompareSwap, _) => {
            let wide = writer.wide;
            let is_whole = (wide.swap_mask >> 64) as u64 == u64::MAX && (wide.compare_mask >> 64) as u64 == u64::MAX;
            is_form((wide.swap >> 64) as u64) && is_whole && !is_hole(writer, offset::WIDE_SWAP, 48)
        }
        (ChainOp::CompareSwap, _) => is_form(writer.swap) && !is_hole(writer, offset::SWAP, 8),
        (ChainOp::Min | ChainOp::Max, _) => is_form(writer.compare) && !is_hole(writer, offset::COMPARE + 7, 1),
        (ChainOp::Write, Some(Place::Region { region, at: 0 })) => {
            let pristine = Content::Pristine(vec![(target, offset::CONTROL, 8)]);
            chain.regions[region].content == pristine
                && !is_hole(writer, offset::SGES, 12)
                && !writer.flags.contains(ChainFlags::INLINE)
        }
        _ => false,
    }
}
