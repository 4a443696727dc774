//! IPv4, IPv6 and UDP headers around a packet (IBA annex A17.3).

use super::Malformed;
use super::bytes::Reader;
use core::net::Ipv4Addr;
use rdmesh_verbs::Gid;

/// UDP port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// The IP and UDP headers of a RoCEv2 packet: IPv4 without options, not to be fragmented, if both addresses are IPv4
/// ones, else IPv6. The UDP checksum is sent as zero and not looked at: the invariant CRC covers more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpUdp {
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub dest: Gid,
    /// DSCP and, in the low two bits, ECN.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 with IPv4.
    pub flow_label: u32,
    /// IPv4 identification; 0 with IPv6.
    pub id: u16,
    /// UDP source port. The destination port is [`ROCE_PORT`].
    pub source_port: u16,
}

impl IpUdp {
    /// Bytes of both headers.
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub fn len(&self) -> usize {
        if self.ipv4().is_some() { IPV4 + UDP } else { IPV6 + UDP }
    }

    /// Writes [`IpUdp::len`] bytes to `out`, which must have room for them, to precede `udp_payload_len` bytes.
    pub fn encode(&self, udp_payload_len: usize, out: &mut [u8]) {
        let udp_len = UDP + udp_payload_len;
        let udp = if let Some((source, dest)) = self.ipv4() {
            let (ip, udp) = out.split_at_mut(IPV4);
            let checksum = !internet_sum(&self.ipv4_header(source, dest, 0, udp_len));
            ip.copy_from_slice(&self.ipv4_header(source, dest, checksum, udp_len));
            udp
        } else {
            let (ip, udp) = out.split_at_mut(IPV6);
            ip.copy_from_slice(&self.ipv6_header(udp_len));
            udp
        };
        debug_assert!(UDP + udp_len <= usize::from(u16::MAX), "no datagram is that long");
        udp[..UDP].copy_from_slice(&self.udp_header(udp_len));
    }

    /// Reads both headers. Returns the UDP payload too, without what may follow the packet.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => Self::decode_ipv4(bytes),
            Some(6) => Self::decode_ipv6(bytes),
            Some(_) => Err(Malformed::Version),
            None => Err(Malformed::TooShort),
        }
    }

    fn decode_ipv4(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = bytes.split_first_chunk::<IPV4>().ok_or(Malformed::TooShort)?;
        let mut reader = Reader::new(header);
        let [version, traffic_class] = reader.take()?;
        let (total, id, fragment) = (usize::from(reader.u16()?), reader.u16()?, reader.u16()?);
        let [hop_limit, protocol, _, _] = reader.take()?;
        let [source, dest] =
            [reader.take::<4>()?, reader.take::<4>()?].map(|ip| Gid::from_ip(Ipv4Addr::from(ip).into()));
        if version != IPV4_NO_OPTIONS {
            return Err(Malformed::Options);
        }
        if internet_sum(header) != 0xffff {
            return Err(Malformed::Checksum);
        }
        // Of the flags only DF: the invariant CRC covers them, and every sender of RoCEv2 sets it (IBA annex A17.3.1.1).
        if fragment != DONT_FRAGMENT {
            return Err(Malformed::Fragment);
        }
        if protocol != PROTOCOL_UDP {
            return Err(Malformed::Protocol);
        }
        let len = total.checked_sub(IPV4).ok_or(Malformed::Length)?;
        let (source_port, payload) = decode_udp(rest, len)?;
        Ok((Self { source, dest, traffic_class, hop_limit, flow_label: 0, id, source_port }, payload))
    }

    fn decode_ipv6(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = bytes.split_first_chunk::<IPV6>().ok_or(Malformed::TooShort)?;
        let mut reader = Reader::new(header);
        let (first, len) = (reader.u32()?, usize::from(reader.u16()?));
        let [protocol, hop_limit] = reader.take()?;
        let [source, dest] = [Gid(reader.take()?), Gid(reader.take()?)];
        if protocol != PROTOCOL_UDP {
            return Err(Malformed::Protocol);
        }
        // RFC 4291 2.5.5.2: such addresses stand for IPv4 nodes; as IPv6 addresses they would be taken for them.
        if source.as_ipv4().is_some() || dest.as_ipv4().is_some() {
            return Err(Malformed::Address);
        }
        let (source_port, payload) = decode_udp(rest, len)?;
        let (traffic_class, flow_label) = ((first >> 20) as u8, first & FLOW_LABEL_MASK);
        Ok((Self { source, dest, traffic_class, hop_limit, flow_label, id: 0, source_port }, payload))
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.ipv4().is_some()
    }

    /// The addresses, if both are IPv4 ones.
    fn ipv4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        self.source.as_ipv4().zip(self.dest.as_ipv4())
    }

    fn ipv4_header(&self, source: Ipv4Addr, dest: Ipv4Addr, checksum: u16, udp_len: usize) -> [u8; IPV4] {
        let mut header = [0; IPV4];
        header[0] = IPV4_NO_OPTIONS;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&((IPV4 + udp_len) as u16).to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        header[8] = self.hop_limit;
        header[9] = PROTOCOL_UDP;
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header[12..16].copy_from_slice(&source.octets());
        header[16..20].copy_from_slice(&dest.octets());
        header
    }

    fn ipv6_header(&self, udp_len: usize) -> [u8; IPV6] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL_MASK;
        let mut header = [0; IPV6];
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        header[6] = PROTOCOL_UDP;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.0);
        header[24..].copy_from_slice(&self.dest.0);
        header
    }

    fn udp_header(&self, udp_len: usize) -> [u8; UDP] {
        let ([a, b], [c, d], [e, f]) =
            (self.source_port.to_be_bytes(), ROCE_PORT.to_be_bytes(), (udp_len as u16).to_be_bytes());
        [a, b, c, d, e, f, 0, 0]
    }

    /// Writes the headers as the invariant CRC sees them, with ones where routers may write (IBA annex A17.3.3), and
    /// returns their length.
    #[inline]
    pub(super) fn invariant(&self, udp_payload_len: usize, out: &mut [u8]) -> usize {
        let udp_len = UDP + udp_payload_len;
        let masked = Self { traffic_class: 0xff, hop_limit: 0xff, flow_label: FLOW_LABEL_MASK, ..*self };
        let at = if let Some((source, dest)) = self.ipv4() {
            out[..IPV4].copy_from_slice(&masked.ipv4_header(source, dest, 0xffff, udp_len));
            IPV4
        } else {
            out[..IPV6].copy_from_slice(&masked.ipv6_header(udp_len));
            IPV6
        };
        out[at..at + UDP].copy_from_slice(&self.udp_header(udp_len));
        out[at + 6..at + UDP].copy_from_slice(&[0xff; 2]);
        at + UDP
    }
}

/// The source port and the payload of a UDP datagram of `len` bytes, header included.
fn decode_udp(bytes: &[u8], len: usize) -> Result<(u16, &[u8]), Malformed> {
    let mut reader = Reader::new(bytes.get(..len).ok_or(Malformed::TooShort)?);
    let (source_port, dest_port) = (reader.u16()?, reader.u16()?);
    if dest_port != ROCE_PORT {
        return Err(Malformed::Port);
    }
    if usize::from(reader.u16()?) != len {
        return Err(Malformed::Length);
    }
    reader.u16()?;
    Ok((source_port, reader.rest()))
}

/// The ones' complement sum of an IPv4 header (RFC 1071).
fn internet_sum(header: &[u8; IPV4]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    ((folded >> 16) + folded) as u16
}

/// Bytes of the headers at most.
pub(super) const MAX: usize = IPV6 + UDP;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Version 4, five words of header.
const IPV4_NO_OPTIONS: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
const PROTOCOL_UDP: u8 = 17;
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

#[cfg(test)]
mod tests;
