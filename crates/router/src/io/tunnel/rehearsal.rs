//! Tunnel session without sockets, from end to end, for tests and the fuzzer.

use super::guard::{Guard, Table};
use super::handshake::Handshake;
use super::inbox::Inbox;
use super::link::PeerLink;
use super::session::{ReceiveSession, SendSession, SessionSecret};
use rdmesh_fabric::TunnelKey;
use rdmesh_fabric::api::TunnelState;
use rdmesh_nic::Time;
use rdmesh_nic::wire::geneve;
use rdmesh_verbs::Vni;
use std::net::IpAddr;
use std::sync::Arc;

/// A host that sends and one that receives, in a session that is open.
pub struct Rehearsal {
    sender: SendSession,
    guard: Guard,
    link: Arc<PeerLink>,
    inbox: Arc<Inbox>,
    handshake: Handshake,
}

impl Rehearsal {
    /// The sender's address.
    pub const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const TO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    /// With a session of its own.
    pub fn new() -> Self {
        let secret = SessionSecret { reference: 0x0102_0304_0506_0708, key: [9; 32] };
        let link = Arc::new(PeerLink::new(Self::FROM));
        link.update(|sessions| sessions.receive = Some(Arc::new(ReceiveSession::new(&secret))));
        let inbox = Arc::new(Inbox::new());
        let mut guard = Guard::new(0, Arc::clone(&inbox));
        guard.set_peers(&Table::from([(Self::FROM, Arc::clone(&link))]));
        let handshake = Handshake::new(Self::TO, Self::FROM, &TunnelKey::from_bytes([7; 32]), [8; 32], Time(0));
        Self { sender: SendSession::new(&secret, 4), guard, link, inbox, handshake }
    }

    /// The next sealed packet of `worker`, of 4, with `inner` in it.
    pub fn seal(&self, worker: u8, inner: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; geneve::SEALED_LEN];
        geneve::encode_sealed(Vni(7), false, &mut packet);
        packet.extend_from_slice(inner);
        // Shorter than any packet there is, it is not sealed.
        let _ = self.sender.seal(usize::from(worker % 4), &mut packet);
        packet
    }

    /// Whether the receiver accepts `packet`. Control messages are handled, and never accepted as data.
    pub fn arrives(&mut self, from: IpAddr, packet: &[u8]) -> bool {
        let is_let_in = self.guard.open(from, packet);
        while let Some((_, body)) = self.inbox.take() {
            // Messages without the key are refused.
            assert!(self.handshake.handle(Time(1), &body).is_err());
        }
        is_let_in
    }

    /// State of the tunnel, with counts of refused packets.
    pub fn state(&self) -> TunnelState {
        let (sends, receives) = self.handshake.is_agreed();
        self.link.state(sends, receives, self.handshake.is_changing())
    }
}

impl Default for Rehearsal {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmesh_fabric::api::TunnelCounters;

    #[test]
    fn refusals_are_counted_by_reason() {
        let mut tunnel = Rehearsal::new();
        let good = tunnel.seal(0, &[0x45; 60]);
        assert!(tunnel.arrives(Rehearsal::FROM, &good));
        assert!(!tunnel.arrives(Rehearsal::FROM, &good));
        let mut wrong = tunnel.seal(1, &[0x45; 60]);
        wrong[60] ^= 1;
        let mut lost = tunnel.seal(1, &[0x45; 60]);
        lost[12] ^= 1;
        for packet in [&wrong[..], &lost[..], &good[44..], &[]] {
            assert!(!tunnel.arrives(Rehearsal::FROM, packet));
        }
        let expected =
            TunnelCounters { replayed: 1, wrong_tag: 1, unknown_session: 1, unsealed: 1, ..TunnelCounters::default() };
        assert_eq!(tunnel.state().counters, expected);
        assert!(!tunnel.arrives([192, 0, 2, 9].into(), &tunnel.seal(0, &[0x45; 60])));
        assert_eq!(tunnel.inbox.strangers().seen(), (1, Some([192, 0, 2, 9].into())));
        assert_eq!(tunnel.link.take_lost(), Some(0x0002_0304_0506_0708), "the first byte was changed");
    }

    /// `tests/tests/counts.rs` counts the instructions.
    #[inline(never)]
    fn counted_packets(tunnel: &mut Rehearsal, inner: &[u8], count: usize) {
        for _ in 0..count {
            let packet = tunnel.seal(0, inner);
            assert!(tunnel.arrives(Rehearsal::FROM, &packet));
        }
    }

    #[test]
    fn a_thousand_packets_arrive() {
        counted_packets(&mut Rehearsal::new(), &[0x45; 1100], 1000);
    }

    proptest! {
        #[test]
        fn nothing_but_what_was_sealed_gets_in(
            inner in prop::collection::vec(any::<u8>(), 20..300),
            at: prop::sample::Index,
            flip in 1..=255_u8,
            noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut tunnel = Rehearsal::new();
            let good = tunnel.seal(0, &inner);
            let mut bad = good.clone();
            bad[at.index(good.len())] ^= flip;
            prop_assert!(!tunnel.arrives(Rehearsal::FROM, &bad));
            prop_assert!(!tunnel.arrives(Rehearsal::FROM, &noise));
            prop_assert!(!tunnel.arrives(Rehearsal::FROM, &good[..at.index(good.len())]));
            prop_assert!(tunnel.arrives(Rehearsal::FROM, &good));
            prop_assert!(!tunnel.arrives(Rehearsal::FROM, &good));
        }
    }
}
