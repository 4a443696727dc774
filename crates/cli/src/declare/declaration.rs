//! Declarations: the objects of a file, or of a router.

use crate::args::Kind;
use rdmesh_fabric::api::{CreateEndpoint, CreateNetwork, EndpointInfo, ScopePolicy};
use rdmesh_fabric::{
    Client, ClientError, InvalidField, Isolation, Labels, Name, Pool, Quota, SecurityGroup, Tenant, Validate,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Objects of each kind, under the names that the API has for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Declaration {
    tenants: Vec<Tenant>,
    networks: Vec<CreateNetwork>,
    groups: Vec<SecurityGroup>,
    policies: Vec<ScopePolicy>,
    pools: Vec<Pool>,
    endpoints: Vec<StayingEndpoint>,
}

/// An endpoint that stays until it is removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StayingEndpoint {
    name: Name,
    network: Name,
    /// Where empty, the next free ones.
    #[serde(default)]
    addresses: Vec<IpAddr>,
    #[serde(default)]
    quota: Quota,
    #[serde(default)]
    allowed_uid: Option<u32>,
    #[serde(default)]
    isolation: Isolation,
    #[serde(default)]
    labels: Labels,
}

/// One object.
#[derive(Clone, Debug)]
pub(super) enum Object {
    Tenant(Tenant),
    Network(CreateNetwork),
    Group(SecurityGroup),
    Policy(ScopePolicy),
    Pool(Pool),
    Endpoint(StayingEndpoint),
}

/// Error of a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeclarationError {
    /// It is neither YAML nor JSON, or has a field that there is not.
    #[error("{0}")]
    Syntax(#[from] serde_saphyr::Error),
    /// An object breaks a rule.
    #[error("{kind} `{key}`: {error}")]
    Invalid { kind: &'static str, key: String, error: InvalidField },
    /// Two objects have one name.
    #[error("{kind} `{key}` is declared twice")]
    Twice { kind: &'static str, key: String },
    /// The objects differ in what is fixed when one is made.
    #[error("{kind} `{key}`: {why}")]
    Fixed { kind: &'static str, key: String, why: String },
}

impl Declaration {
    /// The declaration in a text of YAML, of which JSON is a part.
    pub(super) fn parse(text: &str) -> Result<Self, DeclarationError> {
        let parsed: Self = serde_saphyr::from_str(text)?;
        let mut known = BTreeSet::new();
        for object in parsed.objects() {
            let (kind, key) = (object.kind(), object.key());
            object.validate().map_err(|error| DeclarationError::Invalid { kind, key: key.clone(), error })?;
            if !known.insert((kind, key.clone())) {
                return Err(DeclarationError::Twice { kind, key });
            }
        }
        Ok(parsed)
    }

    /// Objects of a router, or of its cluster: networks that were made for an endpoint too, but no endpoint that goes with a program.
    pub(super) fn of_router(client: &Client) -> Result<Self, ClientError> {
        let networks = client.networks()?.into_iter().map(|network| CreateNetwork {
            name: network.name,
            tenant: network.tenant,
            vni: Some(network.vni),
            subnets: network.subnets,
            mtu: network.mtu,
        });
        Ok(Self {
            tenants: client.tenants()?,
            networks: networks.collect(),
            groups: client.groups()?,
            policies: client.policies()?,
            pools: client.pools()?.into_iter().map(|info| info.pool).collect(),
            endpoints: client.endpoints()?.into_iter().filter_map(StayingEndpoint::of).collect(),
        })
    }

    /// The objects of some kinds, or of all where none is named.
    pub(super) fn only(self, kinds: &[Kind]) -> Self {
        let has = |kind: Kind| kinds.is_empty() || kinds.contains(&kind);
        Self {
            tenants: if has(Kind::Tenants) { self.tenants } else { Vec::new() },
            networks: if has(Kind::Networks) { self.networks } else { Vec::new() },
            groups: if has(Kind::Groups) { self.groups } else { Vec::new() },
            policies: if has(Kind::Policies) { self.policies } else { Vec::new() },
            pools: if has(Kind::Pools) { self.pools } else { Vec::new() },
            endpoints: if has(Kind::Endpoints) { self.endpoints } else { Vec::new() },
        }
    }

    /// As it is printed: without what is null or empty, which reads as the same.
    pub(super) fn to_value(&self) -> Value {
        without_defaults(serde_json::to_value(self).expect("objects of the API are JSON"))
    }

    /// The objects in the order in which they are made: networks after their tenants, endpoints last.
    pub(super) fn objects(&self) -> impl Iterator<Item = Object> {
        let tenants = self.tenants.iter().cloned().map(Object::Tenant);
        let networks = self.networks.iter().cloned().map(Object::Network);
        let groups = self.groups.iter().cloned().map(Object::Group);
        let policies = self.policies.iter().cloned().map(Object::Policy);
        let pools = self.pools.iter().cloned().map(Object::Pool);
        let endpoints = self.endpoints.iter().cloned().map(Object::Endpoint);
        tenants.chain(networks).chain(groups).chain(policies).chain(pools).chain(endpoints)
    }
}

impl StayingEndpoint {
    /// None of a pool's, of a program's, or of one in a namespace that the router was given.
    fn of(info: EndpointInfo) -> Option<Self> {
        let endpoint = info.endpoint;
        let stays = endpoint.owner_pid.is_none() && endpoint.pool.is_none() && endpoint.isolation != Isolation::Given;
        stays.then_some(Self {
            name: endpoint.name,
            network: endpoint.network,
            addresses: endpoint.addresses,
            quota: endpoint.quota,
            allowed_uid: endpoint.allowed_uid,
            isolation: endpoint.isolation,
            labels: endpoint.labels,
        })
    }
}

impl Object {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Network(_) => "network",
            Self::Group(_) => "group",
            Self::Policy(_) => "policy",
            Self::Pool(_) => "pool",
            Self::Endpoint(_) => "endpoint",
        }
    }

    /// Its name, unique among those of its kind: `network/name` of what a network has.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Tenant(tenant) => tenant.name.to_string(),
            Self::Network(network) => network.name.to_string(),
            Self::Group(group) => format!("{}/{}", group.network, group.name),
            Self::Policy(policy) => policy.scope.to_string(),
            Self::Pool(pool) => format!("{}/{}", pool.network, pool.name),
            Self::Endpoint(endpoint) => format!("{}/{}", endpoint.network, endpoint.name),
        }
    }

    /// The object in JSON, as the API has it; lists in one order, for all of them are sets.
    pub(super) fn fields(&self) -> Value {
        let fields = match self {
            Self::Tenant(tenant) => serde_json::to_value(tenant),
            Self::Network(network) => serde_json::to_value(network),
            Self::Group(group) => serde_json::to_value(group),
            Self::Policy(policy) => serde_json::to_value(policy),
            Self::Pool(pool) => serde_json::to_value(pool),
            Self::Endpoint(endpoint) => serde_json::to_value(endpoint),
        };
        let mut fields = fields.expect("objects of the API are JSON");
        for list in fields.as_object_mut().into_iter().flatten().filter_map(|(_, value)| value.as_array_mut()) {
            list.sort_by_key(Value::to_string);
        }
        fields
    }

    /// Its fields beside its name in one line, as `policy.rate.bits_per_second=1000`; without those that have no value.
    pub(super) fn details(&self) -> String {
        let mut details = Vec::new();
        describe("", &without_defaults(self.fields()), &mut details);
        let is_name = |detail: &String| ["name=", "network=", "scope="].iter().any(|name| detail.starts_with(name));
        details.retain(|detail| !is_name(detail));
        details.join(" ")
    }

    /// Whether a policy may have lowered the numbers of a field when the object was made.
    pub(super) fn is_lowered(&self, field: &str) -> bool {
        matches!((self, field), (Self::Endpoint(_), "quota"))
    }

    /// Whether it is a policy that lowers quotas.
    pub(super) fn lowers_quotas(&self) -> bool {
        matches!(self, Self::Policy(ScopePolicy { policy: Some(policy), .. }) if policy.quota.is_some())
    }

    /// Whether a field that is left out means "whatever it is".
    pub(super) fn is_open(&self, field: &str) -> bool {
        matches!((self, field), (Self::Network(_), "vni") | (Self::Endpoint(_), "addresses"))
    }

    /// The remedy where a field of it is fixed when it is made.
    pub(super) fn fixed(&self, field: &str) -> Option<String> {
        match self {
            Self::Network(_) => {
                Some("declare a network of another name, or remove it first: `rdmesh network rm`".to_owned())
            }
            Self::Pool(pool) if field != "size" => {
                Some(format!("remove it first, `rdmesh pool rm {} --net {}`", pool.name, pool.network))
            }
            Self::Endpoint(endpoint) => {
                Some(format!("remove it first, `rdmesh endpoint rm {} --net {}`", endpoint.name, endpoint.network))
            }
            Self::Tenant(_) | Self::Group(_) | Self::Policy(_) | Self::Pool(_) => None,
        }
    }

    /// Whether there is nothing to be had, as of a scope without a policy.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::Policy(ScopePolicy { policy: None, .. }))
    }

    /// Whether it is of a kind.
    pub(super) fn is_of(&self, kind: Kind) -> bool {
        matches!(
            (self, kind),
            (Self::Tenant(_), Kind::Tenants)
                | (Self::Network(_), Kind::Networks)
                | (Self::Group(_), Kind::Groups)
                | (Self::Policy(_), Kind::Policies)
                | (Self::Pool(_), Kind::Pools)
                | (Self::Endpoint(_), Kind::Endpoints)
        )
    }

    fn validate(&self) -> Result<(), InvalidField> {
        match self {
            Self::Tenant(tenant) => tenant.validate(),
            Self::Group(group) => group.validate(),
            Self::Policy(policy) => policy.policy.iter().try_for_each(Validate::validate),
            Self::Pool(pool) => pool.validate(),
            // The router knows the other networks and endpoints, which the rules are about.
            Self::Network(_) | Self::Endpoint(_) => Ok(()),
        }
    }

    /// Lets the router have it.
    pub(super) fn set(&self, client: &Client) -> Result<(), ClientError> {
        match self {
            Self::Tenant(tenant) => client.set_tenant(tenant).map(drop),
            Self::Network(network) => client.add_network(network).map(drop),
            Self::Group(group) => client.set_group(group).map(drop),
            Self::Policy(policy) => client.set_policy(policy).map(drop),
            Self::Pool(pool) => client.set_pool(pool).map(drop),
            Self::Endpoint(endpoint) => client.create_endpoint(&endpoint.request()).map(drop),
        }
    }

    /// Lets the router have it no longer.
    pub(super) fn remove(&self, client: &Client) -> Result<(), ClientError> {
        match self {
            Self::Tenant(tenant) => client.remove_tenant(&tenant.name),
            Self::Network(network) => client.remove_network(&network.name),
            Self::Group(group) => client.remove_group(&group.network, &group.name),
            Self::Policy(policy) => {
                client.set_policy(&ScopePolicy { scope: policy.scope.clone(), policy: None }).map(drop)
            }
            Self::Pool(pool) => client.remove_pool(&pool.network, &pool.name).map(drop),
            Self::Endpoint(endpoint) => client.remove_endpoint(&endpoint.network, &endpoint.name).map(drop),
        }
    }
}

impl StayingEndpoint {
    fn request(&self) -> CreateEndpoint {
        let Self { name, network, addresses, quota, allowed_uid, isolation, labels } = self.clone();
        CreateEndpoint { addresses, quota, allowed_uid, isolation, labels, ..CreateEndpoint::new(network, name) }
    }
}

/// Adds the fields of a value, each with its path.
fn describe(path: &str, value: &Value, details: &mut Vec<String>) {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            describe(&path, value, details);
        }),
        Value::Array(list) => details.push(format!("{path}={}", list.iter().map(plain).collect::<Vec<_>>().join(","))),
        other => details.push(format!("{path}={}", plain(other))),
    }
}

/// A value without null fields and empty lists.
fn without_defaults(value: Value) -> Value {
    let is_default = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !is_default(value));
            Value::Object(fields.map(|(name, value)| (name, without_defaults(value))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(without_defaults).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "
# Two tenants.
tenants:
- name: acme
  max_networks: 2
networks:
- name: blue
  tenant: acme
  subnets: [10.7.0.0/24]
groups:
- network: blue
  name: db
  members: [server]
  allow_from: [endpoint/client@7471, 10.7.0.0/28]
policies:
- scope: endpoint/blue/client
  policy:
    rate: {bits_per_second: 1000000000}
    priority: high
pools:
- {network: blue, name: fn, size: 8}
endpoints:
- network: blue
  name: server
  addresses: [10.7.0.9]
  quota: {qps: 64}
";

    #[test]
    fn a_file_may_be_yaml_or_json_and_reads_as_it_is_printed() {
        let parsed = Declaration::parse(ALL).unwrap();
        assert_eq!(
            parsed.objects().map(|object| object.kind()).collect::<Vec<_>>(),
            ["tenant", "network", "group", "policy", "pool", "endpoint"]
        );
        let printed = parsed.to_value();
        for text in [serde_saphyr::to_string(&printed).unwrap(), printed.to_string()] {
            assert_eq!(Declaration::parse(&text).unwrap(), parsed, "{text}");
        }
        let details: Vec<String> = parsed.objects().map(|object| object.details()).collect();
        assert_eq!(details[0], "max_networks=2");
        assert_eq!(details[2], "allow_from=10.7.0.0/28,endpoint/client@7471 members=server");
        assert!(details[3].contains("policy.rate.bits_per_second=1000000000"), "{}", details[3]);
        assert_eq!(parsed.only(&[Kind::Pools]).objects().count(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Declaration::parse(text).unwrap_err().to_string();
        let unknown = error("tenants:\n- name: acme\n  max_network: 2\n");
        assert!(unknown.contains("max_network") && unknown.contains('3'), "{unknown}");
        let invalid = error("tenants: [{name: acme, max_networks: 0}]");
        assert!(invalid.starts_with("tenant `acme`: ") && invalid.contains("max_networks"), "{invalid}");
        let twice = error("pools: [{network: a, name: fn, size: 1}, {network: a, name: fn, size: 2}]");
        assert_eq!(twice, "pool `a/fn` is declared twice");
        let rule = error("groups: [{network: a, name: g, allow_from: [nobody/x]}]");
        assert!(rule.contains("nobody/x"), "{rule}");
    }
}
