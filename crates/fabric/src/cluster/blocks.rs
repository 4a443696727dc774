//! Blocks of addresses: the parts of a network's range that hosts give addresses from.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of at most 64 addresses, whose place follows from the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    range: IpNet,
    first: u128,
    bits: u8,
}

impl Block {
    /// The block of `range` that `address` lies in.
    pub(super) fn of(range: IpNet, address: IpAddr) -> Self {
        let bits = block_bits(range);
        Self { range, first: number(address) >> bits << bits, bits }
    }

    /// All blocks of a range, in order.
    pub(super) fn all(range: IpNet) -> impl Iterator<Item = Self> {
        let bits = block_bits(range);
        let last = number(range.broadcast());
        let step = 1_u128 << bits;
        let first = number(range.network());
        std::iter::successors(Some(first), move |first| first.checked_add(step).filter(|next| *next <= last))
            .map(move |first| Self { range, first, bits })
    }

    /// Its first address, by which it is known.
    pub(super) fn first(self) -> IpAddr {
        self.address(0)
    }

    pub(super) fn range(self) -> IpNet {
        self.range
    }

    /// Its addresses with their places in it.
    pub(super) fn addresses(self) -> impl Iterator<Item = (u32, IpAddr)> {
        (0..1 << self.bits).map(move |place| (place, self.address(place)))
    }

    /// The place of an address in it.
    pub(super) fn place(self, address: IpAddr) -> Option<u32> {
        if !self.range.contains(&address) {
            return None;
        }
        let place = number(address).checked_sub(self.first)?;
        (place < 1 << self.bits).then_some(place as u32)
    }

    /// Places whose addresses no endpoint gets by itself: the range's first, the gateway's, and in IPv4 the last.
    pub(super) fn reserved(self) -> u64 {
        let is_reserved = |address: IpAddr| {
            let offset = number(address) - number(self.range.network());
            offset < 2 || (address.is_ipv4() && address == self.range.broadcast())
        };
        let in_use = self.addresses().filter(|(_, address)| is_reserved(*address));
        let beyond = if self.bits == 6 { 0 } else { u64::MAX << (1 << self.bits) };
        in_use.fold(beyond, |set, (place, _)| set | 1 << place)
    }

    fn address(self, place: u32) -> IpAddr {
        let number = self.first + u128::from(place);
        match self.range {
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// Whether an endpoint may have `address`, if it asks for it: a gateway's is possible then.
pub(super) fn is_host_address(range: IpNet, address: IpAddr) -> bool {
    let is_last = address.is_ipv4() && address == range.broadcast();
    range.contains(&address) && address != range.network() && !is_last
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// A /16 has 1024 blocks of 64, a /24 32 blocks of 8: about as many hosts as each of them has endpoints, up to a word of places.
fn block_bits(range: IpNet) -> u8 {
    let host_bits = range.max_prefix_len() - range.prefix_len();
    (host_bits.saturating_sub(1) / 2).min(6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(range: &str) -> Vec<Block> {
        Block::all(range.parse().unwrap()).take(2000).collect()
    }

    #[test]
    fn blocks_cover_a_range_without_overlap() {
        for (range, count, size) in [("10.7.0.0/16", 1024, 64), ("10.7.0.0/24", 32, 8), ("10.7.0.0/30", 4, 1)] {
            let blocks = blocks(range);
            assert_eq!(blocks.len(), count, "{range}");
            let addresses: Vec<IpAddr> = blocks.iter().flat_map(|b| b.addresses()).map(|(_, a)| a).collect();
            assert!(addresses.is_sorted_by(|a, b| a < b) && addresses.len() == count * size, "{range}");
            for block in &blocks {
                for (place, address) in block.addresses() {
                    assert_eq!((Block::of(block.range, address), block.place(address)), (*block, Some(place)));
                }
            }
        }
        let last = blocks("255.255.255.0/24").pop().unwrap();
        assert_eq!(last.addresses().last().unwrap().1.to_string(), "255.255.255.255");
        assert_eq!(blocks("fd00::/64")[1].first().to_string(), "fd00::40");
    }

    #[test]
    fn network_gateway_and_broadcast_are_reserved() {
        let blocks = blocks("10.7.0.0/24");
        assert_eq!((blocks[0].reserved(), blocks[1].reserved()), (!0xff | 0b11, !0xff));
        assert_eq!(blocks[31].reserved(), !0xff | 1 << 7);
        let range = "10.7.0.0/24".parse().unwrap();
        let asked = |address: &str| is_host_address(range, address.parse().unwrap());
        assert!(asked("10.7.0.1") && !asked("10.7.0.0") && !asked("10.7.0.255") && !asked("10.8.0.1"));
    }
}
