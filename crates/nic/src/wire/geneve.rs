//! The tunnel between routers: Geneve (RFC 8926) around complete IP packets.
//!
//! A *sealed* packet has one option, the seal: which session of the sender it belongs to, its number there, and a tag that
//! proves both and everything else in the datagram. Here it is only laid out: keys and sessions are the routers'.
//! *Control* packets, by which routers agree on sessions, carry no IP packet.

use super::Malformed;
use super::bytes::{Reader, u24};
use core::ops::Range;
use rdmesh_verbs::Vni;

/// Offset of the protocol type, in two bytes.
pub const PROTOCOL: usize = 2;
/// Protocol type of an IPv6 packet.
pub const IPV6: u16 = 0x86dd;
/// Bytes of the header that [`encode`] writes.
pub const LEN: usize = 8;
/// Bytes of the header with the seal, that [`encode_sealed`] writes.
pub const SEALED_LEN: usize = LEN + OPTION + SEAL;
/// Bytes of the tag in a sealed packet.
pub const TAG: Range<usize> = SEALED_LEN - 16..SEALED_LEN;
/// Bytes of a control packet's body.
pub const CONTROL_BODY: usize = 56;
/// Bytes of a control packet.
pub const CONTROL_LEN: usize = LEN + OPTION + CONTROL_BODY;

/// A seal without its tag: session and sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// The session.
    pub session: u64,
    /// The packet's number in it.
    pub sequence: u64,
}

/// Writes the header of an IPv6 or IPv4 packet to the first [`LEN`] bytes of `out`.
pub fn encode(vni: Vni, is_v6: bool, out: &mut [u8]) {
    let [protocol_high, protocol_low] = if is_v6 { IPV6 } else { IPV4 }.to_be_bytes();
    let [a, b, c] = u24(vni.0);
    out[..LEN].copy_from_slice(&[0, 0, 0, 0, a, b, c, 0]);
    out[PROTOCOL..PROTOCOL + 2].copy_from_slice(&[protocol_high, protocol_low]);
}

/// The same with room for the seal, to the first [`SEALED_LEN`] bytes. The tag and what [`write_seal`] writes are zero.
pub fn encode_sealed(vni: Vni, is_v6: bool, out: &mut [u8]) {
    encode(vni, is_v6, out);
    out[..2].copy_from_slice(&[((OPTION + SEAL) / 4) as u8, CRITICAL]);
    out[LEN..LEN + OPTION].copy_from_slice(&SEAL_OPTION);
    out[LEN + OPTION..SEALED_LEN].fill(0);
}

/// Writes the session and number into a packet with room for a seal.
pub fn write_seal(packet: &mut [u8], seal: Seal) {
    packet[LEN + OPTION..][..8].copy_from_slice(&seal.session.to_be_bytes());
    packet[LEN + OPTION + 8..][..8].copy_from_slice(&seal.sequence.to_be_bytes());
}

/// The seal of a packet that is laid out exactly as [`encode_sealed`] does; its tag is not checked.
pub fn read_seal(packet: &[u8]) -> Option<Seal> {
    let head = packet.first_chunk::<SEALED_LEN>()?;
    let is_sealed = head[..2] == [((OPTION + SEAL) / 4) as u8, CRITICAL] && head[LEN..LEN + OPTION] == SEAL_OPTION;
    let number = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let seal = Seal { session: number(LEN + OPTION)?, sequence: number(LEN + OPTION + 8)? };
    is_sealed.then_some(seal)
}

/// A control packet with `body`.
pub fn encode_control(body: &[u8; CONTROL_BODY]) -> [u8; CONTROL_LEN] {
    let mut packet = [0; CONTROL_LEN];
    packet[..2].copy_from_slice(&[((OPTION + CONTROL_BODY) / 4) as u8, CONTROL | CRITICAL]);
    packet[LEN..LEN + OPTION].copy_from_slice(&CONTROL_OPTION);
    packet[LEN + OPTION..].copy_from_slice(body);
    packet
}

/// The body of the control packet `packet`; none if it does not have exactly that layout.
pub fn decode_control(packet: &[u8]) -> Option<&[u8; CONTROL_BODY]> {
    let (head, body) = packet.split_at_checked(LEN + OPTION)?;
    let body = body.try_into().ok()?;
    (*head == encode_control(body)[..LEN + OPTION]).then_some(body)
}

/// Removes the header and its options. Returns the tenant network and the packet in the tunnel.
pub fn decode(bytes: &[u8]) -> Result<(Vni, &[u8]), Malformed> {
    let mut reader = Reader::new(bytes);
    let [first, flags] = reader.take::<2>()?;
    let protocol = reader.u16()?;
    let vni = Vni(reader.u24()?);
    reader.u8()?;
    if first & VERSION_MASK != 0 {
        return Err(Malformed::Version);
    }
    // RFC 8926 3.4: control packets are not forwarded, and a receiver that reads no options drops a packet with critical ones.
    if flags & CONTROL != 0 {
        return Err(Malformed::Protocol);
    }
    if flags & CRITICAL != 0 && read_seal(bytes).is_none() {
        return Err(Malformed::Options);
    }
    let options = usize::from(first & OPTIONS_MASK) * 4;
    let inner = reader.rest().get(options..).ok_or(Malformed::TooShort)?;
    match (protocol, inner.first().map(|byte| byte >> 4)) {
        (_, None) => Err(Malformed::TooShort),
        (IPV4, Some(4)) | (IPV6, Some(6)) => Ok((vni, inner)),
        _ => Err(Malformed::Protocol),
    }
}

const VERSION_MASK: u8 = 0xc0;
/// The length of the options, in units of four bytes.
const OPTIONS_MASK: u8 = 0x3f;
const CONTROL: u8 = 0x80;
const CRITICAL: u8 = 0x40;
/// Bytes of an option's header.
const OPTION: usize = 4;
/// Bytes of the seal: session, number, tag.
const SEAL: usize = 32;
/// The headers of the options: one of the classes for experiments (RFC 8926 7), types with the critical bit, lengths.
const SEAL_OPTION: [u8; OPTION] = [0xff, 0x6d, 0x81, (SEAL / 4) as u8];
const CONTROL_OPTION: [u8; OPTION] = [0xff, 0x6d, 0x82, (CONTROL_BODY / 4) as u8];
const IPV4: u16 = 0x0800;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INNER: [u8; 4] = [0x45, 1, 2, 3];

    fn packet(options: &[u8], inner: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xee; LEN];
        encode(Vni(0x12_3456), inner[0] >> 4 == 6, &mut packet);
        packet[0] = (options.len() / 4) as u8;
        packet.extend_from_slice(options);
        packet.extend_from_slice(inner);
        packet
    }

    #[test]
    fn the_header_is_what_others_send() {
        assert_eq!(packet(&[], &INNER)[..LEN], [0, 0, 0x08, 0x00, 0x12, 0x34, 0x56, 0]);
        assert_eq!(packet(&[], &[0x60])[..LEN], [0, 0, 0x86, 0xdd, 0x12, 0x34, 0x56, 0]);
    }

    #[test]
    fn options_are_skipped_unless_they_must_be_understood() {
        for words in 0..64 {
            let mut packet = packet(&vec![0xaa; words * 4], &INNER);
            assert_eq!(decode(&packet), Ok((Vni(0x12_3456), &INNER[..])));
            assert_eq!(decode(&packet[..LEN + words * 4]), Err(Malformed::TooShort));
            packet[1] |= CRITICAL;
            assert_eq!(decode(&packet), Err(Malformed::Options));
        }
    }

    #[test]
    fn what_carries_no_ip_packet_is_refused() {
        let good = packet(&[], &INNER);
        let cases = [
            (0, 0x40, Malformed::Version),
            (1, CONTROL, Malformed::Protocol),
            (2, 0x65, Malformed::Protocol),
            (8, 0x60, Malformed::Protocol),
        ];
        for (at, byte, why) in cases {
            let mut packet = good.clone();
            packet[at] = byte;
            assert_eq!(decode(&packet), Err(why), "{byte:#x} at {at}");
        }
    }

    fn sealed() -> Vec<u8> {
        let mut packet = vec![0xee; SEALED_LEN];
        encode_sealed(Vni(0x12_3456), false, &mut packet);
        packet.extend_from_slice(&INNER);
        packet
    }

    #[test]
    fn a_seal_is_the_one_critical_option_that_is_understood() {
        let mut packet = sealed();
        assert_eq!(decode(&packet), Ok((Vni(0x12_3456), &INNER[..])));
        assert_eq!(read_seal(&packet), Some(Seal { session: 0, sequence: 0 }));
        let seal = Seal { session: 0x0102_0304_0506_0708, sequence: u64::MAX - 1 };
        write_seal(&mut packet, seal);
        assert_eq!(read_seal(&packet), Some(seal));
        assert!(packet[TAG].iter().all(|byte| *byte == 0));
        for at in [0, 1, 8, 9, 10, 11] {
            let mut other = packet.clone();
            other[at] ^= 1 << 1;
            assert_eq!(read_seal(&other), None, "byte {at}");
        }
        assert_eq!(read_seal(&packet[..SEALED_LEN - 1]), None);
    }

    #[test]
    fn control_packets_come_back_as_they_were_made_and_are_no_ip_packets() {
        let body: [u8; CONTROL_BODY] = std::array::from_fn(|i| i as u8);
        let packet = encode_control(&body);
        assert_eq!(decode_control(&packet), Some(&body));
        assert_eq!((decode(&packet), read_seal(&packet)), (Err(Malformed::Protocol), None));
        for at in 0..LEN + OPTION {
            let mut other = packet;
            other[at] ^= 0x10;
            assert_eq!(decode_control(&other), None, "byte {at}");
        }
        assert_eq!(decode_control(&packet[..CONTROL_LEN - 1]), None);
        assert_eq!(decode_control(&[&packet[..], &[0]].concat()), None);
        assert_eq!(decode_control(&sealed()), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let _ = (read_seal(&bytes), decode_control(&bytes));
        }
    }
}
