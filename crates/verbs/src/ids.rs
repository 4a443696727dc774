//! Numbers and keys: QP numbers, PSNs, memory keys, GIDs.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest value, also the multicast destination QPN (IBA 10.5.1).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Keeps the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }

    /// The number itself.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Packet sequence number: 24-bit serial arithmetic (IBA 9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }

    /// The number itself.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `n` after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Distance from `other` up to this number, modulo 2^24.
    pub const fn after(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & 0xff_ffff
    }

    /// Signed distance from `other`; negative when behind it.
    pub const fn since(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A local or remote memory key (lkey, rkey): index in the high 24 bits, a changing tag in the low 8 (IBA 10.6.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub u32);

impl Key {
    /// The key's slot in its context's key table.
    pub const fn index(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// The 8 bits that change from one use of the slot to the next.
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// The key of slot `index` with `tag`.
    pub const fn from_parts(index: usize, tag: u8) -> Self {
        Self((index as u32) << 8 | tag as u32)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Queue key of a datagram QP (IBA 10.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Qkey(pub u32);

impl Qkey {
    /// A work request whose Q_Key has the high bit set uses the QP's own instead (IBA 10.2.5).
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Virtual network identifier of a tenant network, 24 bits (RFC 8926).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Vni(pub u32);

/// Global identifier of a port; for RoCEv2 an IP address (IBA annex A17.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address: IPv6 as it is, IPv4 mapped to `::ffff:a.b.c.d`.
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address that this GID stands for.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether the address is an IPv4 one.
    pub fn as_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether this names a multicast group.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }

    /// Whether this is the empty table entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.ip(), f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_order_wraps() {
        assert_eq!(Psn::new(2).since(Psn::new(0xff_fffe)), 4);
        assert_eq!(Psn::new(0xff_fffe).since(Psn::new(2)), -4);
        assert_eq!(Psn::new(0xff_ffff).add(1), Psn::new(0));
    }

    #[test]
    fn gid_of_ipv4_is_mapped() {
        let gid = Gid::from_ip("10.7.0.2".parse().unwrap());
        assert_eq!(gid.0[10..], [0xff, 0xff, 10, 7, 0, 2]);
        assert_eq!(gid.to_string(), "10.7.0.2");
    }
}
