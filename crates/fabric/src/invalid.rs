//! Validation of records: the field that is wrong, and the rule that it breaks.

use ipnet::IpNet;
use std::fmt::Display;
use std::net::IpAddr;

/// A record whose rules go beyond its types.
pub trait Validate {
    /// Checks all rules; the first one that is broken is the error.
    fn validate(&self) -> Result<(), InvalidField>;
}

/// A field of a record that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {rule}")]
pub struct InvalidField {
    field: String,
    rule: String,
}

impl InvalidField {
    pub(crate) fn new(field: impl Into<String>, rule: impl Display) -> Self {
        Self { field: field.into(), rule: rule.to_string() }
    }

    /// Path of the field, as in `rate.bits_per_second` or `subnets[1]`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The rule, as a requirement.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The same field as a part of `outer`.
    pub(crate) fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), rule: self.rule }
    }
}

/// Requires that `holds`.
pub(crate) fn require(holds: bool, field: &str, rule: impl Display) -> Result<(), InvalidField> {
    if holds { Ok(()) } else { Err(InvalidField::new(field, rule)) }
}

/// Requires at least one address, and at most one of each family.
pub(crate) fn require_one_of_each_family(field: &str, addresses: &[IpAddr]) -> Result<(), InvalidField> {
    require(!addresses.is_empty(), field, "must have an address")?;
    let of_family = |v4: bool| addresses.iter().filter(|address| address.is_ipv4() == v4).count();
    require(of_family(true) <= 1 && of_family(false) <= 1, field, "must have at most one address of each family")
}

/// Requires an address that a single machine can have.
pub(crate) fn require_unicast(field: &str, address: IpAddr) -> Result<(), InvalidField> {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let is_unicast = !address.is_unspecified() && !address.is_multicast() && !is_broadcast;
    require(is_unicast, field, format_args!("{address} must be the address of one machine"))
}

/// Requires a range that begins where its prefix does and has room for two machines and a gateway.
pub(crate) fn require_range(field: &str, range: IpNet) -> Result<(), InvalidField> {
    require(range == range.trunc(), field, format_args!("{range} must begin at {}", range.trunc()))?;
    let longest = range.max_prefix_len() - 2;
    require(range.prefix_len() <= longest, field, format_args!("{range} must be a /{longest} or larger"))?;
    require_unicast(field, range.addr()).or_else(|error| if range.prefix_len() == 0 { Ok(()) } else { Err(error) })
}
