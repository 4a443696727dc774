//! Reordering buffer of a responder: request packets that came behind a gap, until it is closed.

use crate::device::{HeldBytes, HeldCharge};
use crate::wire::{Header, SEQUENCE_WINDOW, SelectiveAck};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use rdmesh_verbs::Psn;

/// Request packets behind a gap, by PSN.
#[derive(Debug, Default)]
pub(crate) struct Reordering {
    packets: VecDeque<Held>,
}

/// A request packet that waits for those before it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) header: Header,
    pub(crate) payload: Box<[u8]>,
    _charge: HeldCharge,
}

impl Reordering {
    /// Keeps a packet that cannot be executed before, or is the one `expected` and cannot be executed yet. Returns false where it is there already, too far ahead, or where
    /// nothing more may be held: the peer sends it again.
    pub(crate) fn hold(&mut self, expected: Psn, header: &Header, payload: &[u8], held: &HeldBytes) -> bool {
        let ahead = |psn: Psn| psn.after(expected);
        let here = ahead(header.psn);
        if here >= SEQUENCE_WINDOW {
            return false;
        }
        // Mostly it is the last.
        let is_last = self.packets.back().is_none_or(|last| ahead(last.header.psn) < here);
        let at = if is_last { Err(self.packets.len()) } else { self.find(expected, here) };
        let (Err(at), Some(charge)) = (at, held.charge(payload.len() + OVERHEAD)) else { return false };
        self.packets.insert(at, Held { header: *header, payload: payload.into(), _charge: charge });
        true
    }

    /// Takes out the packet `expected`, and forgets all before it.
    pub(crate) fn take(&mut self, expected: Psn) -> Option<Held> {
        while self.packets.front()?.header.psn.since(expected) < 0 {
            self.packets.pop_front();
        }
        if self.packets.front()?.header.psn == expected { self.packets.pop_front() } else { None }
    }

    /// Puts back the packet that was taken out last: it could not be executed yet.
    pub(crate) fn put_back(&mut self, held: Held) {
        self.packets.push_front(held);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.packets = VecDeque::new();
    }

    /// Marks in `ack` what is held ahead of `expected`.
    pub(crate) fn report(&self, expected: Psn, ack: &mut SelectiveAck) {
        self.packets.iter().for_each(|held| ack.mark(held.header.psn.after(expected)));
    }

    /// Whether nothing is held from right before `psn` on: a gap begins there that was not known.
    pub(crate) fn begins_gap(&self, psn: Psn) -> bool {
        let before = self.packets.iter().rev().map(|held| held.header.psn).find(|held| held.since(psn) < 0);
        before.is_none_or(|before| before.add(1) != psn)
    }

    fn find(&self, expected: Psn, ahead: u32) -> Result<usize, usize> {
        self.packets.binary_search_by_key(&ahead, |held| held.header.psn.after(expected))
    }
}

/// About what a packet takes beside its payload.
const OVERHEAD: usize = size_of::<Held>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Op, Part, Service};
    use proptest::prelude::*;
    use rdmesh_verbs::Qpn;
    use std::collections::BTreeMap;

    fn header(psn: Psn) -> Header {
        let op = Op::Send { part: Part::Only, imm: None, invalidate: None };
        Header::new(Service::Rc, op, Qpn::new(5), psn)
    }

    proptest! {
        #[test]
        fn packets_are_taken_in_order_and_once(
            first: u32,
            ahead in prop::collection::vec(1..1200_u32, 0..80),
            steps in prop::collection::vec(any::<bool>(), 0..80),
        ) {
            let (held, mut reordering, mut model) = (HeldBytes::default(), Reordering::default(), BTreeMap::new());
            let mut expected = Psn::new(first);
            let mut at = 0;
            for (n, goes_on) in ahead.into_iter().zip(steps.into_iter().chain([true; 80])) {
                let payload = [n as u8; 10];
                let is_new = n > at && n - at < SEQUENCE_WINDOW && !model.contains_key(&n);
                let psn = Psn::new(first).add(n);
                if n > at {
                    prop_assert_eq!(reordering.hold(expected, &header(psn), &payload, &held), is_new);
                }
                if is_new {
                    model.insert(n, payload);
                }
                let mut ack = SelectiveAck::new(0, 0);
                reordering.report(expected, &mut ack);
                prop_assert!(ack.marked().map(|mark| at + mark).eq(model.keys().copied()));
                if goes_on {
                    (at, expected) = (at + 1, expected.add(1));
                    let taken = reordering.take(expected).map(|held| held.payload.to_vec());
                    prop_assert_eq!(taken, model.remove(&at).map(Vec::from));
                }
            }
            reordering.clear();
            prop_assert_eq!(held.held(), 0);
        }
    }

    #[test]
    fn no_more_is_held_than_the_limit_of_all() {
        let held = HeldBytes::default();
        let mut queues: Vec<Reordering> = (0..200).map(|_| Reordering::default()).collect();
        let payload = vec![0; 4096];
        let mut kept = 0;
        for queue in &mut queues {
            kept += (1..=200).filter(|n| queue.hold(Psn::new(0), &header(Psn::new(*n)), &payload, &held)).count();
        }
        assert_eq!(kept, HeldBytes::MOST / (4096 + OVERHEAD));
        queues.pop();
        queues[0].clear();
        assert!(queues[1].take(Psn::new(1)).is_some_and(|packet| packet.payload.len() == 4096));
        assert!(queues[0].hold(Psn::new(0), &header(Psn::new(1)), &payload, &held));
    }

    #[test]
    fn a_gap_begins_where_the_packet_before_is_missing() {
        let (held, mut reordering) = (HeldBytes::default(), Reordering::default());
        let psn = |n| Psn::new(n);
        assert!(reordering.begins_gap(psn(0xff_ffff)));
        assert!(reordering.hold(psn(0xff_fffe), &header(psn(0xff_ffff)), &[], &held));
        assert!(!reordering.begins_gap(psn(0)) && reordering.begins_gap(psn(1)));
    }
}
