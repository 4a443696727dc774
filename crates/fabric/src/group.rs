//! Security groups: which endpoints may connect to which.
//!
//! Between networks nothing is allowed, whatever the groups say. Within a network an endpoint that is in no group is open to all;
//! one that is in groups takes connections only from, and makes them only to, whom a rule of one of its groups names. Rules are
//! stateful: they are about who begins a connection, and an established one carries both directions.

use crate::invalid::{InvalidField, Validate, require, require_range};
use crate::{Endpoint, Name};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Endpoints of a network, and rules about their connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroup {
    /// Its name, unique on its network.
    pub name: Name,
    /// The network.
    pub network: Name,
    /// Names of the endpoints that are in it.
    #[serde(default)]
    pub members: BTreeSet<Name>,
    /// Those who may connect to its members.
    #[serde(default)]
    pub allow_from: Vec<Rule>,
    /// Those whom its members may connect to.
    #[serde(default)]
    pub allow_to: Vec<Rule>,
    /// Whether the rules of its members hold for IP on their interfaces (TCP, UDP and others), too, and not for RDMA only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub covers_ip: bool,
}

/// A rule of a group. As text: the other side, and the ports of rdma_cm if only some are meant, as in `group/web@7471` or
/// `10.7.0.0/24@7000-7999`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Rule {
    /// The other side.
    pub peer: Counterpart,
    /// First and last port of the side that is connected to; none: all.
    pub ports: Option<(u16, u16)>,
}

/// The other side of a connection, in a rule. As text: `any`, `group/NAME`, `endpoint/NAME` or a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counterpart {
    /// All: every endpoint of the network, and external peers.
    Any,
    /// The members of a group of the network.
    Group(Name),
    /// One endpoint of the network.
    Endpoint(Name),
    /// Everyone with an address in a range, external peers too.
    Range(IpNet),
}

/// Error of a text that is not a [`Rule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rule: it is any, group/NAME, endpoint/NAME or ADDRESS/LENGTH, and @PORT or @FIRST-LAST behind it"
)]
pub struct InvalidRule(String);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The security groups of a network, with the addresses of the endpoints of other hosts that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkGroups {
    /// The groups, by name.
    pub groups: Vec<SecurityGroup>,
    /// Addresses of endpoints of other hosts, by name.
    #[serde(default)]
    pub addresses: BTreeMap<Name, Vec<IpAddr>>,
}

impl NetworkGroups {
    /// `groups`, with the addresses of those of `others` that they name.
    pub fn new<'a>(groups: Vec<SecurityGroup>, others: impl IntoIterator<Item = &'a Endpoint>) -> Self {
        let named = |endpoint: &&Endpoint| groups.iter().any(|group| group.mentions(&endpoint.name));
        let addresses = others.into_iter().filter(named);
        let addresses = addresses.map(|endpoint| (endpoint.name.clone(), endpoint.addresses.clone())).collect();
        Self { groups, addresses }
    }

    /// The name that another host's endpoint with this address has there, if the groups name it.
    pub fn name_of(&self, address: IpAddr) -> Option<&Name> {
        self.addresses.iter().find(|(_, addresses)| addresses.contains(&address)).map(|(name, _)| name)
    }
}

impl SecurityGroup {
    /// Whether it names an endpoint, as a member or in a rule.
    fn mentions(&self, name: &Name) -> bool {
        let is_meant = |rule: &Rule| matches!(&rule.peer, Counterpart::Endpoint(endpoint) if endpoint == name);
        self.members.contains(name) || self.allow_from.iter().chain(&self.allow_to).any(is_meant)
    }
}

impl Validate for SecurityGroup {
    fn validate(&self) -> Result<(), InvalidField> {
        for (field, rules) in [("allow_from", &self.allow_from), ("allow_to", &self.allow_to)] {
            require(rules.len() <= MAX_RULES, field, format_args!("must have at most {MAX_RULES} rules"))?;
            for (index, rule) in rules.iter().enumerate() {
                let field = format!("{field}[{index}]");
                let ports = rule.ports.unwrap_or_default();
                require(ports.0 <= ports.1, &field, "must have its first port before its last")?;
                if let Counterpart::Range(range) = rule.peer {
                    // One endpoint's address is a range too.
                    let is_host = range.prefix_len() == range.max_prefix_len();
                    if is_host { Ok(()) } else { require_range(&field, range) }?;
                }
            }
        }
        Ok(())
    }
}

impl Rule {
    /// The ports that it allows.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.ports.map_or(0..=u16::MAX, |(first, last)| first..=last)
    }
}

impl From<Counterpart> for Rule {
    fn from(peer: Counterpart) -> Self {
        Self { peer, ports: None }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            Counterpart::Any => write!(f, "any"),
            Counterpart::Group(name) => write!(f, "group/{name}"),
            Counterpart::Endpoint(name) => write!(f, "endpoint/{name}"),
            Counterpart::Range(range) => write!(f, "{range}"),
        }?;
        match self.ports {
            None => Ok(()),
            Some((first, last)) if first == last => write!(f, "@{first}"),
            Some((first, last)) => write!(f, "@{first}-{last}"),
        }
    }
}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let invalid = || InvalidRule(text.to_owned());
        let (peer, ports) = text.split_once('@').map_or((text, None), |(peer, ports)| (peer, Some(ports)));
        let ports = ports.map(|ports| {
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            Ok((first.parse().map_err(|_| invalid())?, last.parse().map_err(|_| invalid())?))
        });
        let name = |name: &str| name.parse::<Name>().map_err(|_| invalid());
        let peer = match peer.split_once('/') {
            None if peer == "any" => Counterpart::Any,
            None => Counterpart::Range(IpNet::from(peer.parse::<IpAddr>().map_err(|_| invalid())?)),
            Some(("group", group)) => Counterpart::Group(name(group)?),
            Some(("endpoint", endpoint)) => Counterpart::Endpoint(name(endpoint)?),
            Some(_) => Counterpart::Range(peer.parse().map_err(|_| invalid())?),
        };
        Ok(Self { peer, ports: ports.transpose()? })
    }
}

impl TryFrom<String> for Rule {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Self, InvalidRule> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

/// The groups of a network, with what they say of single endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a>(&'a [SecurityGroup]);

impl<'a> Groups<'a> {
    /// `groups` of one network.
    pub fn new(groups: &'a [SecurityGroup]) -> Self {
        Self(groups)
    }

    /// The groups that the endpoint `name` is in.
    pub fn of(&self, name: &Name) -> impl Iterator<Item = &'a SecurityGroup> {
        self.0.iter().filter(|group| group.members.contains(name))
    }

    /// All that the rules name, once each.
    pub fn counterparts(&self) -> BTreeSet<&'a Counterpart> {
        self.0.iter().flat_map(|group| group.allow_from.iter().chain(&group.allow_to)).map(|rule| &rule.peer).collect()
    }

    /// Whether a rule's other side is the endpoint `name` with these addresses.
    pub fn names(&self, peer: &Counterpart, name: &Name, addresses: &[IpAddr]) -> bool {
        match peer {
            Counterpart::Any => true,
            Counterpart::Group(group) => self.of(name).any(|own| own.name == *group),
            Counterpart::Endpoint(endpoint) => endpoint == name,
            Counterpart::Range(range) => addresses.iter().any(|address| range.contains(address)),
        }
    }
}

const MAX_RULES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> SecurityGroup {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_rule_is_its_text() {
        for text in ["any", "any@18515", "group/web@7471", "endpoint/db@7000-7999", "10.7.0.0/24", "fd00::/64@1-2"] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(serde_json::to_value(&rule).unwrap(), text);
        }
        assert_eq!("10.7.0.2".parse::<Rule>().unwrap().to_string(), "10.7.0.2/32");
        for text in ["", "all", "web", "group/", "group/a/b", "any@", "any@70000", "any@1-", "10.7.0.0/33", "host/a"] {
            assert_eq!(text.parse::<Rule>(), Err(InvalidRule(text.to_owned())));
        }
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_named() {
        let error = |rules: &str| {
            let group = group(&format!(r#"{{"name": "g", "network": "blue", "allow_from": [{rules}]}}"#));
            group.validate().map_err(|error| error.to_string())
        };
        let range = error(r#""any", "10.7.0.1/24""#);
        assert_eq!(range.unwrap_err(), "`allow_from[1]`: 10.7.0.1/24 must begin at 10.7.0.0/24");
        assert_eq!(error(r#""any@9-8""#).unwrap_err(), "`allow_from[0]`: must have its first port before its last");
        assert_eq!(error(r#""10.7.0.1/32", "any@9-9""#), Ok(()));
    }

    #[test]
    fn rules_name_endpoints_by_group_name_and_address() {
        let groups = [
            group(r#"{"name": "web", "network": "blue", "members": ["a", "b"]}"#),
            group(r#"{"name": "db", "network": "blue", "members": ["b"], "allow_from": ["group/web", "10.7.0.0/30"]}"#),
        ];
        let groups = Groups::new(&groups);
        let name = |text: &str| text.parse::<Name>().unwrap();
        assert_eq!(groups.of(&name("b")).count(), 2);
        assert_eq!(groups.counterparts().len(), 2);
        let names = |rule: &str, endpoint: &str, address: &str| {
            let rule: Rule = rule.parse().unwrap();
            groups.names(&rule.peer, &name(endpoint), &[address.parse().unwrap()])
        };
        assert!(
            names("any", "c", "10.7.0.9") && names("group/web", "a", "10.7.0.9") && names("endpoint/c", "c", "::1")
        );
        assert!(names("10.7.0.0/30", "c", "10.7.0.2") && !names("10.7.0.0/30", "c", "10.7.0.4"));
        assert!(!names("group/db", "a", "10.7.0.2") && !names("endpoint/c", "a", "10.7.0.2"));
    }
}
