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
use std::collections::BTreeSet;

/// Endpoints of a network, and rules about their connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroup {
    /// Its name, unique on its network.
    pub name: Name,
    /// The network.
    pub network: Name,
    /// Names of the endpoints that are in it.
    pub members: BTreeSet<Name>,
    /// Those who may connect to its members.
    #[serde(default)]
    pub allow_from: Vec<Counterpart>,
    /// Those whom its members may connect to.
    #[serde(default)]
    pub allow_to: Vec<Counterpart>,
}

/// The other side of a connection, in a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Counterpart {
    /// Every endpoint of the network.
    Any,
    /// The members of a group of the network.
    Group(Name),
    /// One endpoint of the network.
    Endpoint(Name),
    /// Every endpoint of the network with an address in a range.
    Range(#[schemars(with = "String")] IpNet),
}

impl Validate for SecurityGroup {
    fn validate(&self) -> Result<(), InvalidField> {
        for (field, rules) in [("allow_from", &self.allow_from), ("allow_to", &self.allow_to)] {
            require(rules.len() <= MAX_RULES, field, format_args!("must have at most {MAX_RULES} rules"))?;
            for (index, rule) in rules.iter().enumerate() {
                if let Counterpart::Range(range) = rule {
                    // One endpoint's address is a range too.
                    let is_host = range.prefix_len() == range.max_prefix_len();
                    let field = format!("{field}[{index}].range");
                    if is_host { Ok(()) } else { require_range(&field, *range) }?;
                }
            }
        }
        Ok(())
    }
}

/// All security groups of a network.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a>(&'a [SecurityGroup]);

impl<'a> Groups<'a> {
    /// The rules of `groups`, which may be of several networks.
    pub fn new(groups: &'a [SecurityGroup]) -> Self {
        Self(groups)
    }

    /// Whether `from` may begin a connection to `to`.
    pub fn may_connect(&self, from: &Endpoint, to: &Endpoint) -> bool {
        from.network == to.network
            && self.allows(from, to, |group| &group.allow_to)
            && self.allows(to, from, |group| &group.allow_from)
    }

    /// Whether a rule of the groups of `own`, if it is in any, names `other`.
    fn allows(&self, own: &Endpoint, other: &Endpoint, rules: impl Fn(&SecurityGroup) -> &Vec<Counterpart>) -> bool {
        let mut groups = self.of(own).peekable();
        groups.peek().is_none() || groups.any(|group| rules(group).iter().any(|rule| self.names(rule, other)))
    }

    fn of(&self, endpoint: &Endpoint) -> impl Iterator<Item = &'a SecurityGroup> {
        let is_in =
            |group: &&SecurityGroup| group.network == endpoint.network && group.members.contains(&endpoint.name);
        self.0.iter().filter(is_in)
    }

    fn names(&self, rule: &Counterpart, endpoint: &Endpoint) -> bool {
        match rule {
            Counterpart::Any => true,
            Counterpart::Group(name) => self.of(endpoint).any(|group| group.name == *name),
            Counterpart::Endpoint(name) => endpoint.name == *name,
            Counterpart::Range(range) => endpoint.addresses.iter().any(|address| range.contains(address)),
        }
    }
}

const MAX_RULES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InterfaceName, Isolation, Quota};

    fn endpoint(network: &str, name: &str, address: &str) -> Endpoint {
        Endpoint {
            name: name.parse().unwrap(),
            network: network.parse().unwrap(),
            host: "here".parse().unwrap(),
            addresses: vec![address.parse().unwrap()],
            quota: Quota::default(),
            allowed_uid: None,
            owner_pid: None,
            isolation: Isolation::None,
            interface: InterfaceName::default(),
        }
    }

    fn group(name: &str, members: &[&str], from: &[Counterpart], to: &[Counterpart]) -> SecurityGroup {
        SecurityGroup {
            name: name.parse().unwrap(),
            network: "blue".parse().unwrap(),
            members: members.iter().map(|name| name.parse().unwrap()).collect(),
            allow_from: from.to_vec(),
            allow_to: to.to_vec(),
        }
    }

    #[test]
    fn rules_are_about_who_begins_within_one_network() {
        let (web, db, other) = (
            endpoint("blue", "web", "10.7.0.2"),
            endpoint("blue", "db", "10.7.0.3"),
            endpoint("blue", "o", "10.7.0.9"),
        );
        let stranger = endpoint("red", "web", "10.7.0.2");
        assert!(Groups::new(&[]).may_connect(&web, &db) && !Groups::new(&[]).may_connect(&stranger, &db));
        let groups = [
            group("front", &["web"], &[Counterpart::Any], &[Counterpart::Group("store".parse().unwrap())]),
            group("store", &["db"], &[Counterpart::Range("10.7.0.0/30".parse().unwrap())], &[]),
        ];
        let groups = Groups::new(&groups);
        assert!(groups.may_connect(&web, &db), "both sides allow it");
        assert!(!groups.may_connect(&db, &web), "db may begin nothing");
        assert!(!groups.may_connect(&other, &db), "not in the range");
        assert!(groups.may_connect(&other, &web) && !groups.may_connect(&web, &other));
        assert!(!groups.may_connect(&stranger, &web), "networks are apart");
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_named() {
        let bad = group("g", &[], &[Counterpart::Any, Counterpart::Range("10.7.0.1/24".parse().unwrap())], &[]);
        let error = bad.validate().unwrap_err();
        assert_eq!(error.to_string(), "`allow_from[1].range`: 10.7.0.1/24 must begin at 10.7.0.0/24");
        let single = group("g", &[], &[Counterpart::Range("10.7.0.1/32".parse().unwrap())], &[]);
        assert_eq!(single.validate(), Ok(()));
    }
}
