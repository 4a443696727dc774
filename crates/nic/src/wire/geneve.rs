//! The tunnel between routers: Geneve (RFC 8926) around complete IP packets.

use super::Malformed;
use super::bytes::{Reader, u24};
use rdmesh_verbs::Vni;

/// Bytes of the header that [`encode`] writes.
pub const LEN: usize = 8;

/// Writes the header of an IPv6 or IPv4 packet to the first [`LEN`] bytes of `out`.
pub fn encode(vni: Vni, is_v6: bool, out: &mut [u8]) {
    let [protocol_high, protocol_low] = if is_v6 { IPV6 } else { IPV4 }.to_be_bytes();
    let [a, b, c] = u24(vni.0);
    out[..LEN].copy_from_slice(&[0, 0, protocol_high, protocol_low, a, b, c, 0]);
}

/// Takes the header and its options off. Returns the tenant network and the packet in the tunnel.
pub fn decode(bytes: &[u8]) -> Result<(Vni, &[u8]), Malformed> {
    let mut reader = Reader::new(bytes);
    let [first, flags] = reader.take::<2>()?;
    let protocol = reader.u16()?;
    let vni = Vni(reader.u24()?);
    reader.u8()?;
    if first & VERSION_MASK != 0 {
        return Err(Malformed::Version);
    }
    // RFC 8926 3.4: control packets are not forwarded, and who reads no options drops a packet with critical ones.
    if flags & CONTROL != 0 {
        return Err(Malformed::Protocol);
    }
    if flags & CRITICAL != 0 {
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
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

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

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
