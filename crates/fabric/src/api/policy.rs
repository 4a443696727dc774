//! Policies of scopes in the API.

use crate::{Policy, PolicyScope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A scope and its policy (`GET` and `PUT /v1/policies`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScopePolicy {
    /// The scope.
    pub scope: PolicyScope,
    /// Its policy; none to remove it.
    #[serde(default)]
    pub policy: Option<Policy>,
}
