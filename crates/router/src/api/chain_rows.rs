//! Conversion of chains to the API's types.

use crate::daemon::{ChainRow, ContextInfo, Host, QueueRow, StepRow};
use rdmesh_fabric::api;
use rdmesh_fabric::{InvalidName, Name};
use rdmesh_nic::{ChainQueue, ChainSlot, ChainState, ChainWait};
use rdmesh_verbs::Sge;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class, Request};
use std::fmt::Write;
use std::time::Duration;

/// Every group of managed queues.
pub(super) fn all(host: &Host) -> Vec<api::ChainInfo> {
    let chains = |context: ContextInfo| {
        let rows = context.chains.clone();
        rows.into_iter().filter_map(move |row| chain(&context, &row).ok())
    };
    host.sessions().snapshot().into_iter().flat_map(chains).collect()
}

fn chain(context: &ContextInfo, row: &ChainRow) -> Result<api::ChainInfo, InvalidName> {
    let (entry, counts) = (&row.entry, &row.entry.counts);
    let state = match entry.state {
        ChainState::Running => api::ChainState::Running,
        ChainState::Stopped => api::ChainState::Stopped,
        ChainState::Poisoned => api::ChainState::Ended,
    };
    let fault = entry.fault.map(|fault| api::ChainFault {
        qpn: row.failed.map(|qpn| qpn.value()),
        is_receive: fault.is_receive,
        index: fault.index,
        label: row.label.map(|label| label.to_string()),
        status: fault.status as u32,
        reason: fault.status.words().to_owned(),
        addr: fault.addr,
        key: fault.key,
    });
    Ok(api::ChainInfo {
        endpoint: Name::try_from(context.name.clone())?,
        network: Name::try_from(context.network.clone())?,
        pid: context.pid,
        command: context.comm.clone(),
        device: context.number,
        group: entry.group,
        state,
        qps: row.qpns.iter().map(|qpn| qpn.value()).collect(),
        fault,
        copies: counts.copies,
        atomics: counts.atomics,
        orders: counts.orders,
        steps: counts.steps,
        bytes: counts.bytes,
        soft_faults: counts.soft_faults,
        spinning: entry.is_spinning,
        laps: entry.laps,
        starved: entry.starved,
        starved_seconds: Duration::from_nanos(entry.starved_for).as_secs_f64(),
    })
}

/// A managed queue.
pub(super) fn queue(row: &QueueRow) -> api::ChainQueue {
    let ChainQueue { qp, is_receive, next, limit, cycle, waits_for } = row.queue;
    let slots = row
        .slots
        .iter()
        .map(|row| api::ChainSlot { label: row.label.map(|label| label.to_string()), request: slot(&row.slot) });
    let waits_for = waiting(waits_for);
    api::ChainQueue {
        qpn: row.qpn.value(),
        handle: qp,
        is_receive,
        next,
        limit,
        cycle,
        waits_for,
        slots: slots.collect(),
    }
}

/// An executed request.
pub(super) fn step(row: &StepRow) -> api::ChainStep {
    api::ChainStep {
        number: row.step.number,
        nanoseconds: row.step.at.0,
        qpn: row.qpn.value(),
        index: row.step.index,
        label: row.label.map(|label| label.to_string()),
        operation: if row.step.is_receive { "RECV" } else { row.step.op.name() }.to_owned(),
        bytes: row.step.bytes,
    }
}

fn waiting(wait: ChainWait) -> String {
    match wait {
        ChainWait::Nothing => "nothing".to_owned(),
        ChainWait::Enable => "an ENABLE".to_owned(),
        ChainWait::Steps => "steps of its endpoint's budget".to_owned(),
        ChainWait::Message => "a message".to_owned(),
        ChainWait::Completions { cq, count, produced } => {
            format!("{count} completions of CQ {cq}, which has {produced}")
        }
    }
}

fn slot(slot: &ChainSlot) -> String {
    match slot {
        ChainSlot::Send(wr) => request(wr),
        ChainSlot::Receive(sges) => format!("RECV{}", elements(sges)),
        ChainSlot::Unfit => "no request that is allowed here".to_owned(),
    }
}

fn request(wr: &Request) -> String {
    let (op, args) = (wr.control.op, &wr.args);
    let mut text = format!("{}{}", if wr.control.quiet { "quiet." } else { "" }, op.name());
    for (flag, name) in FLAGS {
        text.push_str(if wr.flags.contains(flag) { name } else { "" });
    }
    // Writing to a string cannot fail.
    let _ = match (op.class(), wr.ordering()) {
        (Class::Order, Some(order)) => {
            write!(text, " object={} count={} step={}", order.object, order.count, order.step)
        }
        (Class::Atomic, _) => write!(
            text,
            " addr={:#x} key={:#x} compare_add={:#x} swap={:#x}",
            args.remote_addr, args.rkey, args.compare_add, args.swap
        ),
        _ if matches!(op, ChainOp::Read | ChainOp::Write | ChainOp::WriteImm) => {
            write!(text, " addr={:#x} key={:#x}", args.remote_addr, args.rkey)
        }
        _ => Ok(()),
    };
    if wr.control.operand != 0 {
        let _ = write!(text, " operand={:#x}", wr.control.operand);
    }
    if op.class() != Class::Order {
        text.push_str(&elements(&wr.sges));
    }
    text
}

fn elements(sges: &[Sge]) -> String {
    let element = |sge: &Sge| format!(" {:#x}+{} key={:#x}", sge.addr, sge.length, sge.lkey.0);
    sges.iter().map(element).collect()
}

const FLAGS: [(ChainFlags, &str); 5] = [
    (ChainFlags::LOCAL, " LOCAL"),
    (ChainFlags::SOFT, " SOFT"),
    (ChainFlags::FENCE, " FENCE"),
    (ChainFlags::SIGNALED, " signaled"),
    (ChainFlags::INLINE, " inline"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_verbs::Key;
    use rdmesh_verbs::chain::{Args, Control};

    #[test]
    fn requests_are_shown_with_the_fields_that_they_have() {
        let sges = [Sge { addr: 16, length: 8, lkey: Key(0x200) }];
        let read = Request {
            flags: ChainFlags::LOCAL | ChainFlags::SIGNALED,
            args: Args { remote_addr: 0x40, rkey: 0x101, ..Args::default() },
            sges: sges.into_iter().collect(),
            ..Request::new(Control::new(ChainOp::Read))
        };
        assert_eq!(request(&read), "READ LOCAL signaled addr=0x40 key=0x101 0x10+8 key=0x200");
        let wait = Request { sges: read.sges.clone(), ..Request::new(Control::new(ChainOp::Wait)) };
        assert_eq!(request(&wait), "WAIT object=512 count=16 step=8");
        let nop = Request::new(Control::with(ChainOp::Nop, 7).quiet());
        assert_eq!(request(&nop), "quiet.NOP operand=0x7");
        assert_eq!(slot(&ChainSlot::Receive(sges.to_vec())), "RECV 0x10+8 key=0x200");
    }
}
