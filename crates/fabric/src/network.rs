//! Tenant networks.

use crate::Name;
use crate::invalid::{InvalidField, Validate, require, require_range};
use crate::tenant::default_tenant;
use ipnet::{IpNet, Ipv4Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// Name of the network that endpoints join when none is named.
pub const DEFAULT_NETWORK: &str = "default";

/// A tenant network: endpoints reach each other within it and nothing outside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Network {
    /// Its name.
    pub name: Name,
    /// Its virtual network identifier (24 bits), unique.
    pub vni: u32,
    /// Its address ranges: at most one of each family. Ranges of different networks may overlap.
    #[schemars(with = "Vec<String>")]
    pub subnets: Vec<IpNet>,
    /// The tenant that it belongs to.
    #[serde(default = "default_tenant")]
    pub tenant: Name,
    /// The largest IP packet of its endpoints; none: what the hosts' underlay leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Whether all machines on it are endpoints in the cluster's store. Then nothing is asked for on other hosts, and broadcast and
    /// multicast IP stays on its host. A router finds that out by itself; the store says nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_complete: bool,
}

impl Network {
    /// The network `name` with `vni`, whose ranges hold `addresses`: the /24 (IPv6: /64) around each, or without
    /// addresses a /16 of its own in 10.0.0.0/8.
    pub fn around(name: Name, vni: u32, addresses: &[IpAddr]) -> Self {
        let mut subnets = Vec::new();
        for &address in addresses {
            let net = range_around(address);
            if !subnets.iter().any(|s: &IpNet| s.addr().is_ipv4() == address.is_ipv4()) {
                subnets.push(net);
            }
        }
        if subnets.is_empty() {
            subnets.push(range_for(vni));
        }
        Self { name, vni, subnets, tenant: default_tenant(), mtu: None, is_complete: false }
    }

    /// The name that an endpoint with `address`, first of its addresses, has where it was given none.
    pub fn name_for(address: IpAddr) -> Name {
        let text = match address {
            IpAddr::V4(v4) => v4.to_string().replace('.', "-"),
            // Networks have /64 ranges: the other half is unique in them.
            IpAddr::V6(v6) => format!("ip6-{:016x}", v6.to_bits() as u64),
        };
        Name::try_from(text).expect("digits and dashes are a name")
    }

    /// The range that `address` lies in.
    pub fn subnet_of(&self, address: IpAddr) -> Option<IpNet> {
        self.subnets.iter().copied().find(|s| s.contains(&address))
    }
}

impl Validate for Network {
    fn validate(&self) -> Result<(), InvalidField> {
        let range = format_args!("must be {DEFAULT_VNI} to {MAX_VNI}").to_string();
        require((DEFAULT_VNI..=MAX_VNI).contains(&self.vni), "vni", range)?;
        let of_family = |v4: bool| self.subnets.iter().filter(|range| range.addr().is_ipv4() == v4).count();
        let is_simple = !self.subnets.is_empty() && of_family(true) <= 1 && of_family(false) <= 1;
        require(is_simple, "subnets", "must have one range, or one of each family")?;
        for (index, range) in self.subnets.iter().enumerate() {
            require_range(&format!("subnets[{index}]"), *range)?;
        }
        let has_room = self.mtu.is_none_or(|mtu| mtu >= MIN_MTU);
        require(has_room, "mtu", format_args!("must be at least {MIN_MTU}, as IPv6 demands"))
    }
}

/// VNI of [`DEFAULT_NETWORK`]; others count up from here.
pub(crate) const DEFAULT_VNI: u32 = 1;
/// The largest VNI: 24 bits, all ones reserved.
pub(crate) const MAX_VNI: u32 = 0xff_fffe;

fn range_around(address: IpAddr) -> IpNet {
    let len = if address.is_ipv4() { 24 } else { 64 };
    IpNet::new(address, len).map_or(IpNet::from(address), |net| net.trunc())
}

/// 10.77.0.0/16 for the default network and the /16s after it for the next ones. After 10.255 it starts again: ranges
/// of different networks may be the same.
fn range_for(vni: u32) -> IpNet {
    let second = FIRST_RANGE + (vni - DEFAULT_VNI) % (256 - FIRST_RANGE);
    let base = Ipv4Addr::new(10, second as u8, 0, 0);
    IpNet::V4(Ipv4Net::new_assert(base, 16))
}

const FIRST_RANGE: u32 = 77;
/// RFC 8200, 5.
const MIN_MTU: u16 = 1280;

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(vni: u32, addresses: &[&str]) -> Vec<String> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let network = Network::around("n".parse().unwrap(), vni, &addresses);
        network.subnets.iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn ranges_follow_the_address_or_the_vni() {
        assert_eq!(subnets(1, &[]), ["10.77.0.0/16"]);
        assert_eq!(subnets(2, &[]), ["10.78.0.0/16"]);
        assert_eq!(subnets(180, &[]), ["10.77.0.0/16"]);
        assert_eq!(subnets(2, &["10.7.0.2"]), ["10.7.0.0/24"]);
        assert_eq!(subnets(2, &["10.7.0.2", "fd00::7"]), ["10.7.0.0/24", "fd00::/64"]);
    }
    #[test]
    fn a_network_that_cannot_be_is_refused_with_field_and_rule() {
        let network = |json: &str| {
            let network: Network = serde_json::from_str(&format!(r#"{{"name": "n", "tenant": "t", {json}}}"#)).unwrap();
            network.validate().map_err(|error| error.to_string())
        };
        assert_eq!(network(r#""vni": 7, "subnets": ["10.7.0.0/24", "fd00::/64"], "mtu": 1450"#), Ok(()));
        let cases = [
            (r#""vni": 0, "subnets": ["10.7.0.0/24"]"#, "`vni`: must be 1 to 16777214"),
            (r#""vni": 7, "subnets": []"#, "`subnets`: must have one range"),
            (r#""vni": 7, "subnets": ["10.7.0.0/24", "10.8.0.0/24"]"#, "`subnets`: must have one range"),
            (r#""vni": 7, "subnets": ["10.7.0.1/24"]"#, "`subnets[0]`: 10.7.0.1/24 must begin at 10.7.0.0/24"),
            (r#""vni": 7, "subnets": ["10.7.0.0/31"]"#, "`subnets[0]`: 10.7.0.0/31 must be a /30 or larger"),
            (r#""vni": 7, "subnets": ["224.0.0.0/8"]"#, "`subnets[0]`: 224.0.0.0 must be the address of one machine"),
            (r#""vni": 7, "subnets": ["10.7.0.0/24"], "mtu": 1000"#, "`mtu`: must be at least 1280"),
        ];
        for (json, error) in cases {
            let said = network(json).unwrap_err();
            assert!(said.starts_with(error), "{said}");
        }
    }
}
