//! Mailboxes of datagrams that arrived at one worker and belong to another.

use crossbeam_queue::ArrayQueue;
use rdmesh_nic::{Datagram, Origin, Time};

/// Datagrams that other workers hand to one. The buffers are made once: when all are full, further datagrams are lost, as on a
/// network.
pub(crate) struct Mailbox {
    full: ArrayQueue<Letter>,
    empty: ArrayQueue<Letter>,
}

struct Letter {
    origin: Origin,
    traffic_class: u8,
    received: Option<Time>,
    len: usize,
    bytes: Box<[u8]>,
}

impl Mailbox {
    /// A mailbox with room for `capacity` datagrams.
    pub(crate) fn new(capacity: usize) -> Self {
        let queue = || ArrayQueue::new(capacity.max(1));
        let (full, empty) = (queue(), queue());
        for _ in 0..capacity {
            // It has room for exactly these.
            let _ = empty.push(Letter::new());
        }
        Self { full, empty }
    }

    /// Copies a datagram in; false where there is no room.
    pub(crate) fn post(&self, datagram: &Datagram<'_>) -> bool {
        if datagram.bytes.len() > MAX_DATAGRAM {
            return false;
        }
        let Some(mut letter) = self.empty.pop() else { return false };
        letter.origin = datagram.origin;
        letter.traffic_class = datagram.traffic_class;
        letter.received = datagram.received;
        letter.len = datagram.bytes.len();
        letter.bytes[..letter.len].copy_from_slice(datagram.bytes);
        self.full.push(letter).is_ok()
    }

    /// Gives the next datagram to `handle`; false where there is none.
    pub(crate) fn take(&self, handle: impl FnOnce(&Datagram<'_>)) -> bool {
        let Some(letter) = self.full.pop() else { return false };
        let (origin, traffic_class, received) = (letter.origin, letter.traffic_class, letter.received);
        handle(&Datagram { origin, traffic_class, received, bytes: &letter.bytes[..letter.len] });
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
        let origin = Origin::Host(std::net::Ipv4Addr::UNSPECIFIED.into());
        Self { origin, traffic_class: 0, received: None, len: 0, bytes: vec![0; MAX_DATAGRAM].into() }
    }
}

/// The largest payload with all headers of all layers.
const MAX_DATAGRAM: usize = 4096 + 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(bytes: &[u8]) -> Datagram<'_> {
        Datagram { origin: Origin::Host([10, 0, 0, 1].into()), traffic_class: 2, received: Some(Time(7)), bytes }
    }

    #[test]
    fn datagrams_come_out_as_they_went_in() {
        let mailbox = Mailbox::new(2);
        for round in 0..5_u8 {
            assert!(mailbox.post(&datagram(&[round; 100])));
            assert!(mailbox.post(&datagram(&[])));
            assert!(!mailbox.post(&datagram(&[1])), "there is room for two");
            assert!(mailbox.take(|d| {
                assert_eq!((d.bytes, d.traffic_class, d.received), (&[round; 100][..], 2, Some(Time(7))));
                assert_eq!(d.origin, Origin::Host([10, 0, 0, 1].into()));
            }));
            assert!(mailbox.take(|d| assert_eq!(d.bytes.len(), 0)));
            assert!(!mailbox.take(|_| panic!("nothing is left")));
        }
        assert!(mailbox.is_empty());
    }

    #[test]
    fn what_is_too_large_is_refused_and_costs_no_buffer() {
        let mailbox = Mailbox::new(1);
        assert!(!mailbox.post(&datagram(&[0; MAX_DATAGRAM + 1])));
        assert!(mailbox.post(&datagram(&[0; MAX_DATAGRAM])));
    }

    #[test]
    fn without_room_nothing_is_taken() {
        assert!(!Mailbox::new(0).post(&datagram(&[1])));
    }
}
