//! Mailboxes of packets that arrived at one worker and belong to another.

use crossbeam_queue::ArrayQueue;
use rdmesh_nic::{Form, Opened};

/// Packets that other workers hand to one: parsed, so that it need not do that again. The buffers are made once: when all are
/// full, further packets are lost, as on a network.
pub(crate) struct Mailbox {
    full: ArrayQueue<Letter>,
    empty: ArrayQueue<Letter>,
}

struct Letter {
    /// None before its first use.
    form: Option<Form>,
    len: usize,
    bytes: Box<[u8]>,
}

impl Mailbox {
    /// A mailbox with room for `capacity` packets.
    pub(crate) fn new(capacity: usize) -> Self {
        let queue = || ArrayQueue::new(capacity.max(1));
        let (full, empty) = (queue(), queue());
        for _ in 0..capacity {
            // It has room for exactly these.
            let _ = empty.push(Letter::new());
        }
        Self { full, empty }
    }

    /// Copies a packet in; false where there is no room.
    pub(crate) fn post(&self, opened: &Opened<'_>) -> bool {
        let (form, bytes) = opened.apart();
        if bytes.len() > MAX_PACKET {
            return false;
        }
        let Some(mut letter) = self.empty.pop() else { return false };
        letter.form = Some(form);
        letter.len = bytes.len();
        letter.bytes[..bytes.len()].copy_from_slice(bytes);
        self.full.push(letter).is_ok()
    }

    /// Gives the next packet to `handle`; false where there is none.
    pub(crate) fn take(&self, handle: impl FnOnce(&Opened<'_>)) -> bool {
        let Some(letter) = self.full.pop() else { return false };
        if let Some(opened) = letter.form.and_then(|form| form.with(&letter.bytes[..letter.len])) {
            handle(&opened);
        }
        // It has been taken out of here, so there is room.
        let _ = self.empty.push(letter);
        true
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty()
    }
}

impl Letter {
    fn new() -> Self {
        Self { form: None, len: 0, bytes: vec![0; MAX_PACKET].into() }
    }
}

/// The largest payload with all transport headers.
const MAX_PACKET: usize = 4096 + 128;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_nic::wire::{Header, ICRC_LEN, Op, Part, Service};
    use rdmesh_nic::{Datagram, ExternalId, Origin};
    use rdmesh_verbs::{Psn, Qpn};

    /// A SEND with `payload`.
    fn packet(payload: &[u8]) -> Vec<u8> {
        let op = Op::Send { part: Part::Only, imm: None, invalidate: None };
        let header = Header::new(Service::Rc, op, Qpn::new(77), Psn::new(5));
        let mut bytes = vec![0; header.len()];
        header.encode(payload.len(), &mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4) + ICRC_LEN, 0);
        bytes
    }

    fn post(mailbox: &Mailbox, payload: &[u8]) -> bool {
        let [from, to] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let origin = Origin::External { id: ExternalId(3), from, from_port: 4, to };
        let bytes = packet(payload);
        let datagram = Datagram { origin, traffic_class: 2, received: None, bytes: &bytes };
        mailbox.post(&Opened::new(&datagram).unwrap())
    }

    #[test]
    fn packets_come_out_as_they_went_in() {
        let mailbox = Mailbox::new(2);
        for round in 0..5_u8 {
            assert!(post(&mailbox, &[round; 101]));
            assert!(post(&mailbox, &[]));
            assert!(!post(&mailbox, &[1]), "there is room for two");
            for payload in [&[round; 101][..], &[]] {
                assert!(mailbox.take(|opened| {
                    let (form, bytes) = opened.apart();
                    assert_eq!(bytes, packet(payload));
                    assert_eq!(form, form.with(bytes).unwrap().apart().0);
                }));
            }
            assert!(!mailbox.take(|_| panic!("nothing is left")));
        }
        assert!(mailbox.is_empty());
    }

    #[test]
    fn what_is_too_large_is_refused_and_costs_no_buffer() {
        let mailbox = Mailbox::new(1);
        assert!(!post(&mailbox, &[0; MAX_PACKET]));
        assert!(post(&mailbox, &[0; 4096]));
    }

    #[test]
    fn without_room_nothing_is_taken() {
        assert!(!post(&Mailbox::new(0), &[1]));
    }
}
