//! Operations on tenants, networks, security groups and policies.

use super::{Client, ClientError, NOTHING};
use crate::api::{CreateNetwork, ScopePolicy};
use crate::{Name, Network, SecurityGroup, Tenant};
use hyper::Method;

impl Client {
    /// All tenants that have a record.
    pub fn tenants(&self) -> Result<Vec<Tenant>, ClientError> {
        self.get("/v1/tenants")
    }

    /// Adds a tenant, or changes its limits.
    pub fn set_tenant(&self, tenant: &Tenant) -> Result<Tenant, ClientError> {
        self.call(Method::PUT, "/v1/tenants", Some(tenant))
    }

    /// Removes a tenant that has no networks.
    pub fn remove_tenant(&self, name: &Name) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/v1/tenants/{name}"), NOTHING)
    }

    /// Makes a network.
    pub fn add_network(&self, network: &CreateNetwork) -> Result<Network, ClientError> {
        self.call(Method::POST, "/v1/networks", Some(network))
    }

    /// Removes a network that nothing is on.
    pub fn remove_network(&self, name: &Name) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/v1/networks/{name}"), NOTHING)
    }

    /// All security groups.
    pub fn groups(&self) -> Result<Vec<SecurityGroup>, ClientError> {
        self.get("/v1/groups")
    }

    /// Adds a security group, or changes one.
    pub fn set_group(&self, group: &SecurityGroup) -> Result<SecurityGroup, ClientError> {
        self.call(Method::PUT, "/v1/groups", Some(group))
    }

    /// Removes a security group.
    pub fn remove_group(&self, network: &Name, name: &Name) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/v1/groups/{network}/{name}"), NOTHING)
    }

    /// All policies.
    pub fn policies(&self) -> Result<Vec<ScopePolicy>, ClientError> {
        self.get("/v1/policies")
    }

    /// Sets the policy of a scope, or removes it.
    pub fn set_policy(&self, policy: &ScopePolicy) -> Result<ScopePolicy, ClientError> {
        self.call(Method::PUT, "/v1/policies", Some(policy))
    }
}
