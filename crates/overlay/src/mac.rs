//! Link-layer addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The link-layer address of an endpoint's interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// All zero: in a VXLAN device's table it stands for broadcast and unknown addresses.
    pub(crate) const ANY: Self = Self([0; 6]);

    /// That of every network's bridge, which sends no frames of its own.
    pub(crate) const BRIDGE: Self = Self([0x02, 0x5a, 0, 0, 0, 1]);

    /// That of an endpoint's interface whose own address a virtual machine has.
    pub(crate) const UPLINK: Self = Self([0x02, 0x5a, 0, 0, 0, 2]);

    /// The one that goes with `address`: a function of the address alone, locally administered, different for different
    /// IPv4 addresses.
    pub fn of(address: IpAddr) -> Self {
        let [a, b, c, d] = match address {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => fold(v6),
        };
        let prefix = if address.is_ipv4() { PREFIX_V4 } else { PREFIX_V6 };
        Self([prefix[0], prefix[1], a, b, c, d])
    }

    /// The address with these bytes, first on the wire first; none where they are not six.
    pub(crate) fn from_octets(octets: &[u8]) -> Option<Self> {
        octets.try_into().ok().map(Self)
    }

    /// The bytes, first on the wire first.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// The EUI-64 made from it (RFC 4291, appendix A), as in the link-local address that Linux gives the interface.
    pub fn eui64(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// The link-local IPv6 address that Linux gives the interface.
    pub fn link_local(self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[8..].copy_from_slice(&self.eui64());
        octets.into()
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// 32 bits of an IPv6 address: FNV-1a, so that addresses which differ in any byte rarely collide.
fn fold(address: Ipv6Addr) -> [u8; 4] {
    let hash =
        address.octets().iter().fold(0x811c_9dc5u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_be_bytes()
}

/// Locally administered (bit 1 of the first byte), unicast.
const PREFIX_V4: [u8; 2] = [0x02, 0x52];
const PREFIX_V6: [u8; 2] = [0x02, 0x56];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_address_is_that_of_the_kernel() {
        let mac = MacAddress::of("10.77.0.2".parse().unwrap());
        assert_eq!(mac.to_string(), "02:52:0a:4d:00:02");
        assert_eq!(mac.link_local().to_string(), "fe80::52:aff:fe4d:2");
    }
}
