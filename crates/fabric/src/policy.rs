//! Policies: quotas, rates, priority and weight of hosts, tenants and endpoints.

use crate::invalid::{InvalidField, Validate, require};
use crate::{Name, Quota};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Scope of a policy. As text: `host/a`, `tenant/blue`, `endpoint/network/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum PolicyScope {
    /// All that a host's endpoints do.
    Host(Name),
    /// All that the endpoints of a tenant do on one host.
    Tenant(Name),
    /// One endpoint.
    Endpoint {
        /// Its network.
        network: Name,
        /// Its name.
        name: Name,
    },
}

/// Error of a text that is not a [`PolicyScope`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the scope of a policy: it is host/NAME, tenant/NAME or endpoint/NETWORK/NAME")]
pub struct InvalidScope(String);

/// Limits and share of a scope. What is left out is decided by the scope around it, and without one by the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Limits on the objects of each endpoint's programs.
    pub quota: Option<Quota>,
    /// Rate of the scope as a whole.
    pub rate: Option<Rate>,
    /// Rate of each queue pair in it.
    pub qp_rate: Option<Rate>,
    /// Class in which it is scheduled.
    pub priority: Option<Priority>,
    /// Share beside others of the same class.
    pub weight: Option<u16>,
    /// Whether two processes of one tenant may meet in shared memory without the router in between; there is no such path yet.
    pub direct: Option<bool>,
}

/// A limit on bytes and messages over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Bits of payload a second; none: any number.
    #[serde(default)]
    pub bits_per_second: Option<u64>,
    /// Messages a second; none: any number.
    #[serde(default)]
    pub messages_per_second: Option<u64>,
    /// Bytes that may be sent at once after a pause; none: what the rate allows in 10 ms, at least 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// Messages that may be sent at once after a pause; none: what the rate allows in 10 ms, at least 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_messages: Option<u64>,
}

/// Class of scheduling: a lower one gets only what a higher one leaves, which may be nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// Policies by scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTree(BTreeMap<PolicyScope, Policy>);

/// The policies that apply to an endpoint: its own, with its tenant's and its host's around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectivePolicy {
    /// Limits on the objects of its programs.
    pub quota: Option<Quota>,
    /// Rates of its host, its tenant on that host, and itself: all of them hold.
    pub rates: [Option<Rate>; 3],
    /// Rate of each of its queue pairs.
    pub qp_rate: Option<Rate>,
    /// Its class.
    pub priority: Priority,
    /// Its share in its tenant's.
    pub weight: u16,
    /// Its tenant's share in the host.
    pub tenant_weight: u16,
    /// Whether the direct path is allowed: where nothing around it forbids it.
    pub direct: bool,
}

impl Rate {
    /// A limit on payload alone, with the default bursts.
    pub fn bits(bits_per_second: u64) -> Self {
        Self {
            bits_per_second: Some(bits_per_second),
            messages_per_second: None,
            burst_bytes: None,
            burst_messages: None,
        }
    }
}

impl Validate for Rate {
    fn validate(&self) -> Result<(), InvalidField> {
        let limits = [("bits_per_second", self.bits_per_second), ("messages_per_second", self.messages_per_second)];
        for (field, limit) in limits {
            require(limit != Some(0), field, "must be at least 1, or left out")?;
            require(limit.is_none_or(|limit| limit <= MAX_RATE), field, format_args!("must be at most {MAX_RATE}"))?;
        }
        require(
            limits.iter().any(|(_, limit)| limit.is_some()),
            "bits_per_second",
            "must be given, or messages_per_second",
        )?;
        let room = format_args!("must be at least {MIN_BURST_BYTES}, the largest packet").to_string();
        require(self.burst_bytes.is_none_or(|burst| burst >= MIN_BURST_BYTES), "burst_bytes", room)?;
        require(self.burst_messages != Some(0), "burst_messages", "must be at least 1")
    }
}

impl Validate for Policy {
    fn validate(&self) -> Result<(), InvalidField> {
        for (field, rate) in [("rate", self.rate), ("qp_rate", self.qp_rate)] {
            rate.map_or(Ok(()), |rate| rate.validate()).map_err(|error| error.within(field))?;
        }
        let weight = self.weight.unwrap_or(DEFAULT_WEIGHT);
        require((1..=MAX_WEIGHT).contains(&weight), "weight", format_args!("must be 1 to {MAX_WEIGHT}"))
    }
}

impl FromIterator<(PolicyScope, Policy)> for PolicyTree {
    fn from_iter<I: IntoIterator<Item = (PolicyScope, Policy)>>(policies: I) -> Self {
        Self(policies.into_iter().collect())
    }
}

impl PolicyTree {
    /// Sets the policy of a scope, or removes it; returns the one before.
    pub fn set(&mut self, scope: PolicyScope, policy: Option<Policy>) -> Option<Policy> {
        match policy {
            Some(policy) => self.0.insert(scope, policy),
            None => self.0.remove(&scope),
        }
    }

    /// All policies, by scope.
    pub fn iter(&self) -> impl Iterator<Item = (&PolicyScope, &Policy)> {
        self.0.iter()
    }

    /// The policy of a scope itself.
    pub fn get(&self, scope: &PolicyScope) -> Option<&Policy> {
        self.0.get(scope)
    }

    /// The policies that apply to the endpoint `name` on `network`, of `tenant`, on `host`.
    pub fn effective(&self, host: &Name, tenant: &Name, network: &Name, name: &Name) -> EffectivePolicy {
        let own = PolicyScope::Endpoint { network: network.clone(), name: name.clone() };
        let scopes = [PolicyScope::Host(host.clone()), PolicyScope::Tenant(tenant.clone()), own];
        let levels = scopes.map(|scope| self.0.get(&scope).cloned().unwrap_or_default());
        let [_, of_tenant, of_endpoint] = &levels;
        let narrowest = || levels.iter().rev();
        EffectivePolicy {
            quota: narrowest().find_map(|policy| policy.quota),
            rates: levels.each_ref().map(|policy| policy.rate),
            qp_rate: narrowest().find_map(|policy| policy.qp_rate),
            priority: narrowest().find_map(|policy| policy.priority).unwrap_or_default(),
            weight: of_endpoint.weight.unwrap_or(DEFAULT_WEIGHT),
            tenant_weight: of_tenant.weight.unwrap_or(DEFAULT_WEIGHT),
            direct: levels.iter().all(|policy| policy.direct != Some(false)),
        }
    }
}

impl fmt::Display for PolicyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => write!(f, "host/{name}"),
            Self::Tenant(name) => write!(f, "tenant/{name}"),
            Self::Endpoint { network, name } => write!(f, "endpoint/{network}/{name}"),
        }
    }
}

impl FromStr for PolicyScope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        let invalid = || InvalidScope(text.to_owned());
        let name = |text: &str| text.parse::<Name>().map_err(|_| invalid());
        match text.split('/').collect::<Vec<_>>()[..] {
            ["host", host] => Ok(Self::Host(name(host)?)),
            ["tenant", tenant] => Ok(Self::Tenant(name(tenant)?)),
            ["endpoint", network, endpoint] => Ok(Self::Endpoint { network: name(network)?, name: name(endpoint)? }),
            _ => Err(invalid()),
        }
    }
}

impl TryFrom<String> for PolicyScope {
    type Error = InvalidScope;

    fn try_from(text: String) -> Result<Self, InvalidScope> {
        text.parse()
    }
}

impl From<PolicyScope> for String {
    fn from(scope: PolicyScope) -> Self {
        scope.to_string()
    }
}

const DEFAULT_WEIGHT: u16 = 100;
const MAX_WEIGHT: u16 = 10_000;
/// A packet's payload is at most 4096 bytes.
const MIN_BURST_BYTES: u64 = 4096;
/// 10 Tb/s: above it a bucket's arithmetic in nanoseconds would lose digits.
const MAX_RATE: u64 = 10_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn the_narrower_policy_decides_but_no_rate_is_lifted() {
        let mut tree = PolicyTree::default();
        let wide = Policy {
            rate: Some(Rate::bits(10)),
            priority: Some(Priority::Low),
            direct: Some(false),
            ..Policy::default()
        };
        tree.set(PolicyScope::Tenant(name("blue")), Some(Policy { weight: Some(7), ..wide }));
        let narrow = Policy {
            rate: Some(Rate::bits(99)),
            priority: Some(Priority::High),
            direct: Some(true),
            ..Policy::default()
        };
        tree.set("endpoint/net/a".parse().unwrap(), Some(narrow));
        let found = tree.effective(&name("here"), &name("blue"), &name("net"), &name("a"));
        assert_eq!(found.rates, [None, Some(Rate::bits(10)), Some(Rate::bits(99))]);
        assert_eq!((found.priority, found.tenant_weight, found.weight), (Priority::High, 7, DEFAULT_WEIGHT));
        assert!(!found.direct, "what is forbidden around it stays forbidden");
        let other = tree.effective(&name("here"), &name("red"), &name("net"), &name("b"));
        assert_eq!((other.rates, other.direct), ([None; 3], true));
    }

    #[test]
    fn a_mistake_is_named_with_its_rule() {
        let rate = |json: &str| serde_json::from_str::<Policy>(json).unwrap().validate().map_err(|e| e.to_string());
        assert_eq!(rate(r#"{"rate": {"bits_per_second": 1000}}"#), Ok(()));
        let none = rate(r#"{"rate": {"bits_per_second": 0}}"#);
        assert_eq!(none.unwrap_err(), "`rate.bits_per_second`: must be at least 1, or left out");
        assert!(rate(r#"{"qp_rate": {}}"#).unwrap_err().starts_with("`qp_rate.bits_per_second`"));
        let tight = rate(r#"{"rate": {"messages_per_second": 5, "burst_bytes": 100}}"#);
        assert_eq!(tight.unwrap_err(), "`rate.burst_bytes`: must be at least 4096, the largest packet");
        assert!(rate(r#"{"weight": 0}"#).unwrap_err().starts_with("`weight`"));
        assert!("endpoint/a".parse::<PolicyScope>().is_err() && "host/a/b".parse::<PolicyScope>().is_err());
    }

    #[test]
    fn a_scope_is_its_text() {
        for text in ["host/a", "tenant/blue", "endpoint/net/a"] {
            let scope: PolicyScope = text.parse().unwrap();
            assert_eq!(serde_json::to_value(&scope).unwrap(), text);
        }
    }
}
