//! Packet observer: properties that show only in packets, and a text form of packets.

use crate::coverage::{Coverage, Seen};
use crate::platform::Effect;
use crate::trace::{digest, dissect};
use rdmesh_nic::wire::Op;
use rdmesh_nic::{Datagram, Origin};
use std::collections::{BTreeMap, BTreeSet};

/// Observer of every packet.
#[derive(Default)]
pub(super) struct Snoop {
    pub(super) seen: Coverage,
    lost: BTreeSet<(usize, u32, u32)>,
    atomics: BTreeSet<(usize, u32, u32)>,
    /// PSN of the latest READ request by host, QP and end of the range.
    reads: BTreeMap<(usize, u32, u64), u32>,
}

impl Snoop {
    /// A packet leaves for `host`.
    pub(super) fn sent(&mut self, host: usize, bytes: &[u8], origin: &Origin, lost: bool) {
        let Some((_, _, header, _)) = dissect(bytes, is_tunnel(origin)) else { return };
        let key = (host, header.dest.value(), header.psn.value());
        let answer = matches!(header.op, Op::Acknowledge(_) | Op::AtomicAcknowledge { .. } | Op::Notification);
        if lost && !answer && !self.lost.insert(key) {
            self.seen.count(Seen::LostRetransmission);
        }
        if let Op::ReadRequest(reth) = header.op {
            let end = reth.addr.wrapping_add(reth.len.into());
            let before = self.reads.insert((host, key.1, end), key.2);
            if reth.len != 0 && before.is_some_and(|psn| (1..1000).contains(&(key.2.wrapping_sub(psn) & 0xff_ffff))) {
                self.seen.count(Seen::ReadResumed);
            }
        }
    }

    /// A packet arrives at `host`. Returns which QP it is for.
    pub(super) fn arrived(&mut self, host: usize, datagram: &Datagram<'_>) -> Option<u32> {
        let (_, _, header, _) = dissect(datagram.bytes, is_tunnel(&datagram.origin))?;
        let key = (host, header.dest.value(), header.psn.value());
        if matches!(header.op, Op::CompareSwap { .. } | Op::FetchAdd { .. }) && !self.atomics.insert(key) {
            self.seen.count(Seen::AtomicReplayed);
        }
        Some(key.1)
    }
}

/// A packet in words.
pub(super) fn packet(way: &str, bytes: &[u8], origin: &Origin) -> String {
    match dissect(bytes, is_tunnel(origin)) {
        Some((vni, _, h, len)) => {
            let vni = vni.map_or_else(|| "plain".to_owned(), |vni| format!("net {}", vni.0));
            let ask = if h.ack_request { " ack!" } else { "" };
            let bits = if h.becn { " becn" } else { "" };
            format!("{way} {vni} QP {} psn {}{ask}{bits} {:?} {:?} {len} B", h.dest, h.psn.value(), h.service, h.op)
        }
        None => format!("{way} {} bytes, not a packet, from {origin:?}", bytes.len()),
    }
}

/// An effect in words.
pub(super) fn words(effect: &Effect) -> String {
    match effect {
        Effect::Write { region, offset, bytes, .. } => {
            format!("writes {} bytes to region {region} at {offset:#x}", bytes.len())
        }
        other => format!("{other:?}"),
    }
}

/// An effect as a number.
pub(super) fn number(effect: &Effect) -> u64 {
    match effect {
        Effect::Write { region, offset, bytes, .. } => digest(bytes) ^ offset ^ u64::from(*region) << 40,
        Effect::Atomic { region, offset, old, .. } => offset ^ old.rotate_left(17) ^ u64::from(*region) << 40,
        Effect::Complete { queue, completion: wc } => {
            wc.wr_id ^ u64::from(wc.status as u32) << 40 ^ u64::from(wc.byte_len) << 20 ^ u64::from(*queue) << 50
        }
        Effect::Overrun { queue } => u64::from(*queue),
        Effect::Taken { queue, wr_id } => wr_id ^ u64::from(*queue) << 48,
    }
}

fn is_tunnel(origin: &Origin) -> bool {
    matches!(origin, Origin::Host(_))
}
