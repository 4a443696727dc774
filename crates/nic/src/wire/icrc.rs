//! Invariant CRC (IBA 7.8.1, annex A17.3.3): it covers the bytes that no router changes, from the IP header to the padding.

use super::IpUdp;
use super::header::BTH;
pub use super::header::ICRC_LEN;
use super::ip;
use crc32fast::Hasher;

/// The CRC of a packet, as it follows the padding. `udp_payload` is all from the base transport header to the padding.
pub fn icrc(ip: &IpUdp, udp_payload: &[u8]) -> [u8; ICRC_LEN] {
    // One piece with the transport header: the CRC is fast on multiples of 16 bytes, which this is with IPv4.
    let mut headers = [0xff; LINK_HEADER + ip::MAX + BTH];
    let at = LINK_HEADER + ip.invariant(udp_payload.len() + ICRC_LEN, &mut headers[LINK_HEADER..]);
    let (bth, rest) = udp_payload.split_at(udp_payload.len().min(BTH));
    headers[at..at + bth.len()].copy_from_slice(bth);
    headers[at + CONGESTION] = 0xff;
    let mut hasher = Hasher::new();
    hasher.update(&headers[..at + bth.len()]);
    hasher.update(rest);
    hasher.finalize().to_le_bytes()
}

/// Whether the CRC at the end of a UDP payload is right.
pub fn check(ip: &IpUdp, udp_payload_with_icrc: &[u8]) -> bool {
    split(udp_payload_with_icrc).is_some_and(|(bytes, found)| icrc(ip, bytes) == found)
}

/// Finds the IPv4 identification, which the CRC covers and a UDP socket does not show, by the CRC itself.
///
/// The CRC is linear in the 16 unknown bits: `icrc(id) ^ icrc(0)` is `id · x^k` modulo the polynomial, where `k` depends on
/// the packet's length only. Multiplied by `x^-k`, 16 of 32 bits are the identification, and the others must be zero: they are
/// the check that is left.
#[derive(Clone, Debug)]
pub struct IdSolver {
    /// Inverses by bytes, as last computed.
    inverses: [(usize, u32); INVERSES],
}

impl IdSolver {
    /// A solver that has seen no packet.
    pub fn new() -> Self {
        Self { inverses: [(0, ONE); INVERSES] }
    }

    /// The identification with which the packet is right, if there is one: `ip.id` is ignored. IPv6 has none, which is 0 here.
    pub fn solve(&mut self, ip: &IpUdp, udp_payload_with_icrc: &[u8]) -> Option<u16> {
        let (bytes, found) = split(udp_payload_with_icrc)?;
        let ip = IpUdp { id: 0, ..*ip };
        let difference = u32::from_le_bytes(found) ^ u32::from_le_bytes(icrc(&ip, bytes));
        if difference == 0 {
            return Some(0);
        }
        if !ip.is_ipv4() {
            return None;
        }
        let from_id = ip.len() - ID + bytes.len();
        let id = multiply(self.inverse(from_id), difference);
        u16::try_from(id).ok().map(u16::swap_bytes)
    }

    fn inverse(&mut self, bytes: usize) -> u32 {
        let slot = &mut self.inverses[bytes / 4 % INVERSES];
        if slot.0 != bytes {
            *slot = (bytes, inverse(bytes));
        }
        slot.1
    }
}

impl Default for IdSolver {
    fn default() -> Self {
        Self::new()
    }
}

fn split(udp_payload_with_icrc: &[u8]) -> Option<(&[u8], [u8; ICRC_LEN])> {
    udp_payload_with_icrc.split_last_chunk().map(|(bytes, found)| (bytes, *found))
}

/// `x^(-8·bytes)`: the factor that removes that many bytes from the end of a message.
fn inverse(bytes: usize) -> u32 {
    let mut product = ONE;
    let mut power = (0..8).fold(ONE, |power, _| divide_by_x(power));
    let mut bytes = bytes;
    while bytes != 0 {
        if bytes & 1 != 0 {
            product = multiply(product, power);
        }
        power = multiply(power, power);
        bytes >>= 1;
    }
    product
}

/// The product modulo the polynomial. The highest bit is the coefficient of 1, the lowest that of `x^31`.
fn multiply(a: u32, b: u32) -> u32 {
    let mut multiple = a;
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= multiple & (b >> bit & 1).wrapping_neg();
        multiple = multiple >> 1 ^ POLYNOMIAL & (multiple & 1).wrapping_neg();
    }
    product
}

const fn divide_by_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
}

/// Bytes, all ones, that stand for the link's header (IBA annex A17.3.3).
const LINK_HEADER: usize = 8;
/// The byte of the base transport header that routers may change.
const CONGESTION: usize = 4;
/// Where the IPv4 header has the identification.
const ID: usize = 4;
/// The CRC's polynomial, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1, reflected.
const ONE: u32 = 0x8000_0000;
/// Lengths whose inverses are kept.
const INVERSES: usize = 32;

#[cfg(test)]
mod tests;
