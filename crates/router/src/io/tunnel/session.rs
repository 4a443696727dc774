//! Tunnel sessions: sealing and opening of the packets from one host to another.
//!
//! A session goes one way. Its key is known to its two hosts only, and made of random numbers of both (see
//! [`handshake`](super::handshake)), so that nothing that was sent in another session is right in this one. Each worker of the
//! sender numbers its packets by itself: a *stream*, whose number is the upper 16 bits of a packet's.

use super::gmac::{Gmac, TAG_LEN};
use super::replay::Window;
use rdmesh_nic::wire::geneve::{self, Seal, TAG};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Secret that both ends of a session derive.
pub(super) struct SessionSecret {
    /// Identifies packets of this session; not secret.
    pub(super) reference: u64,
    pub(super) key: [u8; 32],
}

/// The sender's end of a session.
pub(crate) struct SendSession {
    reference: u64,
    mac: Gmac,
    /// Number of packets that each worker has sealed.
    streams: Box<[Stream]>,
}

/// One to a cache line: each has one writer.
#[repr(align(64))]
#[derive(Default)]
struct Stream(AtomicU64);

/// The receiver's end of a session.
pub(crate) struct ReceiveSession {
    reference: u64,
    mac: Gmac,
    /// Made when the first packet of a stream proves right.
    windows: Box<[OnceLock<Box<Window>>]>,
}

/// Reason why a packet is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// It is a replay, or too old to tell.
    Replayed,
    /// Its sender does not have the key, or it was changed on its way.
    WrongTag,
}

/// A session has as many packets as it can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exhausted;

impl SendSession {
    pub(super) fn new(secret: &SessionSecret, workers: usize) -> Self {
        let streams = (0..workers).map(|_| Stream::default()).collect();
        Self { reference: secret.reference, mac: Gmac::new(&secret.key), streams }
    }

    /// Seals a packet with room for it, as the next one of `worker`, which is the only one that calls this with its number.
    pub(super) fn seal(&self, worker: usize, packet: &mut [u8]) -> Result<(), Exhausted> {
        let stream = self.streams.get(worker).ok_or(Exhausted)?;
        let number = stream.0.load(Ordering::Relaxed);
        if number > LAST {
            return Err(Exhausted);
        }
        stream.0.store(number + 1, Ordering::Relaxed);
        let sequence = (worker as u64) << COUNTER | number;
        geneve::write_seal(packet, Seal { session: self.reference, sequence });
        let tag = self.mac.tag(sequence, packet).ok_or(Exhausted)?;
        packet[TAG].copy_from_slice(&tag);
        Ok(())
    }
}

impl ReceiveSession {
    pub(super) fn new(secret: &SessionSecret) -> Self {
        let windows = (0..STREAMS).map(|_| OnceLock::new()).collect();
        Self { reference: secret.reference, mac: Gmac::new(&secret.key), windows }
    }

    pub(super) fn reference(&self) -> u64 {
        self.reference
    }

    /// Whether `packet`, which has `seal`, is right and new. Nothing changes where it is not.
    pub(super) fn open(&self, seal: Seal, packet: &[u8]) -> Result<(), Refused> {
        let number = seal.sequence & LAST;
        let window = self.windows.get((seal.sequence >> COUNTER) as usize).ok_or(Refused::WrongTag)?;
        if window.get().is_some_and(|window| !window.is_open(number)) {
            return Err(Refused::Replayed);
        }
        if !self.mac.is_right(seal.sequence, packet) {
            return Err(Refused::WrongTag);
        }
        window.get_or_init(|| Box::new(Window::new())).accept(number).map_err(|_| Refused::Replayed)
    }
}

const _: () = assert!(TAG_LEN == 16);
/// Bits of the number of a packet in its stream.
const COUNTER: u32 = 48;
const LAST: u64 = (1 << COUNTER) - 1;
/// As many as a router may have workers.
const STREAMS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_verbs::Vni;

    fn secret(key: u8) -> SessionSecret {
        SessionSecret { reference: 77, key: [key; 32] }
    }

    fn packet(len: usize) -> Vec<u8> {
        let mut packet = vec![0x45; geneve::SEALED_LEN + len];
        geneve::encode_sealed(Vni(7), false, &mut packet);
        packet
    }

    fn open(session: &ReceiveSession, packet: &[u8]) -> Result<(), Refused> {
        session.open(geneve::read_seal(packet).unwrap(), packet)
    }

    #[test]
    fn what_is_sealed_is_opened_once() {
        let (sender, receiver) = (SendSession::new(&secret(1), 2), ReceiveSession::new(&secret(1)));
        let mut sealed: Vec<_> = (0..200).map(|n| (n % 2, packet(40 + n * 7))).collect();
        for (worker, packet) in &mut sealed {
            sender.seal(*worker, packet).unwrap();
        }
        for (_, packet) in sealed.iter().rev() {
            assert_eq!(open(&receiver, packet), Ok(()));
        }
        for (_, packet) in &sealed {
            assert_eq!(open(&receiver, packet), Err(Refused::Replayed));
        }
    }

    #[test]
    fn every_bit_counts() {
        let (sender, receiver) = (SendSession::new(&secret(1), 1), ReceiveSession::new(&secret(1)));
        let mut good = packet(60);
        sender.seal(0, &mut good).unwrap();
        // From the virtual network's number on; the bytes before say how it is laid out.
        let seal = geneve::read_seal(&good).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let seal = geneve::read_seal(&bad).unwrap_or(seal);
            let refused = receiver.open(seal, &bad);
            assert_eq!(refused, Err(Refused::WrongTag), "bit {bit}");
        }
        assert_eq!(open(&receiver, &good[..good.len() - 1]), Err(Refused::WrongTag));
        assert_eq!(open(&receiver, &[&good[..], &[0]].concat()), Err(Refused::WrongTag));
        assert_eq!(open(&ReceiveSession::new(&secret(2)), &good), Err(Refused::WrongTag), "another key");
        assert_eq!(open(&receiver, &good), Ok(()), "what was tried has changed nothing");
    }

    #[test]
    fn a_worker_that_has_no_number_left_sends_nothing() {
        let sender = SendSession::new(&secret(1), 1);
        sender.streams[0].0.store(LAST, Ordering::Relaxed);
        let mut last = packet(60);
        assert_eq!(sender.seal(0, &mut last), Ok(()));
        assert_eq!(open(&ReceiveSession::new(&secret(1)), &last), Ok(()));
        assert_eq!(sender.seal(0, &mut packet(60)), Err(Exhausted));
        assert_eq!(sender.seal(1, &mut packet(60)), Err(Exhausted), "there is no such worker");
    }
}
