//! Rules for what a role may ask, and what of an answer it sees.

use crate::caller::Role;
use hyper::Method;
use rdmesh_fabric::api::{CreateEndpoint, Lifetime};
use rdmesh_fabric::{Isolation, Name, Network, Quota, SecurityGroup};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A request that may be made, as it goes to the router.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) body: Vec<u8>,
    pub(crate) seen: Seen,
}

/// Part of an answer that the caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    All,
    /// The elements of a list that are on a network of the tenant, which this field names.
    OwnRows(&'static str),
}

/// Words for a request that must not be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// By this role, or by nobody here.
    Forbidden(String),
    /// Of this form.
    Malformed(String),
}

/// Decides on a request in a role. `networks` are all of the router, of which tenants have some.
pub(crate) fn decide(
    role: &Role,
    method: &Method,
    path: &str,
    body: Vec<u8>,
    networks: &[Network],
) -> Result<Order, Refusal> {
    match role {
        Role::Admin => admin(method, path, body),
        // The parts of a capture are read once: whoever reads them takes them from its owner.
        Role::Reader if method == Method::GET && !path.starts_with("/v1/captures/") => {
            Ok(Order { body, seen: Seen::All })
        }
        Role::Reader => Err(Refusal::Forbidden("a reader cannot change anything".to_owned())),
        Role::Tenant(name) => Tenant { name, networks }.decide(method, path, body),
    }
}

/// Leaves out of `rows`, which is JSON of a list, what is not on a network of `tenant`; none where it is something else.
pub(crate) fn own_rows(tenant: &Name, networks: &[Network], field: &str, rows: &[u8]) -> Option<Vec<u8>> {
    let Ok(Value::Array(mut rows)) = serde_json::from_slice(rows) else { return None };
    let tenant = Tenant { name: tenant, networks };
    rows.retain(|row| row[field].as_str().is_some_and(|network| tenant.has(network)));
    serde_json::to_vec(&rows).ok()
}

fn admin(method: &Method, path: &str, body: Vec<u8>) -> Result<Order, Refusal> {
    // These have to do with the calling process, which is this one: it would be their owner, or its descriptors would be meant.
    if method == Method::POST && (path == "/v1/endpoints" || path.ends_with("/acquire")) {
        let asked: Value = parsed(&body)?;
        if asked["lifetime"] == "caller" || asked["enters"] == true {
            return Err(Refusal::Forbidden(
                "an endpoint that goes with a process can only be made on its host".to_owned(),
            ));
        }
        if asked["netns"].is_number() {
            return Err(Refusal::Forbidden(
                "a descriptor of a network namespace can only be given on its host: name its file".to_owned(),
            ));
        }
    }
    Ok(Order { body, seen: Seen::All })
}

/// A tenant with all networks of the router.
struct Tenant<'a> {
    name: &'a Name,
    networks: &'a [Network],
}

impl Tenant<'_> {
    fn has(&self, network: &str) -> bool {
        self.networks.iter().any(|known| known.name.as_str() == network && known.tenant == *self.name)
    }

    fn decide(&self, method: &Method, path: &str, body: Vec<u8>) -> Result<Order, Refusal> {
        // As they are written: what is written in another way (`%2e`) is no name.
        let parts: Vec<_> = path.strip_prefix("/v1/").unwrap_or_default().split('/').collect();
        let seen = match (method.as_str(), &parts[..]) {
            ("GET", ["openapi.json"]) => Seen::All,
            ("GET", ["networks"]) => Seen::OwnRows("name"),
            ("GET", ["endpoints" | "groups" | "contexts" | "connections"]) => Seen::OwnRows("network"),
            ("GET", ["networks", network, "endpoints" | "interfaces"]) => self.on(network, Seen::All)?,
            ("GET" | "DELETE", ["endpoints", network, _name]) => self.on(network, Seen::All)?,
            ("DELETE", ["groups", network, _name]) => self.on(network, Seen::All)?,
            ("POST", ["endpoints"]) => return self.endpoint(&body),
            ("PUT", ["groups"]) => return self.group(&body),
            _ => return Err(Refusal::Forbidden(format!("tenants cannot ask for {method} {path}"))),
        };
        Ok(Order { body: Vec::new(), seen })
    }

    fn on(&self, network: &str, seen: Seen) -> Result<Seen, Refusal> {
        // The same words, whether others have it or nobody.
        let forbidden = || Refusal::Forbidden(format!("tenant {} has no network {network}", self.name));
        if self.has(network) { Ok(seen) } else { Err(forbidden()) }
    }

    fn endpoint(&self, body: &[u8]) -> Result<Order, Refusal> {
        let asked: CreateEndpoint = parsed(body)?;
        self.on(asked.network.as_str(), Seen::All)?;
        // What says something about the host, and what only the operator decides.
        let foreign = [
            (asked.lifetime == Lifetime::Caller || asked.take_over, "lifetime or take_over"),
            (asked.isolation != Isolation::Namespace, "another isolation than `namespace`"),
            (asked.netns.is_some(), "netns"),
            (asked.vni.is_some(), "vni"),
            (asked.allowed_uid.is_some(), "allowed_uid"),
            (asked.quota != Quota::default(), "quota"),
        ];
        if let Some((_, field)) = foreign.iter().find(|(is_asked, _)| *is_asked) {
            return Err(Refusal::Forbidden(format!("tenants cannot choose {field}")));
        }
        Ok(Order { body: written(&asked)?, seen: Seen::All })
    }

    fn group(&self, body: &[u8]) -> Result<Order, Refusal> {
        let asked: SecurityGroup = parsed(body)?;
        self.on(asked.network.as_str(), Seen::All)?;
        Ok(Order { body: written(&asked)?, seen: Seen::All })
    }
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::Malformed(format!("the request's body: {error}")))
}

/// Written anew, so that the router reads what was looked at.
fn written(asked: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(asked).map_err(|error| Refusal::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests;
